"""Every fault that a simulated replica can show, as a client sees it."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from replica.sim import Faults, Sim
from replica.sim.options import parse_fault
from tests.contract.subject import Client, completion
from tests.replica.simulated import adapter, client_of
from tests.waiting import until


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with Sim() as sim:
        yield sim


@pytest.fixture
async def client(sim: Sim) -> AsyncIterator[Client]:
    async with client_of(sim) as client:
        yield client


async def test_a_frozen_engine_still_looks_healthy(sim: Sim, client: Client, tmp_path: Path) -> None:
    name = await client.loaded(adapter(tmp_path, "abc"))
    sim.inject(hang=True)
    for work in (client.complete(name), client.load("other", adapter(tmp_path))):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await work
    assert (await client.http.get("/health")).status_code == 200
    assert name in [entry["id"] for entry in await client.models()]
    sim.heal()
    assert await client.says(name, tokens=3) == "abc"
    await until(lambda: "other" in sim.loaded, what="the load whose client gave up")


@pytest.mark.parametrize(
    "fault, error", [("rst_after_chunks", httpx.ReadError), ("fin_after_chunks", httpx.RemoteProtocolError)]
)
async def test_a_stream_is_cut_after_some_chunks(sim: Sim, client: Client, fault: str, error: type[Exception]) -> None:
    sim.inject(**{fault: 3}, times=1)
    got: list[str] = []
    with pytest.raises(error):
        async with client.stream("tiny", 10) as lines:
            async for line in lines:
                got.append(line)
    assert len(got) == 3
    call = sim.journal.inference("tiny")[0]
    assert (call.chunks, call.cut, call.left) == (3, True, False)
    assert (await client.complete("tiny")).status_code == 200
    assert sim.faults == Faults()


@pytest.mark.parametrize("how, error", [("rst", httpx.ReadError), ("fin", httpx.RemoteProtocolError)])
async def test_a_connection_ends_before_the_answer(sim: Sim, client: Client, how: str, error: type[Exception]) -> None:
    sim.inject(close_before_answer=how)
    with pytest.raises(error):
        await client.complete("tiny")
    assert len(sim.journal.inference()) == 1


async def test_loads_are_refused_for_the_named_adapters_only(sim: Sim, client: Client, tmp_path: Path) -> None:
    sim.inject(load_status=503, load_body="<html>busy</html>", names=["bad"], times=2)
    folder = adapter(tmp_path, "abc")
    answer = await client.load("bad", folder)
    assert (answer.status_code, answer.text) == (503, "<html>busy</html>")
    assert answer.headers["content-type"].startswith("text/plain")
    assert (await client.load("good", folder)).status_code == 200
    assert (await client.load("bad", folder)).status_code == 503
    assert (await client.load("bad", folder)).status_code == 200
    assert [call.status for call in sim.journal.loads("bad")] == [503, 503, 200]


async def test_statuses_can_be_chosen(sim: Sim, client: Client, tmp_path: Path) -> None:
    name = await client.loaded(adapter(tmp_path))
    sim.inject(health_status=503, models_status=500, status=429, body='{"error":"slow down"}', unload_status=500)
    assert (await client.http.get("/health")).status_code == 503
    assert (await client.http.get("/v1/models")).status_code == 500
    answer = await client.complete("tiny")
    assert (answer.status_code, answer.json()) == (429, {"error": "slow down"})
    assert (await client.unload(name)).status_code == 500


@pytest.mark.parametrize("hidden, left", [("adapters", ["tiny"]), ("all", [])])
async def test_models_can_be_hidden(sim: Sim, client: Client, tmp_path: Path, hidden: str, left: list[str]) -> None:
    await client.loaded(adapter(tmp_path))
    sim.inject(hide_models=hidden)
    assert [entry["id"] for entry in await client.models()] == left


async def test_a_forgetful_replica_answers_404(sim: Sim, client: Client, tmp_path: Path) -> None:
    name = await client.loaded(adapter(tmp_path))
    sim.forget()
    assert (await client.complete(name)).status_code == 404


async def test_a_slow_load_stalls_the_streams(sim: Sim, client: Client, tmp_path: Path) -> None:
    sim.inject(load_seconds=0.3, token_seconds=0.01)
    loop = asyncio.get_running_loop()
    async with client.stream("tiny", 20) as lines:
        await anext(aiter(lines))
        load = asyncio.create_task(client.load("x", adapter(tmp_path)))
        gaps = [loop.time()]
        async for _ in lines:
            gaps.append(loop.time())
    assert (await load).status_code == 200
    assert max(b - a for a, b in itertools.pairwise(gaps)) > 0.2


async def test_the_first_byte_can_be_late(sim: Sim, client: Client) -> None:
    sim.inject(first_byte_seconds=0.3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await client.complete("tiny", tokens=2)
    assert loop.time() - began >= 0.3


async def test_a_kill_resets_every_connection(sim: Sim, client: Client) -> None:
    sim.inject(token_seconds=0.01)
    with pytest.raises(httpx.ReadError):
        async with client.stream("tiny", 1000) as lines:
            await anext(aiter(lines))
            sim.kill()
            async for _ in lines:
                pass
    with pytest.raises(httpx.ConnectError):
        await client.http.get("/health")
    assert sim.exited.is_set()
    port = sim.port
    await sim.start()
    assert sim.port == port and (await client.http.get("/health")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_can_kill_the_engine(sim: Sim, client: Client, stream: bool) -> None:
    sim.inject(die_on_request="engine", names=["tiny"], times=1)
    answer = await client.post("/v1/completions", completion("tiny", "x", 50, stream=stream))
    assert answer.status_code == (200 if stream else 500)
    assert "EngineCore encountered an issue" in answer.text
    await asyncio.wait_for(sim.exited.wait(), 3)


async def test_a_load_can_kill_the_process(sim: Sim, client: Client, tmp_path: Path) -> None:
    sim.inject(die_on_load="kill", load_seconds=1)
    with pytest.raises(httpx.ReadError):
        await client.load("x", adapter(tmp_path))
    assert sim.exited.is_set()


async def test_a_dead_replica_may_come_back_empty_by_itself(tmp_path: Path) -> None:
    async with Sim(restart_seconds=0.1) as sim, client_of(sim) as client:
        await client.loaded(adapter(tmp_path))
        before = sim.started_at
        sim.kill()
        await until(lambda: sim.healthy)
        assert not sim.loaded and sim.started_at > before


async def test_it_is_steered_and_read_over_http(sim: Sim, client: Client, tmp_path: Path) -> None:
    name = await client.loaded(adapter(tmp_path))
    faults = await client.post("/sim/faults", {"status": 500, "names": [name]})
    assert (faults.json()["status"], faults.json()["names"]) == (500, [name])
    assert (await client.complete(name)).status_code == 500
    assert (await client.http.delete("/sim/faults")).json()["status"] is None
    log = (await client.http.get("/sim/log")).json()
    assert [(call["path"], call["status"]) for call in log["calls"]] == [
        ("/v1/load_lora_adapter", 200), ("/v1/completions", 500),
    ]  # fmt: skip
    assert log["calls"][0]["body"]["lora_name"] == name
    await client.post("/sim/faults", {"forget": True})
    assert not sim.loaded
    await client.post("/sim/faults", {"die": "kill"})
    await asyncio.wait_for(sim.exited.wait(), 3)


@pytest.mark.parametrize(
    "changes",
    [{"hangs": True}, {"hang": 1}, {"status": "500"}, {"hide_models": "some"}, {"die": "softly"}, {"times": 1.5}],
)
async def test_a_fault_that_does_not_exist_is_refused(sim: Sim, client: Client, changes: dict[str, Any]) -> None:
    answer = await client.post("/sim/faults", changes)
    assert answer.status_code == 400 and next(iter(changes)) in answer.json()["detail"]
    assert sim.faults == Faults()


async def test_control_can_be_switched_off() -> None:
    async with Sim(control=False) as sim, client_of(sim) as client:
        assert (await client.post("/sim/faults", {"hang": True})).json() == {"detail": "Not Found"}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("hang=true", ("hang", True)),
        ("load_seconds=2", ("load_seconds", 2)),
        ("die_on_load=kill", ("die_on_load", "kill")),
        ('names=["a"]', ("names", ("a",))),
        ("load_body=12", ("load_body", "12")),
    ],
)
def test_faults_are_written_as_name_and_value(text: str, expected: tuple[str, object]) -> None:
    assert parse_fault(text) == expected


@pytest.mark.parametrize("text", ["hang", "hang=maybe", "nosuch=1"])
def test_a_fault_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fault|expected"):
        parse_fault(text)
