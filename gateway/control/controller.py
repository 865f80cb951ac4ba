"""Owns every task of the control loop, and is what the data path and the operators talk to.

The directory yields catalogs, discovery yields sets of replicas, one reconciler per replica makes the two meet. When
this ends, the process ends: a gateway without a control loop must never look alive.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from gateway.control.catalogs import CatalogKeeper
from gateway.control.discovery import Source
from gateway.control.reconciler import Reconciler
from gateway.control.replica_client import ReplicaClient
from gateway.control.surroundings import Surroundings
from gateway.core.adapters import Adapter, Revision
from gateway.core.addresses import Address
from gateway.core.placement import first_loaders
from gateway.core.replica import Replica
from gateway.core.standing import State, standing
from gateway.metrics import Metrics

log = structlog.get_logger("gateway.control")
CONVERGENCE_LOOK = 0.5  # seconds between looks at what is not everywhere yet


class Controller:
    """See the module. `run()` ends only when it is cancelled or broken."""

    def __init__(
        self,
        around: Surroundings,
        keeper: CatalogKeeper,
        sources: Sequence[Source],
        make_client: Callable[[Address], ReplicaClient],
        metrics: Metrics,
    ) -> None:
        self._around, self._registry = around, around.registry
        self._keeper, self._sources, self._make_client, self._metrics = keeper, sources, make_client, metrics
        self._reconcilers: dict[str, tuple[Reconciler, asyncio.Task[None]]] = {}
        self._found: dict[int, frozenset[Address]] = {}
        self._group: asyncio.TaskGroup | None = None
        self.fresh = keeper.fresh  # asked for each request

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._keeper.run(self._wake_all, self._start), name="directory")
            group.create_task(self._keeper.clean(self._look_all), name="snapshots")
            for number, source in enumerate(self._sources):
                group.create_task(self._follow(number, source), name=f"discovery {number}")
            group.create_task(self._watch_convergence(), name="convergence")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        assert self._group is not None
        self._group.create_task(work, name=name)

    # replicas come and go

    async def _follow(self, number: int, source: Source) -> None:
        async for addresses in source.addresses():
            self._found[number] = addresses
            self._settle()

    def _settle(self) -> None:
        """Start what is new, stop what has left. The first source to name a replica decides its URL."""
        wanted: dict[str, Address] = {}
        for number in sorted(self._found):
            for address in sorted(self._found[number]):
                wanted.setdefault(address.id, address)
        for replica_id in self._reconcilers.keys() - wanted.keys():
            self._leave(replica_id)
        for replica_id in sorted(wanted.keys() - self._reconcilers.keys()):
            self._join(wanted[replica_id])
        self._around.budget.fleet = max(1, len(wanted))

    def _join(self, address: Address) -> None:
        assert self._group is not None
        station = self._registry.join(Replica(address.id, address.url))
        reconciler = Reconciler(station, self._make_client(address), self._around)
        task = self._group.create_task(reconciler.run(), name=f"replica {address.id}")
        self._reconcilers[address.id] = reconciler, task
        self._around.events.add("replica_joined", replica=address.id)

    def _leave(self, replica_id: str) -> None:
        _, task = self._reconcilers.pop(replica_id)
        task.cancel()
        self._registry.leave(replica_id)
        self._metrics.forget_replica(replica_id)
        self._around.events.add("replica_left", replica=replica_id)

    def _reconciler(self, replica_id: str) -> Reconciler | None:
        known = self._reconcilers.get(replica_id)
        return known[0] if known else None

    def _wake_all(self) -> None:
        for reconciler, _ in self._reconcilers.values():
            reconciler.wake()

    async def _look_all(self, seconds: float = 10.0) -> bool:
        """Have every replica's model list read anew; False when not all answered in time, or none is known."""
        for reconciler, _ in self._reconcilers.values():
            reconciler.look()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(reconciler.looked() for reconciler, _ in self._reconcilers.values()))
        except TimeoutError:
            return False
        return bool(self._reconcilers)

    async def _watch_convergence(self) -> None:
        """Notes how long each revision took until every placed replica held it: once, not again after each restart."""
        arrived: set[Revision] = set()
        while True:
            adapters = {adapter.revision: adapter for adapter in self._registry.catalog.adapters.values()}
            arrived &= adapters.keys()
            for revision in adapters.keys() - arrived:
                if standing(adapters[revision], self._registry).state is State.READY:
                    arrived.add(revision)
                    self._metrics.converged(max(0.0, self._around.wall() - adapters[revision].seen_at))
            if arrived == adapters.keys():
                await self._registry.changed.wait(60.0)
            else:
                await asyncio.sleep(CONVERGENCE_LOOK)

    # what the data path asks

    async def refresh(self, name: str) -> None:
        await self._keeper.refresh(name)

    async def look(self, adapter: Adapter) -> None:
        await self._keeper.look(adapter)

    def want(self, adapter: Adapter) -> None:
        for replica_id in first_loaders(adapter, self._registry.stations.values(), self._registry.bases):
            if (reconciler := self._reconciler(replica_id)) is not None:
                reconciler.wake()

    def refused(self, replica: str) -> None:
        if (reconciler := self._reconciler(replica)) is not None:
            reconciler.suspect()

    def draining(self, replica: str) -> None:
        if (reconciler := self._reconciler(replica)) is not None:
            reconciler.tell_draining()

    def forgotten(self, replica: str, served_name: str) -> None:
        if (reconciler := self._reconciler(replica)) is not None:
            reconciler.forget(served_name)

    def missing_files(self, adapter: str, digest: str) -> None:
        self._keeper.lose(Revision(adapter, digest), "a replica says that its files are missing")

    def acquitted(self, revision: Revision) -> None:
        if self._registry.release(revision):
            reason = "a trial request went well"
            self._around.events.add("quarantine_ended", adapter=revision.name, revision=revision.digest, reason=reason)
            self._wake_all()

    # what operators ask

    async def scan(self) -> None:
        await self._keeper.scan()

    def load(self, adapter: str) -> bool:
        """Have an adapter loaded everywhere now, whatever `--preload` says."""
        found = self._registry.catalog.adapters.get(adapter)
        if found is None:
            return False
        self._registry.asked = {*self._registry.asked, found.revision}
        self._wake_all()
        return True

    def retry(self, adapter: str) -> bool:
        """Forget what failed with an adapter, and try again."""
        found = self._registry.catalog.adapters.get(adapter)
        if found is None:
            return False
        if self._registry.release(found.revision):
            facts = {"adapter": adapter, "revision": found.digest, "reason": "an operator said retry"}
            self._around.events.add("quarantine_ended", **facts)
        for reconciler, _ in self._reconcilers.values():
            reconciler.retry(found.revision)
        return True

    async def pin(self, adapter: str, digest: str | None) -> str | None:
        """Keep a name on a revision, by default on the current one; the revision's digest, None for an unknown name."""
        if not self._is_known(adapter):
            return None
        return await self._keeper.pin(adapter, digest)

    async def unpin(self, adapter: str) -> bool:
        """Let a name follow the directory again; also a name that is gone may be unpinned."""
        return await self._keeper.unpin(adapter) or self._is_known(adapter)

    def _is_known(self, adapter: str) -> bool:
        catalog = self._registry.catalog
        return adapter in catalog.adapters or adapter in catalog.rejected

    def drain(self, replica: str, on: bool) -> bool:
        reconciler = self._reconciler(replica)
        if reconciler is not None:
            reconciler.drain(on)
        return reconciler is not None
