"""The whole control plane: replicas come and go, all get every adapter, and no more of them load at once than may."""

import shutil
from pathlib import Path
from time import monotonic

from gateway.core.replica import Phase
from replica.sim import Sim
from tests.control.plane import Plane, names, running, sims, unloaded
from tests.waiting import until

# replicas come and go


async def test_scale_up_missing_a_replica_that_joins_gets_everything_and_the_others_are_left_alone(tmp_path: Path) -> None:
    async with sims(2) as (old, new):
        plane = Plane(tmp_path, old)
        for seed, name in enumerate(("alpha", "beta")):
            plane.put(name, seed=seed)
        async with running(plane):
            for name in ("alpha", "beta"):
                await plane.spread(name, old)
            plane.source.choose(old, new)
            await plane.ready(new)
            for name in ("alpha", "beta"):
                await plane.spread(name, new)
            assert sorted(names(new)) == ["alpha", "beta"]
            assert sorted(names(old)) == ["alpha", "beta"]


async def test_one_name_many_pods_an_address_that_leaves_is_asked_nothing_more(tmp_path: Path) -> None:
    async with sims(2) as (one, other):
        plane = Plane(tmp_path, one, other)
        async with running(plane):
            plane.source.choose(one)
            await until(lambda: len(plane.registry.stations) == 1)
            await until(lambda: other.connections == 0)
            other.journal.clear()
            before = one.journal.counts["GET /health"]
            await until(lambda: one.journal.counts["GET /health"] > before + 5)
            assert not other.journal.counts
            assert plane.kinds("replica_left") == [""]


async def test_a_replica_that_leaves_during_a_load_gives_its_turn_back(tmp_path: Path) -> None:
    async with sims(2, load_seconds=0.3) as (one, other):
        plane = Plane(tmp_path, one, other)
        plane.put("alpha")
        async with running(plane):
            await until(lambda: bool(names(one) or names(other)))
            leaving, staying = (one, other) if names(one) else (other, one)
            plane.source.choose(staying)
            await plane.spread("alpha", staying)
            await until(lambda: repr(plane.budget).startswith("<LoadBudget 0 of 1 running, 0"))
            await until(lambda: leaving.connections == 0)


async def test_a_replica_that_comes_back_to_discovery_is_known_by_what_it_holds(tmp_path: Path) -> None:
    async with sims(2) as (one, other):
        plane = Plane(tmp_path, one, other)
        plane.put("alpha")
        async with running(plane):
            await plane.spread("alpha", one, other)
            plane.source.choose(one)
            await until(lambda: len(plane.registry.stations) == 1)
            plane.source.choose(one, other)
            await plane.ready(one, other)
            await plane.spread("alpha", one, other)
            assert names(other) == ["alpha"]


async def test_one_replica_that_is_away_holds_up_nobody(tmp_path: Path) -> None:
    async with sims(2) as (one, other):
        other.kill()
        plane = Plane(tmp_path, one, other)
        plane.put("alpha")
        async with running(plane, ready=False):
            await plane.ready(one)
            await plane.spread("alpha", one)
            assert plane.phase(other) is Phase.DOWN
            await other.start()
            await plane.ready(other)
            await plane.spread("alpha", other)


async def test_two_base_models_each_replica_gets_the_adapters_of_its_own(tmp_path: Path) -> None:
    async with sims(1) as (one,), sims(1, model_names=("other-b",)) as (other,):
        plane = Plane(tmp_path, one, other)
        plane.put("alpha", base_model="base-a")
        plane.put("beta", seed=1, base_model="org/other-b")
        async with running(plane):
            await plane.spread("alpha", one)
            await plane.spread("beta", other)
            assert (names(one), names(other)) == (["alpha"], ["beta"])


async def test_two_base_models_an_adapter_leaves_the_wrong_one_when_its_own_joins(tmp_path: Path) -> None:
    """While a fleet has one base model, a name that differs is tried; with its own base there it is nowhere else."""
    async with sims(1) as (one,), sims(1, model_names=("other-b",)) as (other,):
        plane = Plane(tmp_path, one)
        plane.put("beta", base_model="org/other-b")
        async with running(plane):
            await plane.spread("beta", one)
            plane.source.choose(one, other)
            await plane.ready(other)
            await plane.spread("beta", other)
            assert plane.lease("beta").replica == plane.replica(other).id
            assert plane.lease("beta").replica == plane.replica(other).id
            await until(lambda: not one.loaded)
            assert plane.holds(other, "beta")


# the budget of loads that nobody waits for


async def test_at_most_a_quarter_of_the_fleet_loads_in_the_background(tmp_path: Path) -> None:
    async with sims(8, load_seconds=0.05) as fleet:
        plane = Plane(tmp_path, *fleet)
        for seed in range(3):
            plane.put(f"a{seed}", seed=seed)
        async with running(plane):
            for seed in range(3):
                await plane.spread(f"a{seed}", *fleet, seconds=10.0)
            assert busiest(fleet) <= 2
            assert all(sorted(names(sim)) == ["a0", "a1", "a2"] for sim in fleet)


def busiest(fleet: list[Sim]) -> int:
    """The most loads that ran at once in the fleet."""
    steps = []
    for sim in fleet:
        for call in sim.journal.loads():
            assert call.ended_at is not None
            steps += [(call.at, 1), (call.ended_at, -1)]
    running_now = most = 0
    for _, step in sorted(steps):
        running_now += step
        most = max(most, running_now)
    return most


async def test_first_use_stampede_what_a_request_waits_for_goes_first_and_on_two_replicas_at_once(tmp_path: Path) -> None:
    async with sims(4, load_seconds=0.2) as fleet:
        plane = Plane(tmp_path, *fleet)
        for seed in range(10):
            plane.put(f"a{seed}", seed=seed)
        async with running(plane):
            begun = monotonic()
            revision = plane.demand("a9")
            await until(lambda: sum(plane.holds(sim, "a9") for sim in fleet) >= 2)
            assert monotonic() - begun < 1.5  # the ten of each replica would take eight seconds
            plane.registry.demand.clear()
            assert revision == plane.current("a9")
            assert all(names(sim).count("a9") <= 1 for sim in fleet)


async def test_preload_none_loads_what_is_asked_for_and_nothing_else(tmp_path: Path) -> None:
    async with sims(3) as fleet:
        plane = Plane(tmp_path, *fleet, preload=0)
        for seed, name in enumerate(("alpha", "beta")):
            plane.put(name, seed=seed)
        async with running(plane):
            plane.demand("alpha")
            await until(lambda: sum(plane.holds(sim, "alpha") for sim in fleet) == 2)
            plane.registry.demand.clear()
            assert plane.controller.load("beta")
            await plane.spread("beta", *fleet)
            assert sum(len(names(sim, "alpha")) for sim in fleet) == 2


async def test_what_an_operator_asks_of_a_name_that_is_none_is_denied(tmp_path: Path) -> None:
    async with sims(1) as (sim,):
        plane = Plane(tmp_path, sim)
        async with running(plane):
            assert not plane.controller.load("nobody")
            assert not plane.controller.retry("nobody")


# snapshots that nobody uses


async def test_snapshots_stay_while_no_replica_is_known_or_one_cannot_be_seen(tmp_path: Path) -> None:
    async with sims(2) as (one, other):
        plane = Plane(tmp_path, one, other)
        async with running(plane):
            assert await plane.controller._look_all(2.0)
            other.inject(models_status=500)
            assert not await plane.controller._look_all(0.3)
            plane.source.choose()
            await until(lambda: not plane.registry.stations)
            assert not await plane.controller._look_all(0.3)


# hundreds


async def test_a_hundred_adapters_reach_every_replica_and_a_removal_too(tmp_path: Path) -> None:
    async with sims(4) as fleet:
        plane = Plane(tmp_path, *fleet)
        for seed in range(50):
            plane.put(f"team/a{seed:02}", seed=seed)
        async with running(plane):
            await until(lambda: all(len(sim.loaded) == 50 for sim in fleet), 15.0)
            shutil.rmtree(tmp_path / "team")
            await until(lambda: all(not sim.loaded for sim in fleet), 15.0)
            assert all(len(names(sim)) == len(unloaded(sim)) == 50 for sim in fleet)


async def test_a_hanging_replica_does_not_keep_the_control_plane_from_ending(tmp_path: Path) -> None:
    async with sims(1) as (sim,):
        plane = Plane(tmp_path, sim)
        plane.put("alpha")
        sim.inject(hang=True)
        async with running(plane):
            await until(lambda: names(sim) == ["alpha"])
            begun = monotonic()
        assert monotonic() - begun < 1.0
