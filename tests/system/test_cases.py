"""What operators of such fleets ran into, on a whole gateway in front of simulated replicas. One test per case."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.addresses import Address
from replica.sim import Sim
from tests.adapters import write_adapter
from tests.system.fleet import Running, replicas, running
from tests.waiting import until, until_true

QUIET = 3.0  # seconds: files older than two are taken at the first look


def put(adapters: Path, name: str, seed: int = 0, **more: Any) -> Path:
    """A folder that has lain there for a while."""
    return write_adapter(adapters / name, seed=seed, age=QUIET, **more)


def loads(sim: Sim, name: str | None = None) -> list[str]:
    """The names under which loads were asked for."""
    names = [call.body["lora_name"] for call in sim.journal.loads()]
    return [n for n in names if name is None or n.split("@")[0] == name]


def load_path(sim: Sim) -> str:
    path: str = sim.journal.loads()[0].body["lora_path"]
    return path


def unloads(sim: Sim) -> list[str]:
    return [call.body["lora_name"] for call in sim.journal.unloads()]


async def test_restart_forgets_a_restarted_replica_gets_its_adapters_before_a_client_notices(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        sim = fleet.all[0]
        before = await gateway.text("alpha")
        sim.kill()
        await sim.start()
        assert await gateway.text("alpha") == before
        await gateway.becomes("alpha", "ready")
        assert loads(sim) == ["alpha", "alpha"]


async def test_restart_forgets_nobody_hears_of_a_restart_while_another_replica_is_ready(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        await gateway.ready(2)
        stop = asyncio.Event()
        statuses: list[int] = []

        async def ask() -> None:
            while not stop.is_set():
                statuses.append((await gateway.chat("alpha")).status_code)

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        await until(lambda: len(statuses) > 20)
        fleet.all[0].kill()
        seen = len(statuses)
        await until(lambda: len(statuses) > seen + 20)
        await fleet.all[0].start()
        await until(lambda: len(loads(fleet.all[0])) == 2)
        await gateway.becomes("alpha", "ready")
        seen = len(statuses)
        await until(lambda: len(statuses) > seen + 20)
        stop.set()
        await asyncio.gather(*asking)
        # a request that was running on the killed replica may have failed: it must not be sent a second time
        assert [s for s in statuses if s not in (200, 502)] == []
        assert statuses.count(502) <= 4


async def test_scale_up_missing_a_new_replica_takes_no_adapter_request_before_its_own_load(tmp_path: Path) -> None:
    adapters, listed = tmp_path / "adapters", tmp_path / "replicas.yaml"
    put(adapters, "alpha"), put(adapters, "beta", seed=1)
    async with replicas(2) as fleet:
        one, two = fleet.all
        listed.write_text(f"- {one.url}\n")
        async with running(adapters, replicas_file=listed) as gateway:
            await gateway.becomes("alpha", "ready")
            await gateway.becomes("beta", "ready")
            listed.write_text(f"- {one.url}\n- {two.url}\n")
            statuses: list[int] = []

            async def both_hold() -> bool:
                statuses.append((await gateway.chat("alpha")).status_code)
                return len(loads(two)) == 2 and (await gateway.state("alpha")) == "ready"

            await until_true(both_hold)
            assert set(statuses) == {200}
            assert sorted(loads(two)) == ["alpha", "beta"]


async def test_already_loaded_by_another_gateway_is_success(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as first:
        await first.becomes("alpha", "ready")
        async with running(tmp_path, *fleet.all) as second:
            assert (await second.chat("alpha")).status_code == 200
            await second.becomes("alpha", "ready")
            assert loads(fleet.all[0]) == ["alpha"]


async def test_base_name_forms_are_accepted_and_strict_refuses_a_mismatch_naming_both(tmp_path: Path) -> None:
    forms = {
        "path": "/root/models/base-a/",
        "hub": "/home/u/hub/models--org--base-a/snapshots/7683fea62db869066ddaff6a41d032262c490d4f",
        "twin": "org/base-a-bnb-4bit",
        "null": None,
        "other": "org/another",
    }
    for number, (name, base) in enumerate(forms.items()):
        put(tmp_path, name, seed=number, base_model=base)
    async with replicas(1) as fleet:
        async with running(tmp_path, *fleet.all) as gateway:
            assert [(await gateway.chat(name)).status_code for name in forms] == [200] * 5
            row = await gateway.adapter("other")
            assert row is not None
            assert "org/another" in row["warnings"][0]
        async with running(tmp_path, *fleet.all, strict_base_model=True) as gateway:
            answer = await gateway.chat("other")
            assert answer.status_code == 400
            assert "org/another" in answer.text
            assert "base-a" in answer.text
            assert [(await gateway.chat(name)).status_code for name in forms if name != "other"] == [200] * 4


async def test_endpoint_off_names_the_switches_and_serves_the_base_model(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1, runtime_lora=False) as fleet, running(tmp_path, *fleet.all) as gateway:
        answers = [await gateway.chat("alpha") for _ in range(5)]
        assert {a.status_code for a in answers} == {503}
        error = answers[-1].json()["error"]
        assert error["code"] == "replica_misconfigured"
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in error["message"]
        assert "--enable-lora" in error["message"]
        assert (await gateway.chat("base-a")).status_code == 200
        assert len(loads(fleet.all[0])) <= 2
        assert (await gateway.status())["replicas"][0]["lora"] == "unsupported"


async def test_rank_too_big_is_asked_once_and_told_with_the_flag(tmp_path: Path) -> None:
    put(tmp_path, "big", rank=64), put(tmp_path, "alpha", seed=1)
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        answers = [await gateway.chat("big") for _ in range(20)]
        assert {(a.status_code, a.json()["error"]["code"]) for a in answers} == {(400, "adapter_rejected")}
        assert len({a.json()["error"]["message"] for a in answers}) == 1
        message = answers[0].json()["error"]["message"]
        assert message.startswith("Failed to load LoRA adapter 'big': ")
        assert "64" in message
        assert "--max-lora-rank" in message
        assert (await gateway.chat("alpha")).status_code == 200
        assert loads(fleet.all[0], "big") == ["big"]
        replica = (await gateway.status())["replicas"][0]["id"]
        assert await gateway.metric(f'lora_gateway_adapter_loads_total{{outcome="rejected",replica="{replica}"}}') == 1
        await gateway.becomes("big", "rejected")


async def test_unknown_keys_of_a_newer_peft_do_not_matter(tmp_path: Path) -> None:
    more: dict[str, Any] = {"peft_version": "0.99.0", "brand_new_config": {"a": [1, {"b": None}]}, "use_something": True}
    put(tmp_path, "alpha", rank=16, **more, lora_ga_config=None, use_bdlora=None)
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        assert (await gateway.chat("alpha")).status_code == 200


async def test_bad_blocks_good_one_failing_adapter_stops_no_other(tmp_path: Path) -> None:
    put(tmp_path, "a-bad"), put(tmp_path, "b-good", seed=1), put(tmp_path, "c-good", seed=2)
    async with replicas(2) as fleet:
        for sim in fleet.all:
            sim.inject(load_status=500, names=("a-bad",))
        async with running(tmp_path, *fleet.all) as gateway:
            await gateway.becomes("b-good", "ready")
            await gateway.becomes("c-good", "ready")
            await until(lambda: all(len(loads(sim, "a-bad")) >= 2 for sim in fleet.all), what="tried again with back-off")
            assert max(len(loads(sim, "a-bad")) for sim in fleet.all) <= 4


async def test_first_use_stampede_is_one_load_per_replica(tmp_path: Path) -> None:
    async with replicas(3, load_seconds=0.4) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready(3)
        put(tmp_path, "alpha")
        answers = await asyncio.gather(*(gateway.chat("alpha") for _ in range(50)))
        assert {a.status_code for a in answers} == {200}
        await gateway.becomes("alpha", "ready")
        assert [loads(sim) for sim in fleet.all] == [["alpha"]] * 3


async def test_not_ready_yet_a_replica_serves_what_it_can_as_soon_as_it_can(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet:
        late = await fleet.start(start_seconds=0.7, start_open=True)
        late.inject(load_status=503, names=("alpha",))
        async with running(tmp_path, *fleet.all) as gateway:
            statuses: list[int] = []

            async def base_on_the_late_one() -> bool:
                answers = [await gateway.chat(name) for name in ("base-a", "alpha", "base-a")]
                statuses.extend(a.status_code for a in answers)
                hosts = [a.headers["x-lora-gateway-replica"] for a in answers]
                assert hosts[1] == fleet.all[0].url.removeprefix("http://"), "it has no adapter yet"
                return late.url.removeprefix("http://") in hosts

            await until_true(base_on_the_late_one)
            late.heal()
            await gateway.becomes("alpha", "ready")
            assert set(statuses) == {200}


async def test_odd_names_are_served_listed_and_counted(tmp_path: Path) -> None:
    names = ["team/alpha", "base-a:v2", "a_b", "v1.2", "alpha beta", "ünï", "a%2Fb", "x" * 200, 'quo"te']
    for number, name in enumerate(names):
        put(tmp_path, name, seed=number)
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        assert [(await gateway.chat(name)).status_code for name in names] == [200] * len(names)
        listed = {m["id"] for m in (await gateway.client.get("/v1/models")).json()["data"]}
        assert listed >= set(names)
        for name in names:
            quoted = httpx.URL(gateway.url).copy_with(raw_path=b"/v1/models/" + _quoted(name))
            assert (await gateway.client.get(quoted)).json()["id"] == name
        metrics = (await gateway.client.get("/metrics")).text
        from prometheus_client.parser import text_string_to_metric_families

        labels = {
            sample.labels["model"]
            for family in text_string_to_metric_families(metrics)
            if family.name == "lora_gateway_requests"
            for sample in family.samples
        }
        assert labels >= set(names)


def _quoted(name: str) -> bytes:
    from urllib.parse import quote

    return quote(name, safe="").encode()


async def test_path_mapping_the_replicas_path_goes_into_the_load(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, "alpha")
    there.symlink_to(here)
    async with replicas(1, adapter_dirs=(there,)) as fleet, running(here, *fleet.all, replica_adapter_dir=there) as gateway:
        assert (await gateway.chat("alpha")).status_code == 200
        assert load_path(fleet.all[0]).startswith(f"{there}/.lora-gateway/alpha@")


async def test_path_mapping_without_it_the_answer_says_what_to_check(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, "alpha")
    there.mkdir()
    async with replicas(1, adapter_dirs=(there,)) as fleet, running(here, *fleet.all) as gateway:
        answer = await gateway.chat("alpha")
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "replica_cannot_see_adapter"
        assert "--replica-adapter-dir" in answer.text


@pytest.mark.parametrize("key", ["up-key", "wrong", None])
async def test_replica_key_goes_with_every_call_or_the_refusal_is_told(
    tmp_path: Path, key: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "alpha")
    async with replicas(1, api_key="up-key") as fleet, running(tmp_path, *fleet.all, replica_api_key=key) as gateway:
        await until(lambda: any(r.ready or r.refuses_key for r in gateway.gateway.registry.replicas()))
        body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        answer = await gateway.client.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer user-key"})
        if key == "up-key":
            assert answer.status_code == 200
        else:
            assert answer.status_code == 502
            assert answer.json()["error"]["code"] == "replica_credentials"
        shown = answer.text + (await gateway.client.get("/admin/status")).text
        shown += (await gateway.client.get("/metrics")).text
    out = capfd.readouterr()
    assert not any(secret in shown + out.err + out.out for secret in ("up-key", "user-key"))


@pytest.mark.parametrize(("upstream", "received"), [(None, "Bearer user-key"), ("up-key", "Bearer up-key")])
async def test_auth_leak_the_clients_key_goes_to_a_replica_only_when_there_is_no_other(
    tmp_path: Path, upstream: str | None, received: str
) -> None:
    async with replicas(1) as fleet, running(tmp_path, *fleet.all, replica_api_key=upstream) as gateway:
        await gateway.ready()
        body = {"model": "base-a", "prompt": "hi", "max_tokens": 2}
        answer = await gateway.client.post("/v1/completions", json=body, headers={"authorization": "Bearer user-key"})
        assert answer.status_code == 200
        assert [call.headers["authorization"] for call in fleet.all[0].journal.inference()] == [received]


async def test_truncated_weights_wait_until_they_are_whole(tmp_path: Path) -> None:
    whole = write_adapter(tmp_path / "aside" / "alpha")
    weights = (whole / "adapter_model.safetensors").read_bytes()
    adapters = tmp_path / "adapters"
    target = adapters / "alpha"
    target.mkdir(parents=True)
    (target / "adapter_config.json").write_bytes((whole / "adapter_config.json").read_bytes())
    async with replicas(2) as fleet, running(adapters, *fleet.all) as gateway:
        await gateway.ready(2)
        step = len(weights) // 5
        with (target / "adapter_model.safetensors").open("wb") as file:
            for number in range(5):
                file.write(weights[number * step : (number + 1) * step if number < 4 else len(weights)])
                file.flush()
                if number < 4:
                    answer = await gateway.chat("alpha")
                    assert answer.status_code == 503, answer.text
                    assert answer.json()["error"]["code"] == "adapter_incomplete"
                    assert answer.headers["retry-after"] == "5"
        await gateway.becomes("alpha", "ready")
        assert (await gateway.chat("alpha")).status_code == 200
        assert [loads(sim) for sim in fleet.all] == [["alpha"]] * 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"])
@pytest.mark.parametrize("stream", [True, False])
async def test_unknown_model_is_404_and_no_replica_is_asked(tmp_path: Path, path: str, stream: bool) -> None:
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready()
        answer = await gateway.client.post(path, json={"model": "gpt-4o-mini", "stream": stream, "input": "x"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == "The model 'gpt-4o-mini' does not exist."
        assert fleet.all[0].journal.inference() == []
        assert loads(fleet.all[0]) == []


async def test_two_at_once_both_are_ready_everywhere_and_nothing_is_unloaded(tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    put(tmp_path / "aside", "alpha"), put(tmp_path / "aside", "beta", seed=1)
    async with replicas(2) as fleet, running(adapters, *fleet.all) as gateway:
        await gateway.ready(2)
        for name in ("alpha", "beta"):
            (tmp_path / "aside" / name).rename(adapters / name)
        await gateway.becomes("alpha", "ready")
        await gateway.becomes("beta", "ready")
        assert [sorted(loads(sim)) for sim in fleet.all] == [["alpha", "beta"]] * 2
        assert [unloads(sim) for sim in fleet.all] == [[], []]
        models = [m["id"] for m in (await gateway.client.get("/v1/models")).json()["data"]]
        assert models == ["base-a", "alpha", "beta"]


async def test_models_list_is_the_same_each_time_loaded_or_not(tmp_path: Path) -> None:
    put(tmp_path, "alpha"), put(tmp_path, "beta", seed=1)
    put(tmp_path, "bad", peft_type="PROMPT_TUNING")
    async with replicas(2) as fleet:
        fleet.all[1].inject(load_status=503)
        async with running(tmp_path, *fleet.all, preload=0) as gateway:
            await gateway.ready(2)
            assert (await gateway.chat("alpha")).status_code == 200
            lists = [(await gateway.client.get("/v1/models")).content for _ in range(10)]
            assert len(set(lists)) == 1
            rows = json.loads(lists[0])["data"]
            assert [(row["id"], row["parent"]) for row in rows] == [
                ("base-a", None),
                ("alpha", "base-a"),
                ("beta", "base-a"),
            ]
            assert rows[1]["owned_by"] == "lora-gateway"
            assert len(rows[1]["revision"]) == 12
        async with running(tmp_path, *fleet.all) as another:
            assert (await another.client.get("/v1/models")).content == lists[0], "whichever gateway answers"


@pytest.mark.parametrize("name", ["../secrets", "/etc", "alpha/../../x", "..\\x", "%2e%2e/x", "alpha\0", "W" * 1_000_000])
async def test_traversal_is_an_unknown_name(tmp_path: Path, name: str) -> None:
    put(tmp_path / "adapters", "alpha"), put(tmp_path, "secrets", seed=1)
    async with replicas(1) as fleet, running(tmp_path / "adapters", *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        answer = await gateway.chat(name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert loads(fleet.all[0]) == ["alpha"]


@pytest.mark.parametrize("name", ["base-a", "alias"])
async def test_base_name_clash_the_base_model_wins(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    async with replicas(1, model_names=("base-a", "alias")) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready()
        assert (await gateway.chat(name)).status_code == 200
        await gateway.becomes(name, "invalid")
        assert loads(fleet.all[0]) == []
        models = [m["id"] for m in (await gateway.client.get("/v1/models")).json()["data"]]
        assert models == ["base-a", "alias"]


async def test_relative_path_every_load_names_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.settings_sources import read

    put(tmp_path / "adapters", "alpha")
    monkeypatch.chdir(tmp_path)
    async with replicas(1) as fleet:
        settings = read({"adapter_dir": "./adapters", "replica": (fleet.all[0].url,)}, {}, None)
        async with running(settings.adapter_dir, *fleet.all) as gateway:
            assert (await gateway.chat("alpha")).status_code == 200
        assert load_path(fleet.all[0]).startswith("/")


async def _refused(gateway: Running, model: str, stream: bool) -> tuple[int, str]:
    answer = await gateway.chat(model, stream=stream)
    assert answer.headers["content-type"].startswith("application/json")
    assert "Traceback" not in answer.text
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("stream", [True, False])
async def test_middleware_500_every_refusal_has_its_status_and_envelope(tmp_path: Path, stream: bool) -> None:
    put(tmp_path, "invalid", peft_type="IA3"), put(tmp_path, "refused", seed=1), put(tmp_path, "alpha", seed=2)
    async with replicas(1) as fleet:
        fleet.all[0].inject(load_status=500, names=("refused",))
        async with running(tmp_path, *fleet.all) as gateway:
            await gateway.becomes("alpha", "ready")
            assert await _refused(gateway, "unknown", stream) == (404, "model_not_found")
            assert await _refused(gateway, "invalid", stream) == (400, "adapter_rejected")
            assert await _refused(gateway, "refused", stream) == (502, "replica_failed")
    async with running(tmp_path, wait=False, replica=(Address.parse("http://127.0.0.1:9"),)) as gateway:
        await until(lambda: gateway.gateway.registry.scanned)
        assert await _refused(gateway, "alpha", stream) == (503, "no_replica")


async def test_ready_truth_readiness_follows_what_can_be_served(tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    put(adapters, "alpha")
    async with replicas(1) as fleet:
        sim = fleet.all[0]
        sim.kill()
        async with running(adapters, sim, wait=False) as gateway:
            assert (await gateway.client.get("/healthz")).status_code == 200
            ready = await gateway.client.get("/readyz")
            assert ready.status_code == 503
            assert "0 of 1" in ready.text
            refused = await gateway.chat("base-a")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replica")
            assert "retry-after" in refused.headers
            await sim.start()

            async def is_ready() -> bool:
                return (await gateway.client.get("/readyz")).status_code == 200

            await until_true(is_ready)
            await gateway.becomes("alpha", "ready")
            adapters.rename(tmp_path / "unmounted")
            adapters.mkdir()

            async def tells() -> bool:
                return "directory" in (await gateway.client.get("/readyz")).text

            await until_true(tells)
            assert (await gateway.chat("base-a")).status_code == 200
            assert (await gateway.chat("alpha")).status_code == 200


async def test_slow_load_ends_in_503_and_the_late_yes_counts(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all, load_wait=0.3) as gateway:
        await gateway.becomes("alpha", "ready")
        fleet.all[0].inject(load_seconds=1.0)
        put(tmp_path, "slow", seed=1)
        first = await gateway.chat("slow")
        assert (first.status_code, first.json()["error"]["code"]) == (503, "adapter_loading")
        assert first.headers["retry-after"] == "1"
        await gateway.becomes("slow", "ready")
        assert (await gateway.chat("slow")).status_code == 200
        assert loads(fleet.all[0], "slow") == ["slow"]


async def test_inotify_network_fs_a_folder_without_any_event_is_served_when_named(tmp_path: Path) -> None:
    async with replicas(1) as fleet, running(tmp_path, *fleet.all, scan_interval=3600) as gateway:
        await gateway.ready()
        put(tmp_path, "alpha")
        assert (await gateway.chat("alpha")).status_code == 200
        assert (await gateway.status())["gateway"]["watch"] in ("events", "polling")


async def test_unload_in_flight_a_removed_adapter_is_unknown_at_once_and_unloaded_after_its_stream(tmp_path: Path) -> None:
    put(tmp_path / "adapters", "alpha"), put(tmp_path / "adapters", "beta", seed=1)
    async with replicas(1, token_seconds=0.1) as fleet, running(tmp_path / "adapters", *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        body = {"model": "alpha", "prompt": "hi", "max_tokens": 30, "stream": True}
        async with gateway.client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            shutil.rmtree(tmp_path / "adapters" / "alpha")

            async def unknown() -> bool:
                return (await gateway.chat("alpha")).status_code == 404

            await until_true(unknown)
            assert unloads(fleet.all[0]) == []
            rest = [line async for line in lines]
        assert "data: [DONE]" in rest
        await until(lambda: unloads(fleet.all[0]) == ["alpha"])
        assert (await gateway.chat("beta")).status_code == 200


async def test_same_name_new_weights_flip_without_a_gap_and_never_back(tmp_path: Path) -> None:
    put(tmp_path, "alpha", seed=1)
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        old = await gateway.text("alpha")
        put(tmp_path, "alpha", seed=2)
        seen: dict[str, list[str]] = {}

        async def flipped() -> bool:
            answer = await gateway.chat("alpha")
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == "alpha"
            text = answer.json()["choices"][0]["message"]["content"]
            seen.setdefault(answer.headers["x-lora-gateway-replica"], []).append(text)
            return len(seen) == 2 and all(texts[-1] != old for texts in seen.values())

        await until_true(flipped)
        for texts in seen.values():
            assert texts == sorted(texts, key=lambda text: text != old), "an old answer after a new one"
        await until(lambda: all(unloads(sim) == ["alpha"] for sim in fleet.all))
        assert [len(loads(sim)) for sim in fleet.all] == [2, 2]
        assert not any("load_inplace" in call.body for sim in fleet.all for call in sim.journal.loads())
