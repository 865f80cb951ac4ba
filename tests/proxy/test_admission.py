"""Who gets in, who waits for what, and what ends a wait."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.core.adapters import Adapter, Catalog, Revision
from gateway.core.errors import (
    AdapterIncomplete,
    AdapterLoading,
    AdapterRejected,
    GatewayError,
    ModelNotFound,
    NoReplica,
    ReplicaCannotSeeAdapter,
    ReplicaCredentials,
    ReplicaFailed,
    ReplicaMisconfigured,
    ReplicasBusy,
    TooManyWaiting,
)
from gateway.core.registry import Lease, Registry
from gateway.core.replica import Failure, FailureKind, Phase, Replica
from gateway.proxy.admission import Admission, Bounds
from tests.core.fleet import adapter, catalog, replica
from tests.waiting import until

SQL = adapter("sql")
FOREVER = float("inf")


class Plane:
    """The control plane's side of admission: notes what it was asked, and does what a test says."""

    def __init__(self) -> None:
        self.scans = 0
        self.looks = 0
        self.wanted: list[str] = []
        self.on_scan: Callable[[], None] = lambda: None
        self.is_fresh = True

    async def refresh(self, name: str) -> None:
        self.scans += 1
        self.on_scan()

    def fresh(self, adapter: Adapter) -> bool:
        return self.is_fresh

    async def look(self, adapter: Adapter) -> None:
        self.looks += 1

    def want(self, adapter: Adapter) -> None:
        self.wanted.append(adapter.name)

    def refused(self, replica: str) -> None: ...
    def draining(self, replica: str) -> None: ...
    def forgotten(self, replica: str, served_name: str) -> None: ...
    def missing_files(self, adapter: str, digest: str) -> None: ...
    def acquitted(self, revision: Revision) -> None: ...


class Waits:
    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def waited_for_adapter(self, outcome: str, seconds: float) -> None:
        self.outcomes.append(outcome)


class Gate:
    """An admission over a real registry."""

    def __init__(self, *replicas: Replica, adapters: Catalog | None = None, bounds: Bounds | None = None) -> None:
        self.registry, self.plane, self.waits = Registry(), Plane(), Waits()
        for record in replicas:
            self.registry.join(Replica(record.id, record.url))
            self.registry.publish(record, time.monotonic())
        self.registry.replace_catalog(adapters or catalog(SQL), 0.0)
        self.admission = Admission(self.registry, self.plane, self.waits, bounds or Bounds(load_wait=5.0), time.monotonic)

    def enter(self, model: str | None) -> "asyncio.Task[Lease]":
        return asyncio.create_task(self.admission.enter(model))

    async def waiting(self, count: int) -> None:
        await until(lambda: self.registry.waiting == count)

    def change(self, record: Replica) -> None:
        self.registry.publish(record, time.monotonic())

    def fail(self, record: Replica, kind: FailureKind, reason: str = "the reason") -> None:
        retry_at = FOREVER if kind is FailureKind.REJECTED else time.monotonic() + 300
        self.change(record.failing(SQL.revision, Failure(kind, reason, time.monotonic(), retry_at)))


async def test_the_fast_path_takes_the_least_busy_holder() -> None:
    gate = Gate(replica(1, {"sql": SQL.load_path}), replica(2, {"sql": SQL.load_path}))
    leases = [gate.admission.try_enter("sql") for _ in range(4)]
    assert sorted(lease.replica for lease in leases if lease) == ["r1:8000", "r1:8000", "r2:8000", "r2:8000"]


async def test_first_use_stampede_all_wait_for_one_load_and_go_on_when_it_lands() -> None:
    cold = replica(1)
    gate = Gate(cold)
    waiting = [gate.enter("sql") for _ in range(50)]
    await gate.waiting(50)
    assert gate.registry.demand[SQL.revision] == 50
    gate.change(cold.loaded(SQL.revision, "sql"))
    leases = await asyncio.gather(*waiting)
    assert {lease.replica for lease in leases} == {"r1:8000"}
    assert gate.registry.demand == {}
    assert gate.registry.waiting == 0
    assert gate.waits.outcomes == ["ok"] * 50


async def test_unknown_model_is_told_after_one_look_at_the_directory() -> None:
    gate = Gate(replica(1))
    with pytest.raises(ModelNotFound):
        await gate.admission.enter("gpt-4o-mini")
    assert gate.plane.scans == 1


async def test_a_model_that_is_known_needs_no_look_at_the_directory() -> None:
    gate = Gate(replica(1, {"sql": SQL.load_path}))
    assert gate.admission.try_enter("sql") is not None
    assert gate.admission.try_enter("base-a") is not None
    assert gate.plane.scans == 0


async def test_inotify_network_fs_a_folder_without_an_event_is_found_when_it_is_named() -> None:
    new = adapter("new")
    gate = Gate(replica(1, {"new": new.load_path}))
    gate.plane.on_scan = lambda: gate.registry.replace_catalog(catalog(SQL, new), 0.0)
    assert (await gate.admission.enter("new")).served_name == "new"


async def test_before_the_first_scan_nobody_hears_404() -> None:
    gate = Gate(replica(1))
    gate.registry.scanned = False
    with pytest.raises(NoReplica, match="directory"):
        await gate.admission.enter("anything")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.REJECTED, AdapterRejected),
        (FailureKind.MISSING, ReplicaCannotSeeAdapter),
        (FailureKind.CREDENTIALS, ReplicaCredentials),
        (FailureKind.ERROR, ReplicaFailed),
    ],
)
async def test_a_verdict_of_every_placed_replica_ends_the_wait(kind: FailureKind, error: type[GatewayError]) -> None:
    one, two = replica(1), replica(2)
    gate = Gate(one, two)
    waiting = gate.enter("sql")
    await gate.waiting(1)
    gate.fail(one, kind)
    await gate.waiting(1)
    assert not waiting.done()
    gate.fail(two, kind)
    with pytest.raises(error, match=r"the reason|credentials"):
        await waiting


async def test_an_old_passing_failure_does_not_end_a_new_wait_but_a_standing_verdict_does() -> None:
    one = replica(1)
    gate = Gate(one)
    gate.fail(one, FailureKind.MISSING)
    waiting = gate.enter("sql")
    await gate.waiting(1)
    waiting.cancel()
    gate.fail(one, FailureKind.REJECTED)
    with pytest.raises(AdapterRejected, match="Failed to load LoRA adapter 'sql': the reason"):
        await gate.admission.enter("sql")


async def test_files_that_changed_under_a_revision_are_no_verdict_on_it_clients_are_told_to_try_again() -> None:
    gate = Gate(replica(1, {"sql": SQL.load_path}))
    gate.registry.lose(SQL.revision, "its files changed")
    with pytest.raises(AdapterIncomplete, match="its files changed") as told:
        await gate.admission.enter("sql")
    assert (told.value.status, told.value.retry_after) == (503, 5)


async def test_rank_too_big_names_the_rank_and_the_flag() -> None:
    one = replica(1)
    gate = Gate(one, adapters=catalog(adapter("sql", rank=64)))
    gate.fail(one, FailureKind.REJECTED, "LoRA rank 64 is greater than max_lora_rank 16.")
    with pytest.raises(AdapterRejected, match=r"greater than max_lora_rank 16.*--max-lora-rank 64"):
        await gate.admission.enter("sql")


async def test_retry_forever_a_failing_replica_keeps_nobody_from_the_one_that_holds_it() -> None:
    one = replica(1)
    gate = Gate(one, replica(2, {"sql": SQL.load_path}))
    gate.fail(one, FailureKind.ERROR)
    assert [gate.admission.try_enter("sql") is not None for _ in range(50)] == [True] * 50


async def test_endpoint_off_is_a_misconfigured_replica_and_base_requests_go_on() -> None:
    gate = Gate(replica(1).unable())
    with pytest.raises(ReplicaMisconfigured, match=r"--enable-lora.*VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        await gate.admission.enter("sql")
    assert gate.admission.try_enter("base-a") is not None


async def test_slow_load_ends_the_wait_with_a_word_to_try_again() -> None:
    gate = Gate(replica(1), bounds=Bounds(load_wait=0.05))
    with pytest.raises(AdapterLoading) as error:
        await gate.admission.enter("sql")
    assert (error.value.status, error.value.retry_after) == (503, 1)
    assert gate.waits.outcomes == ["adapter_loading"]


async def test_no_replica_is_told_at_once_with_each_ones_reason() -> None:
    down = replace(replica(1), phase=Phase.DOWN, reason="connection refused")
    gate = Gate(down, bounds=Bounds(load_wait=60))
    for model in ("sql", "base-a"):
        with pytest.raises(NoReplica, match=r"r1:8000 is down \(connection refused\)"):
            await asyncio.wait_for(gate.admission.enter(model), 2)


async def test_a_replica_that_was_ready_a_moment_ago_is_waited_for() -> None:
    one = replica(1, {"sql": SQL.load_path})
    gate = Gate(one)
    gate.change(replace(one, phase=Phase.DOWN, reason="connection refused"))
    waiting = gate.enter("sql")
    await gate.waiting(1)
    gate.change(one)
    assert (await waiting).replica == "r1:8000"


async def test_replica_key_a_refused_key_is_told_as_that() -> None:
    refusing = replace(replica(1), phase=Phase.DOWN, reason="it refused", refuses_key=True)
    with pytest.raises(ReplicaCredentials):
        await Gate(refusing).admission.enter("base-a")


async def test_a_limit_makes_requests_wait_in_line_and_a_release_calls_the_first() -> None:
    gate = Gate(replica(1), bounds=Bounds(load_wait=5, max_inflight_per_replica=1))
    first = gate.admission.try_enter("base-a")
    assert first is not None
    line = []
    for number in range(3):
        line.append(gate.enter("base-a"))
        await gate.waiting(number + 1)
    first.release()
    assert gate.admission.try_enter("base-a") is None, "nobody overtakes those in line"
    for waiting in line:
        lease = await asyncio.wait_for(waiting, 2)
        assert lease.replica == "r1:8000"
        lease.release()


async def test_who_leaves_the_line_gives_its_turn_to_the_next() -> None:
    gate = Gate(replica(1), bounds=Bounds(load_wait=5, max_inflight_per_replica=1))
    first = gate.admission.try_enter("base-a")
    assert first is not None
    leaving, staying = gate.enter("base-a"), gate.enter("base-a")
    await gate.waiting(2)
    first.release()  # calls `leaving`, which is cancelled before it runs
    leaving.cancel()
    assert (await asyncio.wait_for(staying, 2)).replica == "r1:8000"
    assert gate.registry.waiting == 0


async def test_every_replica_at_its_limit_for_too_long_is_busy() -> None:
    gate = Gate(replica(1), bounds=Bounds(load_wait=0.05, max_inflight_per_replica=1))
    assert gate.admission.try_enter("base-a") is not None
    with pytest.raises(ReplicasBusy):
        await gate.admission.enter("base-a")


async def test_one_model_may_fill_half_of_the_places_to_wait_in() -> None:
    gate = Gate(replica(1), adapters=catalog(SQL, adapter("poet")), bounds=Bounds(load_wait=5, max_waiting=4))
    waiting = [gate.enter("sql"), gate.enter("sql")]
    await gate.waiting(2)
    with pytest.raises(TooManyWaiting):
        await gate.admission.enter("sql")
    waiting += [gate.enter("poet"), gate.enter("poet")]
    await gate.waiting(4)
    with pytest.raises(TooManyWaiting):
        await gate.admission.enter("poet")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert gate.registry.waiting == 0


async def test_files_are_looked_at_before_a_request_goes_on_when_the_last_look_is_old() -> None:
    gate = Gate(replica(1, {"sql": SQL.load_path}))
    gate.plane.is_fresh = False
    assert gate.admission.try_enter("sql") is None
    assert (await gate.admission.enter("sql")).replica == "r1:8000"
    assert gate.plane.looks == 1


async def test_two_at_once_a_wait_for_one_adapter_does_not_hold_up_another() -> None:
    poet = adapter("poet")
    gate = Gate(replica(1, {"poet": poet.load_path}), adapters=catalog(SQL, poet))
    waiting = gate.enter("sql")
    await gate.waiting(1)
    assert gate.admission.try_enter("poet") is not None
    waiting.cancel()
