"""Revisions over the years: updates without a gap, pins, revisions by name, aliases; on a whole gateway."""

import asyncio
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.core.addresses import Address
from replica.sim import Sim
from tests.adapters import write_adapter
from tests.system.fleet import Running, replicas, running
from tests.waiting import until, until_true

QUIET = 3.0  # seconds: files older than two are taken at the first look


def put(adapters: Path, name: str, seed: int = 0, **more: Any) -> Path:
    return write_adapter(adapters / name, seed=seed, age=QUIET, **more)


def loads(sim: Sim, name: str) -> list[str]:
    names = [call.body["lora_name"] for call in sim.journal.loads()]
    return [n for n in names if n.split("@")[0] == name]


def revision(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers["x-lora-gateway-revision"]


async def digest(gateway: Running, name: str) -> str:
    row = await gateway.adapter(name)
    assert row is not None
    found: str = row["revision"]
    return found


async def replaced(gateway: Running, adapters: Path, name: str, seed: int) -> str:
    """Other weights under an old name; the new revision once it is known."""
    old = await digest(gateway, name)
    put(adapters, name, seed)

    async def known() -> bool:
        return await digest(gateway, name) != old

    await until_true(known, 8.0)
    return await digest(gateway, name)


async def answers(gateway: Running, model: str, wanted: str) -> None:
    """Until every one of a few requests in a row is answered by the wanted revision."""

    async def all_wanted() -> bool:
        return all([revision(await gateway.chat(model)) == wanted for _ in range(4)])

    await until_true(all_wanted, 8.0)


# updates without a gap


async def test_an_update_is_answered_by_the_old_revision_until_the_new_one_lands(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready(2)
        await gateway.becomes("alpha", "ready")
        old = await digest(gateway, "alpha")
        for sim in fleet.all:
            sim.inject(load_status=503)
        new = await replaced(gateway, tmp_path, "alpha", 1)
        await until(lambda: all(len(loads(sim, "alpha")) >= 2 for sim in fleet.all), 8.0)
        for _ in range(4):
            assert revision(await asyncio.wait_for(gateway.chat("alpha"), 5.0)) == old, "no waiting while the old one serves"
        for sim in fleet.all:
            sim.inject(load_status=None)
        await answers(gateway, "alpha", new)
        await gateway.becomes("alpha", "ready")

        async def old_is_gone() -> bool:
            return all(old not in held for row in (await gateway.status())["replicas"] for held in row["held"])

        await until_true(old_is_gone, 8.0)


async def test_a_new_revision_that_the_replicas_refuse_leaves_the_old_one_serving_also_after_a_restart(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1, max_lora_rank=16) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        old = await digest(gateway, "alpha")
        put(tmp_path, "alpha", 1, rank=64)
        await gateway.becomes("alpha", "rejected")
        row = await gateway.adapter("alpha")
        assert row is not None
        assert "max_lora_rank" in row["reason"] and f"{old} goes on serving" in row["reason"]
        for _ in range(4):
            assert revision(await gateway.chat("alpha")) == old
        assert (await gateway.chat(f"alpha@{row['revision']}")).json()["error"]["code"] == "adapter_rejected"
        fleet.all[0].kill()
        await fleet.all[0].start()
        assert revision(await gateway.chat("alpha")) == old
        new = await replaced(gateway, tmp_path, "alpha", 2)
        await answers(gateway, "alpha", new)
        await gateway.becomes("alpha", "ready")


async def test_a_new_revision_that_one_replica_refuses_is_served_where_it_works(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1, max_lora_rank=16) as fleet:
        able = await fleet.start(max_lora_rank=64)
        async with running(tmp_path, *fleet.all) as gateway:
            await gateway.ready(2)
            await gateway.becomes("alpha", "ready")
            put(tmp_path, "alpha", 1, rank=64)
            await gateway.becomes("alpha", "partial")

            async def only_there() -> bool:
                rows = [await gateway.chat("alpha") for _ in range(4)]
                return all(row.headers["x-lora-gateway-replica"] == Address.parse(able.url).id for row in rows)

            await until_true(only_there, 8.0)


async def test_an_invalid_update_leaves_the_old_revision_serving_and_says_why(tmp_path: Path) -> None:
    folder = put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        old = await digest(gateway, "alpha")
        broken = folder / "adapter_config.json.new"
        broken.write_text("[]")
        broken.rename(folder / "adapter_config.json")

        async def told() -> bool:
            row = await gateway.adapter("alpha")
            return row is not None and "new files are invalid" in row["reason"]

        await until_true(told, 8.0)
        assert revision(await gateway.chat("alpha")) == old


async def test_a_stream_ends_on_the_revision_it_began_with(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        sim = fleet.all[0]
        old_text = await gateway.text("alpha")
        old = await digest(gateway, "alpha")
        sim.inject(token_seconds=0.25)
        body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True}
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as stream:
            assert stream.headers["x-lora-gateway-revision"] == old
            new = await replaced(gateway, tmp_path, "alpha", 1)
            await until(lambda: len(loads(sim, "alpha")) == 2)
            lines = [line[6:] async for line in stream.aiter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        pieces = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines[:-1]]
        assert "".join(pieces) == old_text
        sim.inject(token_seconds=0.0)
        await answers(gateway, "alpha", new)


# pins


async def pin(gateway: Running, name: str, **body: Any) -> httpx.Response:
    return await gateway.client.post(f"/admin/adapters/{name}/pin", json=body or None)


async def test_a_pin_is_a_rollback_in_one_call_and_new_files_do_not_change_it(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(2) as fleet, running(tmp_path, *fleet.all, unload_linger=0.1) as gateway:
        await gateway.ready(2)
        await gateway.becomes("alpha", "ready")
        first = await digest(gateway, "alpha")
        second = await replaced(gateway, tmp_path, "alpha", 1)
        await answers(gateway, "alpha", second)
        answer = await pin(gateway, "alpha", revision=first)
        assert answer.json() == {"ok": True, "revision": first}
        await answers(gateway, "alpha", first)
        row = await gateway.adapter("alpha")
        assert row is not None and row["pinned"] and row["revision"] == first
        put(tmp_path, "alpha", 2)
        await gateway.client.post("/admin/scan")
        await answers(gateway, "alpha", first)
        assert (await gateway.client.post("/admin/adapters/alpha/unpin")).json() == {"ok": True}

        async def newest() -> bool:
            return await digest(gateway, "alpha") not in (first, second)

        await until_true(newest, 8.0)
        await answers(gateway, "alpha", await digest(gateway, "alpha"))


async def test_a_pin_is_followed_by_every_gateway_and_by_one_that_starts_later(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet:
        async with running(tmp_path, *fleet.all) as one, running(tmp_path, *fleet.all) as two:
            await one.becomes("alpha", "ready")
            first = await digest(one, "alpha")
            second = await replaced(one, tmp_path, "alpha", 1)
            await answers(two, "alpha", second)
            assert (await pin(one, "alpha", revision=first)).status_code == 200
            await answers(two, "alpha", first)
        assert yaml.safe_load((tmp_path / ".lora-gateway/state.yaml").read_text()) == {"pins": {"alpha": first}}
        async with running(tmp_path, *fleet.all) as later:
            await answers(later, "alpha", first)
            listed = (await later.client.get("/v1/models/alpha")).json()
            assert listed["revision"] == first


async def test_a_pinned_name_whose_folder_is_gone_is_unknown(tmp_path: Path) -> None:
    folder = put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        assert (await pin(gateway, "alpha")).status_code == 200
        folder.rename(tmp_path / ".gone")

        async def unknown() -> bool:
            return (await gateway.chat("alpha")).status_code == 404

        await until_true(unknown, 8.0)


async def test_a_pin_that_cannot_be_kept_is_refused_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet:
        async with running(tmp_path, *fleet.all) as gateway:
            await gateway.becomes("alpha", "ready")
            current = await digest(gateway, "alpha")
            unknown = await pin(gateway, "alpha", revision="0123456789ab")
            assert unknown.status_code == 409
            assert f"Stored: {current}" in unknown.json()["error"]["message"]
            assert (await pin(gateway, "beta")).status_code == 404
            for body in ({"revision": "../../etc"}, {"revision": 7}, {"revision": "0123456789ab/.."}):
                assert (await pin(gateway, "alpha", **body)).status_code == 400
            (tmp_path / ".lora-gateway/state.yaml").write_text("pins: [what]")
            wrong = await pin(gateway, "alpha")
            assert (wrong.status_code, "state.yaml must hold" in wrong.text) == (409, True)
        async with running(tmp_path, *fleet.all, snapshots="off") as gateway:
            await gateway.becomes("alpha", "ready")
            assert "--snapshots" in (await pin(gateway, "alpha")).json()["error"]["message"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_pin_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        home = tmp_path / ".lora-gateway"
        home.chmod(0o555)
        try:
            assert "Permission denied" in (await pin(gateway, "alpha")).json()["error"]["message"]
        finally:
            home.chmod(0o755)


# a revision by its name


async def test_a_stored_revision_is_loaded_when_a_client_names_it_and_stays_while_it_is_used(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all, unload_linger=0.4) as gateway:
        sim = fleet.all[0]
        await gateway.becomes("alpha", "ready")
        first = await digest(gateway, "alpha")
        first_text = await gateway.text("alpha")
        second = await replaced(gateway, tmp_path, "alpha", 1)
        await gateway.becomes("alpha", "ready")
        await until(lambda: any(call.body["lora_name"] == "alpha" for call in sim.journal.unloads()), 8.0)
        assert await gateway.text(f"alpha@{first}") == first_text
        assert revision(await gateway.chat("alpha")) == second
        unloads = len(sim.journal.unloads())
        for _ in range(12):  # longer than the linger time and two scans
            assert revision(await gateway.chat(f"alpha@{first}")) == first
            await gateway.client.post("/admin/scan")
            await asyncio.sleep(0.1)
        assert len(sim.journal.unloads()) == unloads
        await until(lambda: len(sim.journal.unloads()) > unloads, 8.0, "unloaded when nobody uses it any more")


async def test_a_revision_that_is_stored_nowhere_is_unknown_and_costs_no_load(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("alpha", "ready")
        for name in ("alpha@0123456789ab", "beta@0123456789ab", "alpha@", "../alpha@0123456789ab"):
            answer = await gateway.chat(name)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert loads(fleet.all[0], "alpha") == ["alpha"]


# aliases


def alias(adapters: Path, text: str) -> None:
    aside = adapters / ".aliases.new"
    aside.write_text(text)
    aside.rename(adapters / "aliases.yaml")


async def follows(gateway: Running, *names: str) -> None:
    async def known() -> bool:
        return sorted((await gateway.status())["gateway"]["aliases"]) == sorted(names)

    await until_true(known, 8.0)


async def test_an_alias_answers_under_its_own_name_and_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "chat-v1")
    put(tmp_path, "chat-v2", 1)
    alias(tmp_path, "chat: chat-v1\n")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("chat-v2", "ready")
        assert await gateway.text("chat") == await gateway.text("chat-v1")
        assert (await gateway.client.get("/v1/models/chat")).json()["root"] == "chat-v1"
        alias(tmp_path, "chat: chat-v2\n")
        wanted = await digest(gateway, "chat-v2")
        await answers(gateway, "chat", wanted)


async def test_a_canary_splits_by_weight_and_a_session_stays_on_its_arm(tmp_path: Path) -> None:
    put(tmp_path, "sql-v1")
    put(tmp_path, "sql-v2", 1)
    alias(tmp_path, "sql: {sql-v1: 90, sql-v2: 10}\n")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("sql-v1", "ready")
        await gateway.becomes("sql-v2", "ready")
        arms = {await digest(gateway, "sql-v1"): "sql-v1", await digest(gateway, "sql-v2"): "sql-v2"}

        async def arm(**more: Any) -> str:
            body = {"model": "sql", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **more.pop("body", {})}
            return arms[revision(await gateway.client.post("/v1/chat/completions", json=body, **more))]

        by_header = [{await arm(headers={"x-session-id": f"s{n}"}) for _ in range(3)} for n in range(60)]
        by_user = [{await arm(body={"user": f"u{n}"}) for _ in range(3)} for n in range(60)]
        assert all(len(seen) == 1 for seen in by_header + by_user)
        canaries = sum("sql-v2" in seen for seen in by_header + by_user)
        assert 2 <= canaries <= 35, "about 12 of 120"
        assert {await arm() for _ in range(100)} == {"sql-v1", "sql-v2"}


async def test_an_arm_is_taken_only_when_it_is_held(tmp_path: Path) -> None:
    put(tmp_path, "sql-v1")
    alias(tmp_path, "sql: {sql-v1: 1, sql-v2: 1000}\n")
    async with replicas(1, max_lora_rank=16) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("sql-v1", "ready")
        first = await digest(gateway, "sql-v1")
        assert revision(await gateway.chat("sql")) == first, "the other one does not exist"
        put(tmp_path, "sql-v2", 1, rank=64)
        await gateway.becomes("sql-v2", "rejected")
        assert revision(await gateway.chat("sql")) == first, "the other one is refused"
        put(tmp_path, "sql-v2", 2)
        await gateway.becomes("sql-v2", "ready")
        assert {revision(await gateway.chat("sql", user=f"u{n}")) for n in range(20)} != {first}


async def test_wrong_aliases_are_told_and_leave_the_last_good_ones(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    alias(tmp_path, "one: alpha\n")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await follows(gateway, "one")
        for text in ("one: [alpha]", "one: {alpha: -1}", "one: {alpha: yes}", "{", "one: two\ntwo: alpha", "- one", "1: alpha"):
            alias(tmp_path, text)

            async def told() -> bool:
                return bool((await gateway.status())["gateway"]["aliases_reason"])

            await until_true(told, 8.0)
            assert revision(await gateway.chat("one"))
            alias(tmp_path, "one: alpha\n")
            await until_true(lambda: _not(told), 8.0)
        alias(tmp_path, "alpha: nothing\nother: nothing\n")
        await follows(gateway, "alpha", "other")
        assert (await gateway.chat("alpha")).status_code == 200, "an adapter wins over an alias of its name"
        lost = await gateway.chat("other")
        assert (lost.status_code, "leads to nothing" in lost.text) == (404, True)
        (tmp_path / "aliases.yaml").unlink()
        await follows(gateway)
        assert (await gateway.chat("other")).status_code == 404


async def _not(told: Any) -> bool:
    return not await told()


# strikes


async def revived(gateway: Running, *sims: Sim) -> None:
    """Replicas that died are started again, as a restart policy does."""
    for sim in sims:
        if not sim.healthy:
            await until(sim.exited.is_set)
            await sim.start()
    await gateway.ready(len(sims))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("how", ["kill", "engine"])
async def test_poison_an_adapter_that_took_two_replicas_down_is_quarantined(tmp_path: Path, how: str, stream: bool) -> None:
    put(tmp_path, "poison")
    put(tmp_path, "good", 1)
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready(2)
        await gateway.becomes("poison", "ready")
        await gateway.becomes("good", "ready")
        for sim in fleet.all:
            sim.inject(die_on_request=how, names=("poison",))

        async def convicted() -> bool:
            await revived(gateway, *fleet.all)
            try:
                return (await gateway.chat("poison", stream=stream)).status_code == 400
            except httpx.RemoteProtocolError:  # the stream was cut
                return False

        await until_true(convicted, 10.0)
        refused = (await gateway.chat("poison")).json()["error"]
        assert refused["code"] == "adapter_quarantined"
        assert "poison" in refused["message"] and "retry" in refused["message"]
        await revived(gateway, *fleet.all)
        assert await gateway.state("poison") == "quarantined"
        assert await gateway.metric("lora_gateway_quarantines_total") == 1
        assert (await gateway.chat("good")).status_code == 200
        assert (await gateway.chat("base-a")).status_code == 200
        for sim in fleet.all:
            sim.inject(die_on_request=None, names=None)
        assert (await gateway.client.post("/admin/adapters/poison/retry")).status_code == 200
        assert (await gateway.chat("poison")).status_code == 200
        await gateway.becomes("poison", "ready")


async def test_poison_other_bytes_end_a_quarantine(tmp_path: Path) -> None:
    put(tmp_path, "poison")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.becomes("poison", "ready")
        fleet.all[0].inject(die_on_request="engine", names=("poison",))

        async def convicted() -> bool:
            await revived(gateway, *fleet.all)
            return (await gateway.chat("poison")).status_code == 400

        await until_true(convicted, 10.0)
        await revived(gateway, *fleet.all)
        fleet.all[0].inject(die_on_request=None, names=None)
        await replaced(gateway, tmp_path, "poison", 1)
        await gateway.becomes("poison", "ready")
        assert (await gateway.chat("poison")).status_code == 200


async def test_poison_replicas_that_are_killed_under_load_convict_no_adapter(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready(2)
        await gateway.becomes("alpha", "ready")
        stop = asyncio.Event()

        async def ask() -> list[int]:
            seen = []
            while not stop.is_set():
                seen.append((await gateway.chat("alpha")).status_code)
            return seen

        for sim in fleet.all:
            sim.inject(token_seconds=0.005)
        clients = [asyncio.create_task(ask()) for _ in range(8)]
        stations = gateway.gateway.registry.stations
        try:
            for number in range(6):
                sim = fleet.all[number % 2]
                station, now = stations[Address.parse(sim.url).id], time.monotonic()
                await until(lambda s=station, now=now: any(at > now for at in s.answered.values()))  # type: ignore[misc]
                await until(lambda sim=sim: sim.running > 0)  # type: ignore[misc]
                sim.kill()
                await sim.start()
                await gateway.ready(2)
        finally:
            stop.set()
            statuses = [status for seen in await asyncio.gather(*clients) for status in seen]
        assert 400 not in statuses
        assert await gateway.metric("lora_gateway_quarantines_total") == 0


async def test_poison_after_a_while_one_trial_request_may_end_the_quarantine(tmp_path: Path) -> None:
    put(tmp_path, "poison")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        gateway.gateway.registry.strikes.trial_after = 1.0
        await gateway.becomes("poison", "ready")
        fleet.all[0].inject(die_on_request="kill", names=("poison",))

        async def convicted() -> bool:
            await revived(gateway, *fleet.all)
            return (await gateway.chat("poison")).status_code == 400

        await until_true(convicted, 10.0)
        await revived(gateway, *fleet.all)
        fleet.all[0].inject(die_on_request=None, names=None)

        async def acquitted() -> bool:
            return (await gateway.chat("poison")).status_code == 200

        await until_true(acquitted, 10.0)
        await gateway.becomes("poison", "ready")


# cases of operators that span the whole life of a fleet


async def test_inplace_flag_no_load_ever_carries_it(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all) as gateway:
        sim = fleet.all[0]
        await gateway.becomes("alpha", "ready")
        sim.kill()
        await sim.start()
        await until(lambda: len(loads(sim, "alpha")) == 2, 8.0)
        await replaced(gateway, tmp_path, "alpha", 1)
        await until(lambda: len(loads(sim, "alpha")) == 3, 8.0)
        assert all(call.body.keys() == {"lora_name", "lora_path"} for call in sim.journal.loads())


async def test_never_heals_a_fleet_that_failed_everybody_serves_again_by_itself(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(1) as fleet, running(tmp_path, *fleet.all, first_byte_timeout=1.0) as gateway:
        sim = fleet.all[0]
        await gateway.becomes("alpha", "ready")
        sim.inject(status=503)
        refused = await asyncio.gather(*(gateway.chat("alpha") for _ in range(300)))
        assert {answer.status_code for answer in refused} == {503}
        sim.inject(status=None, hang=True)
        late = await asyncio.gather(*(gateway.chat("alpha") for _ in range(50)))
        assert {answer.status_code for answer in late} <= {502, 503, 504}
        sim.heal()

        async def serves() -> bool:
            return (await gateway.chat("alpha")).status_code == 200

        await until_true(serves, 8.0)
        assert await gateway.metric(f'lora_gateway_inflight_requests{{replica="{Address.parse(sim.url).id}"}}') == 0


async def test_retry_forever_a_failing_replica_backs_off_and_the_other_one_serves_at_once(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(2) as fleet:
        bad, good = fleet.all
        bad.inject(load_status=500, load_body="the disk is full")
        async with running(tmp_path, *fleet.all) as gateway:
            await gateway.ready(2)
            for _ in range(50):
                answer = await gateway.chat("alpha")
                assert answer.status_code == 200, answer.text
                assert answer.headers["x-lora-gateway-replica"] == Address.parse(good.url).id
            await gateway.becomes("alpha", "partial")
            row = await gateway.adapter("alpha")
            assert row is not None and "the disk is full" in row["replicas"][Address.parse(bad.url).id]["reason"]
            assert len(loads(bad, "alpha")) <= 3


async def test_terminating_pod_a_rolling_update_of_all_replicas_is_no_error_for_anybody(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    async with replicas(3, token_seconds=0.002) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready(3)
        await gateway.becomes("alpha", "ready")
        stop = asyncio.Event()
        seen: list[httpx.Response] = []

        async def ask(model: str) -> None:
            while not stop.is_set():
                seen.append(await gateway.chat(model, stream=model == "alpha"))

        clients = [asyncio.create_task(ask(model)) for model in ("alpha", "alpha", "base-a", "alpha")]
        try:
            for sim in fleet.all:
                here = f"/admin/replicas/{Address.parse(sim.url).id}"
                assert (await gateway.client.post(f"{here}/drain")).status_code == 200
                await gateway.ready(2)
                sim.options = dataclasses.replace(sim.options, shutdown_timeout=5.0)
                await sim.terminate()
                await sim.start()
                assert (await gateway.client.post(f"{here}/undrain")).status_code == 200
                await gateway.ready(3)
                await gateway.becomes("alpha", "ready")
        finally:
            stop.set()
            await asyncio.gather(*clients)
        assert {answer.status_code for answer in seen} == {200}
        assert all("[DONE]" in answer.text for answer in seen if "text/event-stream" in answer.headers["content-type"])


async def test_rename_folder_under_load_is_served_under_the_new_name_and_unknown_under_the_old(tmp_path: Path) -> None:
    folder = put(tmp_path, "alpha")
    async with replicas(2) as fleet, running(tmp_path, *fleet.all) as gateway:
        await gateway.ready(2)
        await gateway.becomes("alpha", "ready")
        folder.rename(tmp_path / "beta")
        statuses: set[tuple[str, int]] = set()

        async def moved() -> bool:
            old, new = await asyncio.gather(gateway.chat("alpha"), gateway.chat("beta"))
            statuses.update({("alpha", old.status_code), ("beta", new.status_code)})
            return (old.status_code, new.status_code) == (404, 200)

        await until_true(moved, 8.0)
        assert statuses <= {("alpha", 200), ("alpha", 404), ("beta", 404), ("beta", 200)}
        await gateway.becomes("beta", "ready")
        await gateway.becomes("alpha", None)
