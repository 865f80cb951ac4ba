"""Applies plans to one replica: which loads start now, the unloads, and what came of each.

Loads that a request waits for start at once; the others ask the fleet's budget and pause, while requests run, as long
as the last load took. A load is never cancelled for a client's sake: a late yes counts.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

from gateway.control.replica_client import Answer, Outcome, ReplicaClient, ReplicaError
from gateway.control.surroundings import Surroundings
from gateway.core import strikes
from gateway.core.adapters import Adapter, Catalog, Revision
from gateway.core.bases import Bases, Fit
from gateway.core.picker import Station
from gateway.core.placement import first_loaders, fitting
from gateway.core.plan import Load, Plan, Unload, plan
from gateway.core.replica import Failure, FailureKind, LoraSupport, Replica

FOREVER = float("inf")
ENGINE_DEAD = "EngineCore"  # in what vLLM answers while its engine is dying
BACK_OFF_CAP = 300.0  # seconds
SOON = 1.0  # seconds until the next look while something is to be done

_FAILURES = {
    Outcome.REJECTED: FailureKind.REJECTED,
    Outcome.MISSING: FailureKind.MISSING,
    Outcome.TIMEOUT: FailureKind.TIMEOUT,
    Outcome.CREDENTIALS: FailureKind.CREDENTIALS,
}


class _Rest(NamedTuple):
    """What a plan follows from. The objects are replaced, never changed; while they are the same, so is the plan."""

    catalog: Catalog
    replica: Replica
    bases: Bases
    asked: Collection[Revision]

    def is_still(self, other: "_Rest") -> bool:
        return all(one is two for one, two in zip(self, other, strict=True))


class _Fits(NamedTuple):
    """The adapters that fit, and what that follows from."""

    catalog: Catalog
    bases: Bases
    group: tuple[str, ...]
    adapters: list[Adapter]


class Loader:
    """The hands of one reconciler. `used` are the served names seen on the replica's present process."""

    def __init__(self, station: Station, client: ReplicaClient, around: Surroundings, wake: Callable[[], None]) -> None:
        self._station, self._client, self._around, self._wake = station, client, around, wake
        self.used: set[str] = set()
        self.witnessed = False  # this gateway has watched the process since it started
        self.observe = False  # something was done: what the replica holds should be looked at
        self.told_draining = False  # a load was answered that the replica is shutting down
        self._running = 0
        self._pause_until = self._lora_check_at = 0.0
        self._rest: _Rest | None = None
        self._fits = _Fits(Catalog(), Bases.of(()), (), [])
        self._more = False  # another load follows at once

    @property
    def _replica(self) -> Replica:
        return self._station.replica

    def _publish(self, record: Replica) -> None:
        self._around.registry.publish(record, self._around.clock())

    def rest(self) -> None:
        """Nothing can be done here now; somebody else may have the turn."""
        self._around.budget.leave(self._replica.id)

    async def act(self, group: asyncio.TaskGroup) -> float:
        """Start the loads and do the unloads that are due; returns after how many seconds to look again."""
        registry = self._around.registry
        now = _Rest(registry.catalog, self._replica, registry.bases, registry.asked)
        restless = registry.demand or registry.unwanted or registry.lost or registry.strikes.quarantined
        quiet = not (restless or self._is_early())
        if quiet and self._rest is not None and self._rest.is_still(now):
            return FOREVER
        planned, urgent = self._plan(idle=False)
        if (planned.waiting or (planned.loads and not self.witnessed)) and await self._runs_nothing():
            planned, urgent = self._plan(idle=True)
        for unload in planned.unloads:
            await self._unload(unload)
        if self._around.closing() or not self._replica.ready or not self._may_try_lora():
            self.rest()
            return SOON
        self._start_loads(planned, urgent, group)
        if quiet and planned == Plan() and not self._replica.failures and not self._replica.loading:
            self._rest = now
            return FOREVER
        return SOON

    def _plan(self, *, idle: bool) -> tuple[Plan, Collection[Revision]]:
        registry, now = self._around.registry, self._around.clock()
        stations, bases = registry.stations.values(), registry.bases
        urgent = {
            revision
            for revision in registry.demand
            if (adapter := registry.catalog.get(revision)) is not None
            and self._replica.id in first_loaders(adapter, stations, bases)
        }
        asked = urgent | registry.asked
        wanted = self._around.placement.wanted(self._fitting(), self._replica, asked=asked, last_used=registry.last_used)
        wanted[:0] = self._set_aside(urgent)
        if self._is_early():
            wanted = [adapter for adapter in wanted if bases.fit(adapter) is Fit.MATCH]
        planned = plan(
            [adapter for adapter in wanted if self._is_allowed(adapter.revision, urgent)],
            self._replica,
            used=self.used,
            idle=idle,
            witnessed=self.witnessed,
            retired=self._retired(),
            leased=self._station.by_name,
            now=now,
            urgent=urgent,
            most=self._around.policy.load_concurrency + 1,  # one more tells that there is more
        )
        return planned, urgent

    def _is_allowed(self, revision: Revision, urgent: Collection[Revision]) -> bool:
        """What is quarantined is loaded for its trial request alone."""
        registry = self._around.registry
        return revision not in registry.lost and (revision not in registry.strikes.quarantined or revision in urgent)

    def _set_aside(self, urgent: Collection[Revision]) -> list[Adapter]:
        """What is wanted though its name means another revision: asked for by revision, or standing in for a refused one."""
        registry, wanted = self._around.registry, {}
        for revision in urgent:
            if registry.catalog.find(revision) is None and (adapter := registry.catalog.get(revision)) is not None:
                wanted[revision] = adapter
        for revision in self._replica.failures:
            current = registry.catalog.find(revision)
            if current is not None and (adapter := registry.stand_in(current)) is not None:
                wanted[adapter.revision] = adapter
        return list(wanted.values())

    def _fitting(self) -> list[Adapter]:
        """The adapters for this replica's base model; found anew when one of the things it follows from is another."""
        registry, group = self._around.registry, self._replica.base_models
        if self._fits.catalog is not registry.catalog or self._fits.bases is not registry.bases or self._fits.group != group:
            found = fitting(registry.catalog, group, registry.bases)
            self._fits = _Fits(registry.catalog, registry.bases, group, found)
        return self._fits.adapters

    def _is_early(self) -> bool:
        """Whether a replica may still turn out to have the base model that none of the others has."""
        return any(replica.unknown for replica in self._around.registry.replicas())

    def _retired(self) -> set[Revision]:
        """What this replica should not hold any more: nobody should, or only those of another base model."""
        registry, replica = self._around.registry, self._replica
        bases, retired = registry.bases, registry.retired(self._around.clock(), self._around.policy.unload_linger)
        retired = {r for r in retired if r in registry.lost or not registry.still_serves(r, replica)}
        for revision in replica.seen.names.values():
            adapter = registry.catalog.find(revision)
            if adapter is None or bases.accepts(adapter, replica.base_models):
                continue
            if bases.fit(adapter) is Fit.MATCH:
                retired.add(revision)
        return retired

    async def _runs_nothing(self) -> bool:
        """Neither a request of ours nor, as the replica's metrics say, anybody else's."""
        if self._station.inflight:
            return False
        try:
            running = (await self._client.vitals()).running
        except ReplicaError:
            return False
        return running == 0 and not self._station.inflight

    def _may_try_lora(self) -> bool:
        """A replica that cannot load LoRA is asked again now and then, not on each request."""
        return self._replica.lora is not LoraSupport.UNSUPPORTED or self._around.clock() >= self._lora_check_at

    def _start_loads(self, planned: Plan, urgent: Collection[Revision], group: asyncio.TaskGroup) -> None:
        background = False
        self._more = len(planned.loads) > 1
        for load in planned.loads:
            if self._running >= self._around.policy.load_concurrency:
                break
            hurried = load.adapter.revision in urgent
            if not hurried:
                background = True
                if not self._may_load_in_background():
                    break
            self._running += 1
            self._publish(self._replica.beginning(load.adapter.revision))
            group.create_task(self._load(load, hurried), name=f"load {load.served_name} on {self._replica.id}")
        if not background:
            self.rest()

    def _may_load_in_background(self) -> bool:
        if self._station.inflight and self._around.clock() < self._pause_until:
            return False
        return self._around.budget.take(self._replica.id, self._wake)

    async def _load(self, load: Load, hurried: bool) -> None:
        around, adapter = self._around, load.adapter
        begun, name = around.clock(), load.served_name
        first_use = name not in self.used
        self.used.add(name)
        try:
            await around.files.before_load(adapter)
            answer = await self._client.load(load.served_name, around.files.replica_path(adapter))
            doubtful = answer.outcome is Outcome.OK and not adapter.plain_name_tells  # loaded from a folder that may change
            if doubtful and not await around.files.unchanged(adapter):
                await self._client.unload(load.served_name)
                answer = Answer(Outcome.ERROR, "its files changed while it was loaded", settled=False)
        finally:
            self._running -= 1
            if not hurried:
                around.budget.give_back()
        if first_use and answer.settled and answer.outcome not in (Outcome.OK, Outcome.ALREADY):
            self.used.discard(name)  # the replica never held it under this name
        self._finish(load, answer, begun)

    def _finish(self, load: Load, answer: Answer, begun: float) -> None:
        around, revision, outcome = self._around, load.adapter.revision, answer.outcome
        seconds = around.clock() - begun
        self._pause_until = around.clock() + seconds
        around.counters.loaded(self._replica.id, outcome.value, seconds)
        record = self._replica.ending(revision)
        if outcome is Outcome.OK:
            record = record.loaded(revision, load.served_name)
            around.registry.strikes.loaded(revision)
        elif outcome is Outcome.UNSUPPORTED:
            self._lora_check_at = around.clock() + around.policy.drift_interval
            record = record.unable()
        elif outcome is Outcome.DRAINING:
            self.told_draining = True
        elif outcome is not Outcome.ALREADY:
            if outcome is Outcome.ERROR and (not answer.settled or ENGINE_DEAD in answer.reason):
                around.registry.strikes.failed(self._replica.id, strikes.Failure(revision, begun, around.clock(), True))
            record = record.failing(revision, self._failure(revision, answer))
        self._publish(record)
        good = outcome in (Outcome.OK, Outcome.ALREADY)
        facts = {"adapter": revision.name, "revision": revision.digest, "replica": self._replica.id}
        reason = None if good else answer.reason
        around.events.add("load" if good else "load_failed", **facts, reason=reason, seconds=round(seconds, 4))
        self.observe = self.observe or outcome is not Outcome.OK or not self._more  # once after many
        self._wake()

    def _failure(self, revision: Revision, answer: Answer) -> Failure:
        now, before = self._around.clock(), self._replica.failures.get(revision)
        attempts = before.attempts + 1 if before else 1
        kind = _FAILURES.get(answer.outcome, FailureKind.ERROR)
        wait = FOREVER if kind is FailureKind.REJECTED else min(BACK_OFF_CAP, 2.0 ** (attempts - 1))
        return Failure(kind, answer.reason, now, now + wait, attempts)

    async def _unload(self, unload: Unload) -> None:
        """Scan once more, unpublish, unload: from the second step on no request of ours can choose it."""
        await self._around.files.rescan()
        if unload.revision not in self._retired() or self._station.by_name.get(unload.served_name):
            return
        self._publish(self._replica.without(unload.served_name))
        answer = await self._client.unload(unload.served_name)
        self._around.counters.unloaded(self._replica.id, answer.outcome.value)
        facts = {"adapter": unload.revision.name, "revision": unload.revision.digest, "replica": self._replica.id}
        self._around.events.add("unload", **facts, reason=answer.reason or None)
        self.observe = True
