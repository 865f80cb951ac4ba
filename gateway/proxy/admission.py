"""Bounded entry: a request gets a lease on a replica that serves its model, or waits for one, or is told why not.

The fast path is synchronous and touches memory only. Whoever must wait (for a scan, for a load, for room) waits here,
counted and bounded, and looks again at the world whenever it changes; what ends a wait is that a replica can take the
request, that every replica that should hold the adapter has given its verdict since, or the end of `load_wait`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from gateway.core.adapters import Adapter, Revision
from gateway.core.aliases import Alias
from gateway.core.errors import AdapterQuarantined, GatewayError, ModelNotFound, NoReplica, TooManyWaiting
from gateway.core.picker import pick
from gateway.core.registry import Lease, Registry, Route
from gateway.core.replica import Phase
from gateway.core.strikes import Failure
from gateway.core.wakeup import call_next
from gateway.proxy.refusals import Refusals


class Control(Protocol):
    """What admission asks of the control plane. Everything but `refresh` and `look` is synchronous and cheap."""

    async def refresh(self, name: str) -> None: ...  # look at the directory now (shared, at most twice a second)
    def fresh(self, adapter: Adapter) -> bool: ...  # its files were looked at lately
    async def look(self, adapter: Adapter) -> None: ...  # look at its files now
    def want(self, adapter: Adapter) -> None: ...  # a request waits for a load
    def refused(self, replica: str) -> None: ...
    def draining(self, replica: str) -> None: ...
    def forgotten(self, replica: str, served_name: str) -> None: ...
    def missing_files(self, adapter: str, digest: str) -> None: ...
    def acquitted(self, revision: Revision) -> None: ...  # a trial request with a quarantined revision went well


Session = Callable[[], bytes]  # what identifies the client's session; empty when nothing does


class Counters(Protocol):
    def waited_for_adapter(self, outcome: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds and numbers of requests; 0 in-flight is no limit."""

    load_wait: float = 60.0
    max_waiting: int = 1000
    max_inflight_per_replica: int = 0


class Admission:
    """See the module."""

    def __init__(
        self, registry: Registry, control: Control, counters: Counters, bounds: Bounds, clock: Callable[[], float]
    ) -> None:
        self._registry, self._control, self._counters = registry, control, counters
        self._bounds, self._clock = bounds, clock
        self._refusals = Refusals(registry, bounds.load_wait, clock)
        self._limit = bounds.max_inflight_per_replica
        self._waiting: Counter[str] = Counter()
        self._fresh = control.fresh

    def try_enter(self, model: str | None, session: Session = bytes) -> Lease | None:
        """A lease at once, or None when the request has to wait in `enter`; raises GatewayError."""
        registry = self._registry
        name = model or registry.absent_model()
        try:
            route = registry.route(name)
        except AdapterQuarantined as error:
            if self._clock() < error.trial_at:
                raise
            return None
        if route is None or (route.adapter is not None and not self._fresh(route.adapter)):
            return None
        seat = pick(route.seats, registry.turn, limit=self._limit)
        if seat is None:
            return self.try_enter(self._arm(route.alias, session), session) if route.alias is not None else None
        return None if seat.station.queued else registry.lease(route, name, seat)

    async def enter(self, model: str | None, session: Session = bytes, avoid: frozenset[str] = frozenset()) -> Lease:
        """Waits as long as it makes sense; raises GatewayError."""
        name = model or self._registry.absent_model()
        if not name:
            raise self._refusals.no_replica()
        try:
            route = await self._known(name)
        except AdapterQuarantined as error:
            if not self._registry.strikes.begin_trial(error.revision, self._clock()):
                raise
            return await self._enter_trial(name, avoid, error.revision)
        if route.alias is not None:
            return await self.enter(self._arm(route.alias, session), session, avoid)
        if route.adapter is not None and not self._fresh(route.adapter):
            await self._control.look(route.adapter)
        lease = self._try(name, avoid, newcomer=True)
        if lease is not None:
            return lease
        with self._counted(name):
            return await self._wait(name, avoid)

    async def _enter_trial(self, name: str, avoid: Collection[str], revision: Revision) -> Lease:
        """The one request that tries whether a quarantined revision does well now."""
        try:
            with self._counted(name):
                lease = await self._wait(name, avoid, trial=True)
        except BaseException:
            self._registry.strikes.end_trial(revision)
            raise
        lease.trial = revision
        return lease

    async def _known(self, name: str) -> Route:
        route = self._registry.route(name)
        if route is None:
            await self._control.refresh(name)
            route = self._registry.route(name)
        if route is not None:
            return route
        if not self._registry.scanned:
            raise NoReplica("The adapter directory has not been read yet.")
        if not self._registry.observed:
            raise self._refusals.no_replica()
        raise ModelNotFound(name)

    def _arm(self, alias: Alias, session: Session) -> str:
        """Which model an alias means for this session: the best that a replica holds, else the best that may come."""
        registry, coming, trouble = self._registry, "", None
        for model in alias.ranked(session() or b"%d" % registry.turn):
            try:
                route = registry.route(model)
            except GatewayError as error:
                trouble = trouble or error
                continue
            if route is not None and route.seats:
                return model
            coming = coming or (model if route is not None else "")
        if coming:
            return coming
        raise trouble or ModelNotFound(alias.name, f"It is an alias that leads to nothing: {alias}.")

    def _route(self, name: str, *, trial: bool = False) -> Route:
        route = self._registry.route(name, trial=trial)
        if route is None:
            raise ModelNotFound(name)
        return route

    def _try(self, name: str, avoid: Collection[str], *, newcomer: bool, trial: bool = False) -> Lease | None:
        registry, route = self._registry, self._route(name, trial=trial)
        seat = pick(route.seats, registry.turn, limit=self._limit, avoid=avoid)
        if seat is None or (newcomer and seat.station.queued):
            return None
        return registry.lease(route, name, seat)

    # waiting

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        """A place among those who wait; one model may use half of the places."""
        most = self._bounds.max_waiting
        if self._registry.waiting >= most or self._waiting[name] >= max(1, most // 2):
            raise TooManyWaiting("Too many requests are waiting; try again shortly.")
        self._registry.waiting += 1
        self._waiting[name] += 1
        try:
            yield
        finally:
            self._registry.waiting -= 1
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]

    async def _wait(self, name: str, avoid: Collection[str], *, trial: bool = False) -> Lease:
        begun = self._clock()
        deadline = begun + self._bounds.load_wait
        newcomer, cold = True, False
        try:
            while True:
                lease = self._try(name, avoid, newcomer=newcomer, trial=trial)
                route = self._route(name, trial=trial)
                if lease is not None:
                    self._note(cold, "ok", begun)
                    self._pass_on(route)
                    return lease
                newcomer = False
                self._refusals.give_up_if_hopeless(route, begun, avoid)
                left = deadline - self._clock()
                if left <= 0:
                    self._pass_on(route)
                    raise self._refusals.too_late(route)
                if route.adapter is not None and not route.seats:
                    cold = True
                    await self._wait_for_load(route.adapter, left)
                else:
                    await self._wait_for_room(route, left)
        except GatewayError as error:
            self._note(cold, error.code, begun)
            raise
        except asyncio.CancelledError:
            self._note(cold, "client_left", begun)
            raise

    async def _wait_for_load(self, adapter: Adapter, seconds: float) -> None:
        """While it waits, the request makes the load urgent."""
        demand, revision = self._registry.demand, adapter.revision
        demand[revision] += 1
        self._control.want(adapter)
        try:
            await self._registry.changed.wait(seconds)
        finally:
            demand[revision] -= 1
            if not demand[revision]:
                del demand[revision]

    async def _wait_for_room(self, route: Route, seconds: float) -> None:
        stations = [seat.station for seat in route.seats]
        for station in stations:
            station.queued += 1
        try:
            await self._registry.changed.wait(seconds, [station.line for station in stations])
        finally:
            for station in stations:
                station.queued -= 1

    def _pass_on(self, route: Route) -> None:
        """Who was called by one replica and took another leaves room behind: the next in line takes it."""
        for seat in route.seats:
            station = seat.station
            if station.line and (not self._limit or station.inflight < self._limit):
                call_next(station.line)

    def _note(self, cold: bool, outcome: str, begun: float) -> None:
        if cold:
            self._counters.waited_for_adapter(outcome, self._clock() - begun)

    # what an exchange tells about a replica

    def refused(self, lease: Lease) -> None:
        self._control.refused(lease.replica)

    def draining(self, lease: Lease) -> None:
        self._control.draining(lease.replica)

    def forgotten(self, lease: Lease) -> None:
        self._control.forgotten(lease.replica, lease.served_name)

    def missing_files(self, lease: Lease) -> None:
        if lease.revision is not None:
            self._control.missing_files(lease.label, lease.revision)

    def failed(self, lease: Lease, sent_at: float) -> None:
        """It broke off, or answered 500, before a first byte: it may be dying of this."""
        if lease.exact is not None:
            self._registry.strikes.failed(lease.replica, Failure(lease.exact, sent_at, self._clock()))

    def acquitted(self, lease: Lease) -> None:
        """A trial request with a quarantined revision went well."""
        revision, lease.trial = lease.trial, None
        if revision is not None:
            self._control.acquitted(revision)

    def heard(self, latest: Mapping[str, float]) -> None:
        """When each replica that owes answers last gave a byte, monotonic seconds."""
        for replica, station in self._registry.stations.items():
            station.heard_at = latest.get(replica)

    def credentials(self, lease: Lease) -> None:
        self._control.refused(lease.replica)

    def label(self, model: str | None) -> str:
        """What a request is counted under that got no replica: a name that is known, else "other"."""
        try:
            name = model or self._registry.absent_model()
        except GatewayError:
            return "other"
        return self._registry.label(name) or "other"

    def is_down(self, replica: str) -> bool:
        station = self._registry.stations.get(replica)
        return station is None or station.replica.phase is Phase.DOWN
