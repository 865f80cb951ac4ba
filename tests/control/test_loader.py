"""Loads and unloads on one replica: what each answer leads to, under which names, when something is unloaded."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from gateway.core.replica import FailureKind, LoraSupport, Phase
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


# what a load is answered


async def test_bad_blocks_good_a_failing_load_backs_off_and_stops_no_other(plane: Plane, sim: Sim) -> None:
    sim.inject(load_status=503, names=("a-bad",))
    plane.put("a-bad")
    plane.put("b-good", seed=1)
    async with running(plane):
        await plane.spread("b-good", sim)
        await until(lambda: len(names(sim, "a-bad")) == 3, 6.0)
        times = [call.at for call in sim.journal.loads("a-bad")]
        assert times[1] - times[0] >= 0.9
        assert times[2] - times[1] >= 1.8
        revision = plane.adapter("a-bad").revision
        await until(lambda: plane.replica(sim).failures[revision].attempts == 3)
        assert plane.replica(sim).failures[revision].kind is FailureKind.ERROR


async def test_a_failure_that_passes_is_forgotten_and_does_not_use_up_the_plain_name(plane: Plane, sim: Sim) -> None:
    sim.inject(load_status=503, times=1)
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        assert names(sim) == ["alpha", "alpha"]
        assert plane.replica(sim).failures == {}


async def test_rank_too_big_a_verdict_is_asked_for_once_until_the_bytes_change(plane: Plane, sim: Sim) -> None:
    plane.put("big", rank=64)
    async with running(plane):
        await until(lambda: plane.current("big") in plane.replica(sim).failures)
        failure = plane.replica(sim).failures[plane.adapter("big").revision]
        assert failure.kind is FailureKind.REJECTED
        assert "rank" in failure.reason
        plane.demand("big")
        before = sim.journal.counts["GET /health"]
        await until(lambda: sim.journal.counts["GET /health"] > before + 20)
        assert names(sim) == ["big"]
        plane.put("big", rank=8)
        await plane.spread("big", sim)
        assert len(names(sim)) == 2


async def test_rank_too_big_a_verdict_ends_with_the_process_and_with_an_operators_wish(plane: Plane, sim: Sim) -> None:
    plane.put("big", rank=64)
    async with running(plane):
        await until(lambda: plane.current("big") in plane.replica(sim).failures)
        assert plane.controller.retry("big")
        await until(lambda: len(names(sim)) == 2)
        await until(lambda: plane.current("big") in plane.replica(sim).failures)
        sim.kill()
        sim.options = replace(sim.options, max_lora_rank=64)
        await sim.start()
        await plane.spread("big", sim)


async def test_endpoint_off_is_asked_again_once_per_drift_interval(tmp_path: Path) -> None:
    async with Sim(model_names=("base-a",), runtime_lora=False) as sim:
        plane = Plane(tmp_path, sim, drift_interval=0.5)
        for seed in range(3):
            plane.put(f"a{seed}", seed=seed)
        async with running(plane):
            begun = monotonic()
            await until(lambda: plane.replica(sim).lora is LoraSupport.UNSUPPORTED)
            revision = plane.demand("a0")
            await until(lambda: monotonic() - begun > 2.0)
            assert 2 <= len(names(sim)) <= 2 + 2.0 / 0.5
            assert plane.replica(sim).ready
            del plane.registry.demand[revision]


async def test_slow_load_a_late_yes_is_observed_and_not_asked_for_again(tmp_path: Path, sim: Sim) -> None:
    plane = Plane(tmp_path, sim)
    plane.load_timeout = 0.3
    sim.inject(load_seconds=0.8)
    plane.put("alpha")
    async with running(plane):
        await until(lambda: bool(plane.replica(sim).failures))
        assert plane.replica(sim).failures[plane.adapter("alpha").revision].kind is FailureKind.TIMEOUT
        await plane.spread("alpha", sim)
        assert plane.replica(sim).failures == {}
        assert names(sim) == ["alpha"]


async def test_permissions_a_path_that_the_replica_does_not_see_is_missing_and_tried_again(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    async with Sim(model_names=("base-a",), adapter_dirs=(mounted,)) as sim:
        plane = Plane(tmp_path / "here", sim)
        plane.put("alpha")
        async with running(plane):
            await until(lambda: len(names(sim)) >= 2)
            failure = plane.replica(sim).failures[plane.adapter("alpha").revision]
            assert failure.kind is FailureKind.MISSING


async def test_a_replica_that_dies_while_it_loads_is_down_and_loaded_again_when_it_is_back(plane: Plane, sim: Sim) -> None:
    sim.inject(die_on_load="kill", times=1)
    plane.put("alpha")
    async with running(plane):
        await until(lambda: sim.exited.is_set())
        await until(lambda: plane.phase(sim) is Phase.DOWN)
        sim.heal()
        await sim.start()
        await plane.spread("alpha", sim)


# names


async def test_same_name_new_weights_are_loaded_beside_the_old_ones_which_go_after_the_linger(plane: Plane, sim: Sim) -> None:
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        digest = await plane.replace("alpha", 9)
        await plane.spread("alpha", sim)
        assert list(sim.loaded) == ["alpha", f"alpha@{digest}"]
        await until(lambda: len(sim.loaded) == 1)
        assert unloaded(sim) == ["alpha"]


async def test_a_revision_whose_names_are_used_up_waits_until_the_replica_runs_nothing(plane: Plane, sim: Sim) -> None:
    plane.put("alpha", seed=1)
    async with running(plane):
        await plane.spread("alpha", sim)
        first = plane.adapter("alpha").digest
        async with foreign_stream(sim, "base-a"):
            for seed in (2, 1):
                digest = await plane.replace("alpha", seed)
                await plane.spread("alpha", sim)
                await until(lambda now=digest: list(sim.loaded) == [f"alpha@{now}"])  # type: ignore[misc]
            assert digest == first
            assert f"alpha@{await plane.replace('alpha', 2)}" in names(sim)
            before = sim.journal.counts["GET /v1/models"]
            await until(lambda: sim.journal.counts["GET /v1/models"] > before + 2)
            assert not plane.holds(sim, "alpha")
        await plane.spread("alpha", sim)


async def test_without_snapshots_the_name_tells_the_revision(tmp_path: Path, sim: Sim) -> None:
    plane = Plane(tmp_path, sim, snapshots="off")
    folder = plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        assert sim.loaded == {f"alpha@{plane.adapter('alpha').digest}": str(folder)}


async def test_base_name_clash_the_base_models_name_is_never_loaded(plane: Plane, sim: Sim) -> None:
    plane.put("base-a")
    plane.put("alpha", seed=1)
    async with running(plane):
        await plane.spread("alpha", sim)
        assert names(sim) == ["alpha"]


# unloads


async def test_unload_in_flight_a_removed_adapter_is_unloaded_when_its_last_request_has_ended(plane: Plane, sim: Sim) -> None:
    folder = plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        lease = plane.lease("alpha")
        shutil.rmtree(folder)
        await until(lambda: plane.current("alpha") is None)
        begun = monotonic()
        await until(lambda: monotonic() - begun > 1.0)
        assert unloaded(sim) == []
        lease.release()
        await until(lambda: unloaded(sim) == ["alpha"])
        assert sim.loaded == {}


async def test_a_removed_adapter_stays_loaded_for_the_linger_time(tmp_path: Path, sim: Sim) -> None:
    plane = Plane(tmp_path, sim, unload_linger=1.0)
    folder = plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        shutil.rmtree(folder)
        await until(lambda: plane.current("alpha") is None)
        begun = monotonic()
        await until(lambda: unloaded(sim) == ["alpha"])
        assert monotonic() - begun >= 0.9


async def test_an_adapter_that_is_back_within_the_linger_time_is_never_unloaded(tmp_path: Path, sim: Sim) -> None:
    plane = Plane(tmp_path, sim, unload_linger=1.0)
    folder = plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        shutil.rmtree(folder)
        await until(lambda: plane.current("alpha") is None)
        plane.put("alpha")
        await until(lambda: plane.current("alpha") is not None)
        begun = monotonic()
        await until(lambda: monotonic() - begun > 1.5)
        assert (names(sim), unloaded(sim)) == (["alpha"], [])


async def test_a_failed_unload_is_tried_again(plane: Plane, sim: Sim) -> None:
    folder = plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        sim.inject(unload_status=500)
        shutil.rmtree(folder)
        await until(lambda: len(unloaded(sim)) >= 2)
        sim.heal()
        await until(lambda: sim.loaded == {})


async def test_while_shutting_down_no_load_begins(plane: Plane, sim: Sim) -> None:
    async with running(plane):
        plane.closing = True
        plane.put("alpha")
        await until(lambda: plane.current("alpha") is not None)
        before = sim.journal.counts["GET /health"]
        await until(lambda: sim.journal.counts["GET /health"] > before + 10)
        assert names(sim) == []


async def test_deleted_files_a_lost_revision_is_unloaded_and_comes_back_under_another_name(plane: Plane, sim: Sim) -> None:
    plane.put("alpha")
    async with running(plane):
        await plane.spread("alpha", sim)
        adapter = plane.adapter("alpha")
        weights = Path(adapter.load_path) / "adapter_model.safetensors"
        weights.unlink()
        weights.write_bytes(b"cut")
        plane.controller.missing_files("alpha", adapter.digest)
        assert not plane.registry.route("alpha").seats  # type: ignore[union-attr]
        await until(lambda: plane.registry.lost == {})
        await plane.spread("alpha", sim)
        assert weights.stat().st_size > 100
