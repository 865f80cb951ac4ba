"""What Prometheus scrapes of a whole gateway: bounded, and true of the fleet as it is."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from replica.sim import Sim
from tests.adapters import write_adapter
from tests.system.fleet import Running, replicas, running
from tests.waiting import until_true

QUIET = 3.0  # seconds: files older than two are taken at the first look
JUNK = 10_000
CLIENTS = 50

NAMES = {  # what dashboards rely on -> its labels
    "requests_total": {"model", "endpoint", "code"},
    "request_duration_seconds_count": {"endpoint"},
    "time_to_first_byte_seconds_count": {"endpoint"},
    "model_time_to_first_byte_seconds_count": {"model"},
    "inflight_requests": {"replica"},
    "waiting_requests": set[str](),
    "adapter_wait_seconds_count": {"outcome"},
    "adapters": {"state"},
    "adapter_state": {"adapter", "state"},
    "adapter_info": {"adapter", "revision"},
    "adapter_loaded": {"adapter", "replica"},
    "adapter_load_failing": {"adapter", "replica", "kind"},
    "adapter_loads_total": {"replica", "outcome"},
    "adapter_load_duration_seconds_count": set[str](),
    "adapter_unloads_total": {"replica", "outcome"},
    "adapter_convergence_seconds_count": set[str](),
    "adapter_unconverged_seconds": {"adapter"},
    "adapters_unconverged": set[str](),
    "oldest_unconverged_seconds": set[str](),
    "drift_repairs_total": {"replica"},
    "quarantines_total": set[str](),
    "validation_failures_total": {"reason"},
    "replica_up": {"replica"},
    "replica_phase": {"replica", "phase"},
    "replica_held_adapters": {"replica"},
    "replica_requests_total": {"replica"},
    "replica_last_load_timestamp_seconds": {"replica"},
    "upstream_errors_total": {"replica", "kind"},
    "retries_total": {"reason"},
    "client_disconnects_total": {"phase"},
    "scan_duration_seconds_count": set[str](),
    "watch_events": {"mode"},
    "event_loop_lag_seconds": set[str](),
    "build_info": {"version"},
    "ready": set[str](),
    "directory_readable": set[str](),
}


async def scrape(gateway: Running) -> dict[str, Metric]:
    text = (await gateway.client.get("/metrics")).text
    return {family.name: family for family in text_string_to_metric_families(text)}


async def series(gateway: Running) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    families = (await scrape(gateway)).values()
    return {(sample.name, frozenset(sample.labels.items())) for family in families for sample in family.samples}


async def lines(gateway: Running) -> int:
    return len((await gateway.client.get("/metrics")).text.splitlines())


async def shown(gateway: Running) -> set[str]:
    """Every label value of every series."""
    return {value for _, labels in await series(gateway) for _, value in labels}


async def values(gateway: Running, family: str, label: str) -> dict[str, float]:
    known = (await scrape(gateway)).get(f"lora_gateway_{family}")
    return {sample.labels[label]: sample.value for sample in known.samples if label in sample.labels} if known else {}


async def test_every_metric_is_there_with_its_labels_and_fed(tmp_path: Path) -> None:
    for name in ("alpha", "leaving"):
        write_adapter(tmp_path / name, seed=len(name), age=QUIET)
    write_adapter(tmp_path / "broken", age=QUIET, peft_type="PROMPT_TUNING")
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        await gateway.becomes("leaving", "ready")
        await gateway.chat("alpha")
        shutil.rmtree(tmp_path / "leaving")
        await gateway.becomes("leaving", None)
        await spoil(fleet.all[0], load_status=500)
        write_adapter(tmp_path / "late", seed=9, age=QUIET)

        async def all_there() -> bool:
            labels = {name: set(labels) for name, labels in ((n, dict(pairs)) for n, pairs in await series(gateway))}
            return {name: labels.get(f"lora_gateway_{name}") for name in NAMES} == NAMES

        await until_true(all_there, 8.0)


async def test_what_goes_wrong_on_the_way_to_a_replica_is_counted(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", age=QUIET)
    async with replicas(1) as fleet, running(tmp_path, *fleet.all, drift_interval=600) as gateway:
        await gateway.becomes("alpha", "ready")
        sim, replica = fleet.all[0], httpx.URL(fleet.all[0].url).netloc.decode()
        await gateway.client.post(f"{sim.url}/v1/unload_lora_adapter", json={"lora_name": "alpha"})
        assert (await gateway.chat("alpha")).status_code == 200  # forgotten: loaded and sent again
        assert await gateway.metric('lora_gateway_retries_total{reason="forgotten"}') == 1
        await until_true(lambda: repaired(gateway, replica), 8.0)
        await spoil(sim, close_before_answer="rst", times=2)  # on the reused connection, and on the new one
        assert (await gateway.chat("base-a")).status_code == 502
        errors = f'lora_gateway_upstream_errors_total{{kind="closed",replica="{replica}"}}'
        assert await gateway.metric(errors) == 1
        assert await gateway.metric('lora_gateway_retries_total{reason="reused"}') == 1
        await spoil(sim, hang=True)
        with pytest.raises(httpx.ReadTimeout):
            await gateway.client.post("/v1/completions", json={"model": "alpha", "prompt": "hi"}, timeout=0.2)

        async def left() -> bool:
            return await gateway.metric('lora_gateway_client_disconnects_total{phase="headers"}') == 1

        await until_true(left, 8.0)


async def repaired(gateway: Running, replica: str) -> bool:
    return await gateway.metric(f'lora_gateway_drift_repairs_total{{replica="{replica}"}}') >= 1


async def spoil(sim: Sim, **faults: Any) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(f"{sim.url}/sim/faults", json=faults)).raise_for_status()


async def flood(url: str, numbers: range) -> set[bytes]:
    """Ask for a made-up name for each number, one connection for all; the statuses that came. A plain client costs less."""
    there = httpx.URL(url)
    reader, writer = await asyncio.open_connection(there.host, there.port)
    statuses = set()
    for number in numbers:
        body = b'{"model": "junk-%d\\n\\"{}", "messages": []}' % number
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        statuses.add(head.split()[1])
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
    writer.close()
    await writer.wait_closed()
    return statuses


async def test_label_flood_junk_names_add_no_series(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", age=QUIET)
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        for model in ("alpha", "base-a", "first-junk"):
            await gateway.chat(model)
        before = await series(gateway)

        shares = [range(first, JUNK, CLIENTS) for first in range(CLIENTS)]
        assert await asyncio.gather(*(flood(gateway.url, share) for share in shares)) == [{b"404"}] * CLIENTS
        assert await series(gateway) == before
        assert (await values(gateway, "requests", "model"))["other"] == JUNK + 1
        assert not any("junk" in value for value in await shown(gateway))


async def test_label_flood_of_a_gateway_that_was_never_asked_adds_at_most_five_lines(tmp_path: Path) -> None:
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        before = await lines(gateway)
        assert await flood(gateway.url, range(JUNK // CLIENTS)) == {b"404"}
        assert (await values(gateway, "requests", "model"))["other"] == JUNK // CLIENTS
        assert await lines(gateway) - before <= 5


async def test_label_flood_paths_methods_and_headers_make_no_labels(tmp_path: Path) -> None:
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.chat("base-a")
        before = await series(gateway)
        for path in ("/v1/junk-path", "/junk-path/v1/chat/completions", "/v1/models/junk-path"):
            await gateway.client.get(path, headers={"x-request-id": "junk-id", "user-agent": "junk-agent"})
            await gateway.client.request("JUNK", path)
        assert not any("junk" in value.lower() for value in await shown(gateway))
        assert len(await series(gateway) - before) <= 5


async def test_metric_truth_loaded_is_the_gateways_own_gauge(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        write_adapter(tmp_path / name, seed=len(name), age=QUIET)
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready(2)
        await gateway.becomes("alpha", "ready")
        await gateway.becomes("beta", "ready")
        families = await scrape(gateway)
        held = families["lora_gateway_adapter_loaded"].samples
        assert {(s.labels["adapter"], s.value) for s in held} == {("alpha", 1.0), ("beta", 1.0)}
        assert len(held) == 4  # idle ones too
        row = await gateway.adapter("alpha")
        assert row is not None
        assert (await values(gateway, "adapter_info", "revision")).keys() >= {row["revision"]}
        assert (await values(gateway, "adapters", "state"))["ready"] == 2
        assert (await values(gateway, "replica_last_load_timestamp_seconds", "replica")).keys() == {
            httpx.URL(sim.url).netloc.decode() for sim in fleet.all
        }


async def test_metric_truth_an_adapter_that_is_gone_takes_its_series_with_it(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", age=QUIET)
    write_adapter(tmp_path / "broken", age=QUIET, peft_type="PROMPT_TUNING")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        for model in ("alpha", "broken"):
            await gateway.chat(model)
        assert (await shown(gateway)) >= {"alpha", "broken"}
        for name in ("alpha", "broken"):
            shutil.rmtree(tmp_path / name)

        async def gone() -> bool:
            return not {"alpha", "broken"} & await shown(gateway)

        await until_true(gone, 8.0)
        assert (await values(gateway, "adapters", "state"))["removing"] == 0


async def test_metric_truth_removing_counts_what_a_replica_still_holds(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", age=QUIET)
    async with replicas(1) as fleet, running(tmp_path, *fleet.all, unload_linger=600) as gateway:
        await gateway.becomes("alpha", "ready")
        shutil.rmtree(tmp_path / "alpha")
        await gateway.becomes("alpha", "removing")
        assert (await values(gateway, "adapters", "state"))["removing"] == 1
        await gateway.client.post(f"{fleet.all[0].url}/v1/unload_lora_adapter", json={"lora_name": "alpha"})

        async def none_left() -> bool:
            return (await values(gateway, "adapters", "state"))["removing"] == 0

        await until_true(none_left, 8.0)


async def test_metric_truth_a_replica_that_is_gone_takes_its_series_with_it(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapters" / "alpha", age=QUIET)
    listed = tmp_path / "replicas.yaml"
    async with replicas(2) as fleet:
        listed.write_text("\n".join(f"- {sim.url}" for sim in fleet.all))
        async with running(tmp_path / "adapters", replicas_file=listed) as gateway:
            await gateway.ready(2)
            await gateway.becomes("alpha", "ready")
            leaving = httpx.URL(fleet.all[0].url).netloc.decode()
            assert leaving in await shown(gateway)
            listed.write_text(f"- {fleet.all[1].url}\n")

            async def gone() -> bool:
                return leaving not in await shown(gateway)

            await until_true(gone, 8.0)


async def test_metric_truth_counters_of_a_replica_begin_at_zero_so_that_their_first_increase_is_seen(tmp_path: Path) -> None:
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        families, replica = await scrape(gateway), httpx.URL(fleet.all[0].url).netloc.decode()
        for name in ("adapter_loads", "adapter_unloads", "drift_repairs", "upstream_errors", "replica_requests"):
            counts = [s for s in families[f"lora_gateway_{name}"].samples if s.name.endswith("_total")]
            assert {(s.labels["replica"], s.value) for s in counts} == {(replica, 0.0)}, name


async def test_metric_truth_an_error_counted_after_its_replica_left_makes_no_series(tmp_path: Path) -> None:
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        gateway.gateway.metrics.upstream_error("long-gone:8000", "closed")
        assert "long-gone:8000" not in await shown(gateway)


async def test_metric_truth_a_restart_is_no_convergence_of_days(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", age=QUIET)
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        count = "lora_gateway_adapter_convergence_seconds_count"

        async def noted() -> bool:
            return await gateway.metric(count) == 1

        await until_true(noted, 8.0)
        sim = fleet.all[0]
        sim.kill()
        await sim.start()

        async def loaded_again() -> bool:
            return len(sim.journal.loads()) == 2 and await gateway.state("alpha") == "ready"

        await until_true(loaded_again, 8.0)
        assert await gateway.metric(count) == 1
        assert await gateway.metric("lora_gateway_oldest_unconverged_seconds") == 0
