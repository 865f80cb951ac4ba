"""A replica that answers /health while its engine hangs: one token is asked for, and silence takes it out of use."""

import time
from pathlib import Path

from gateway.control.pulse import REASON
from gateway.core.addresses import Address
from gateway.core.replica import Phase
from replica.sim import Sim
from tests.control.plane import Plane, running, sims
from tests.waiting import until

SILENCE = 0.3  # seconds


def owe(plane: Plane, sim: Sim) -> None:
    """Requests run there, and it gave its last byte long ago."""
    plane.registry.stations[Address.parse(sim.url).id].heard_at = time.monotonic() - 60.0


def asked(sim: Sim) -> int:
    return sum(call.path == "/v1/completions" for call in sim.journal.calls)


async def test_a_hung_engine_that_answers_health_is_taken_out_and_comes_back(tmp_path: Path) -> None:
    async with sims(1) as (sim,), running(Plane(tmp_path, sim, silence=SILENCE)) as plane:
        sim.inject(hang=True)
        owe(plane, sim)
        await until(lambda: plane.phase(sim) is Phase.DOWN)
        assert plane.replica(sim).reason == REASON
        sim.heal()
        await until(lambda: plane.phase(sim) is Phase.READY)


async def test_a_replica_that_is_only_slow_gives_its_token_and_stays(tmp_path: Path) -> None:
    async with sims(1) as (sim,), running(Plane(tmp_path, sim, silence=SILENCE)) as plane:
        owe(plane, sim)
        await until(lambda: asked(sim) >= 2)
        assert plane.phase(sim) is Phase.READY


async def test_a_replica_that_owes_nothing_or_gives_bytes_is_not_asked(tmp_path: Path) -> None:
    async with sims(2) as (quiet, busy), running(Plane(tmp_path, quiet, busy, silence=SILENCE)) as plane:
        station = plane.registry.stations[Address.parse(busy.url).id]
        end = time.monotonic() + 3 * SILENCE

        def over() -> bool:
            station.heard_at = time.monotonic()
            return time.monotonic() > end

        await until(over)
        assert (asked(quiet), asked(busy)) == (0, 0)
