"""One replica is probed and looked at: its phases, its restarts, what it holds."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.core.replica import Phase
from replica.sim import Sim
from tests.control.plane import Plane, foreign_stream, names, running, unloaded
from tests.waiting import until


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with Sim(model_names=("base-a",)) as made:
        yield made


@pytest.fixture
def plane(tmp_path: Path, sim: Sim) -> Plane:
    return Plane(tmp_path, sim)


async def load_by_hand(sim: Sim, name: str, folder: Path) -> None:
    async with httpx.AsyncClient(base_url=sim.url, trust_env=False) as client:
        body = {"lora_name": name, "lora_path": str(folder)}
        assert (await client.post("/v1/load_lora_adapter", json=body)).status_code == 200


# phases


async def test_a_replica_that_is_coming_up_is_starting_and_never_down(tmp_path: Path) -> None:
    async with Sim(model_names=("base-a",), start_seconds=0.5, start_open=True) as sim:
        plane = Plane(tmp_path, sim)
        async with running(plane, ready=False):
            assert plane.phase(sim) is Phase.STARTING
            await plane.ready(sim)
            assert plane.kinds("phase") == ["starting -> ready"]


async def test_a_refused_connection_is_down_at_once_and_comes_back(plane: Plane, sim: Sim) -> None:
    async with running(plane):
        sim.kill()
        await until(lambda: plane.phase(sim) is Phase.DOWN, 1.0)
        assert "refused" in plane.replica(sim).reason
        await sim.start()
        await plane.ready(sim)


@dataclass
class Freezing:
    """A replica that takes connections and answers nothing from its next probe on: a stopped process."""

    url: str = ""
    freezes: bool = False
    frozen: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.frozen = self.frozen or (self.freezes and b"/health" in head)
        if not self.frozen:
            body = b'{"data": [{"id": "base-a"}]}' if b"/v1/models" in head else b""
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        else:
            await reader.read()  # until the other side gives up
        writer.close()


async def test_a_replica_that_answers_nothing_is_down_after_its_probes_whatever_else_is_due(tmp_path: Path) -> None:
    """Its model list, which has ten seconds, is not asked for in between."""
    replica = Freezing()
    async with await asyncio.start_server(replica.serve, "127.0.0.1", 0) as server:
        replica.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        plane = Plane(tmp_path, replica, drift_interval=0.01)
        async with running(plane):
            replica.freezes = True
            await until(lambda: plane.phase(replica) is Phase.DOWN, 6.0)


async def test_a_probe_that_fails_now_and_then_takes_nothing_out(plane: Plane, sim: Sim) -> None:
    async with running(plane):
        for _ in range(3):
            sim.inject(health_status=503)
            before = sim.journal.counts["GET /health"]
            await until(lambda seen=before: sim.journal.counts["GET /health"] > seen)  # type: ignore[misc]
            sim.heal()
            before = sim.journal.counts["GET /health"]
            await until(lambda seen=before: sim.journal.counts["GET /health"] > seen + 1)  # type: ignore[misc]
        assert plane.kinds("phase") == ["starting -> ready"]


async def test_probes_that_fail_in_a_row_take_it_out_until_one_is_good(plane: Plane, sim: Sim) -> None:
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        sim.inject(health_status=503)
        await until(lambda: plane.phase(sim) is Phase.DOWN)
        assert plane.replica(sim).reason == "/health answered 503"
        sim.heal()
        await plane.ready(sim)
        assert names(sim) == ["alpha"]  # the same process: it still holds it, and is not asked again


async def test_an_operator_drains_and_undrains(plane: Plane, sim: Sim) -> None:
    async with running(plane):
        replica = plane.replica(sim).id
        assert plane.controller.drain(replica, True)
        assert plane.phase(sim) is Phase.DRAINING
        plane.put("alpha")
        assert plane.controller.drain(replica, False)
        assert plane.phase(sim) is Phase.READY
        await plane.spread("alpha", sim)
        assert not plane.controller.drain("nobody:1", True)


async def test_a_drained_replica_stays_drained_over_a_restart(plane: Plane, sim: Sim) -> None:
    async with running(plane):
        plane.controller.drain(plane.replica(sim).id, True)
        sim.kill()
        await until(lambda: plane.phase(sim) is Phase.DOWN)
        await sim.start()
        await until(lambda: plane.phase(sim) is Phase.DRAINING)


async def test_terminating_pod_a_replica_that_says_so_takes_no_request_until_it_is_another_process(
    plane: Plane, sim: Sim
) -> None:
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        plane.controller.draining(plane.replica(sim).id)
        assert plane.phase(sim) is Phase.DRAINING
        before = sim.journal.counts["GET /v1/models"]
        await until(lambda: sim.journal.counts["GET /v1/models"] > before + 1)
        assert plane.phase(sim) is Phase.DRAINING
        sim.kill()
        await sim.start()
        await plane.ready(sim)
        await plane.spread("alpha", sim)


async def test_a_replica_without_a_base_model_is_not_ready(plane: Plane, sim: Sim) -> None:
    sim.inject(hide_models="all")
    async with running(plane, ready=False):
        await until(lambda: plane.replica(sim).reason == "it lists no base model")
        sim.heal()
        await plane.ready(sim)


@pytest.mark.parametrize("status", [401, 403])
async def test_replica_key_a_refused_key_is_told_and_healed(plane: Plane, sim: Sim, status: int) -> None:
    sim.inject(models_status=status)
    async with running(plane, ready=False):
        await until(lambda: plane.replica(sim).refuses_key)
        assert plane.phase(sim) is Phase.DOWN
        assert "credentials" in plane.replica(sim).reason
        sim.heal()
        await plane.ready(sim)
        assert not plane.replica(sim).refuses_key


async def test_a_model_list_that_fails_for_a_while_forgets_nothing(plane: Plane, sim: Sim) -> None:
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        sim.inject(models_status=500)
        before = sim.journal.counts["GET /v1/models"]
        await until(lambda: sim.journal.counts["GET /v1/models"] > before + 2)
        assert plane.holds(sim, "alpha")
        assert plane.phase(sim) is Phase.READY
        sim.heal()
        assert unloaded(sim) == []


# restarts and drift


async def test_restart_forgets_a_restart_between_two_probes_is_seen_by_the_start_time(tmp_path: Path, sim: Sim) -> None:
    plane = Plane(tmp_path, sim, drift_interval=0.2)
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        sim.kill()
        await sim.start()
        await until(lambda: names(sim) == ["alpha", "alpha"])
        await plane.spread("alpha", sim)
        assert list(sim.loaded) == ["alpha"]


async def test_drift_is_repaired_under_another_name_because_a_request_may_still_run(plane: Plane, sim: Sim) -> None:
    plane.put("alpha")
    async with running(plane), foreign_stream(sim, "base-a"):
        await plane.spread("alpha", sim)
        digest = plane.adapter("alpha").digest
        sim.forget()
        await until(lambda: list(sim.loaded) == [f"alpha@{digest}"])
        assert plane.kinds("drift") == ["it no longer holds them: alpha"]


async def test_drift_is_repaired_under_a_name_used_before_once_the_replica_runs_nothing(plane: Plane, sim: Sim) -> None:
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        for _ in range(3):
            sim.forget()
            await until(lambda: len(sim.loaded) == 1)
            await plane.spread("alpha", sim)


async def test_a_name_that_the_replica_denies_is_dropped_at_once_and_loaded_again(tmp_path: Path, sim: Sim) -> None:
    plane = Plane(tmp_path, sim, drift_interval=60.0)
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        sim.forget()
        plane.controller.forgotten(plane.replica(sim).id, "alpha")
        assert not plane.holds(sim, "alpha")
        await plane.spread("alpha", sim)
        assert len(sim.loaded) == 1


async def test_already_loaded_what_a_restarted_gateway_finds_is_not_loaded_again(tmp_path: Path, sim: Sim) -> None:
    first = Plane(tmp_path, sim)
    first.put("alpha")
    async with running(first):
        await first.spread("alpha", sim)
    second = Plane(tmp_path, sim)
    async with running(second):
        await second.spread("alpha", sim)
        assert names(sim) == ["alpha"]


async def test_what_was_loaded_by_hand_from_elsewhere_is_left_alone(plane: Plane, sim: Sim) -> None:
    async with running(plane):
        folder = plane.put("alpha")
        await plane.spread("alpha", sim)
        await load_by_hand(sim, "byhand", folder)
        await until(lambda: "byhand" in plane.replica(sim).seen.static)
        before = sim.journal.counts["GET /v1/models"]
        await until(lambda: sim.journal.counts["GET /v1/models"] > before + 2)
        assert unloaded(sim) == []
