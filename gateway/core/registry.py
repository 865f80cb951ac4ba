"""What the gateway knows: the catalog, the replicas, and the requests in flight. The control loop writes the first two,
leases write the third; the two planes share this object and nothing else.

A name is resolved against known names only, never against the disk, and the result is kept until something changes.
Choosing a replica and counting it is one synchronous step.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.adapters import Adapter, Catalog, RejectedState, Revision
from gateway.core.bases import Bases, Fit
from gateway.core.errors import AdapterIncomplete, AdapterRejected, InvalidRequest
from gateway.core.picker import Seat, Station
from gateway.core.replica import Replica
from gateway.core.wakeup import Wakeup, call_next


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests for one model may go now. `label` is safe as a metric label."""

    model: str
    label: str
    seats: tuple[Seat, ...]
    adapter: Adapter | None = None  # an adapter of the catalog, at its current revision
    revision: Revision | None = None


class Unwanted(NamedTuple):
    """Since when (monotonic seconds), and at which scan, a revision is not in the catalog."""

    since: float
    scan: int


class Lease:
    """The counted right to use one replica for one request. Release it exactly when the request is over."""

    __slots__ = ("_registry", "_station", "label", "model", "replica", "revision", "served_name", "url")

    def __init__(self, registry: "Registry", route: Route, model: str, seat: Seat) -> None:
        station = seat.station
        self._registry = registry
        self._station: Station | None = station
        self.model, self.label, self.served_name = model, route.label, seat.served_name
        self.replica, self.url = station.replica.id, station.replica.url
        self.revision = route.revision.digest if route.revision else None
        station.inflight += 1
        station.by_name[seat.served_name] = station.by_name.get(seat.served_name, 0) + 1

    def release(self) -> None:
        """Idempotent."""
        station, self._station = self._station, None
        if station is None:
            return
        station.inflight -= 1
        left = station.by_name[self.served_name] - 1
        if left:
            station.by_name[self.served_name] = left
        else:
            del station.by_name[self.served_name]
        self._registry.lease_ended(station)

    def __repr__(self) -> str:
        return f"<Lease {self.model} on {self.replica}{'' if self._station else ' released'}>"


class Registry:
    """See the module. `scanned` and `observed` say whether the first look at the directory and at a replica is done."""

    def __init__(self, *, strict_base_model: bool = False) -> None:
        self.catalog = Catalog()
        self.stations: dict[str, Station] = {}
        self.bases = Bases.of((), strict=strict_base_model)
        self.changed = Wakeup()
        self.scanned = False
        self.scans = 0
        self.waiting = 0  # requests that wait in admission
        self.demand: Counter[Revision] = Counter()  # requests that wait for a load
        self.asked: set[Revision] = set()  # revisions that an operator wants loaded everywhere
        self.last_used: dict[str, int] = {}  # adapter name -> number of the request
        self.left_ready: dict[str, float] = {}  # replica -> when it ceased to be ready, monotonic
        self.lost: dict[Revision, str] = {}  # revisions whose files changed or went under the replicas, with the reason
        self.unwanted: dict[Revision, Unwanted] = {}
        self._strict = strict_base_model
        self._routes: dict[str, Route] = {}
        self._turn = 0
        self._absent: str | None = None

    # what the control loop writes

    def replace_catalog(self, catalog: Catalog, now: float) -> None:
        self.catalog, self.scanned = catalog, True
        self.asked = {r for r in self.asked if catalog.find(r) is not None}
        self.lost = {r: why for r, why in self.lost.items() if catalog.find(r) is not None}
        self.last_used = {name: turn for name, turn in self.last_used.items() if name in catalog.adapters}
        self.unwanted = {r: u for r, u in self.unwanted.items() if catalog.find(r) is None}
        for replica in self.replicas():
            self._note_unwanted(replica, now)
        self._changed()

    def join(self, replica: Replica) -> Station:
        station = self.stations[replica.id] = Station(replica)
        self._changed()
        return station

    def leave(self, replica_id: str) -> None:
        self.stations.pop(replica_id, None)
        self.left_ready.pop(replica_id, None)
        self._find_bases()
        self._changed()

    def publish(self, replica: Replica, now: float) -> None:
        """A reconciler's new record of its replica; ignored when the replica has left."""
        station = self.stations.get(replica.id)
        if station is None or station.replica == replica:
            return
        old, station.replica = station.replica, replica
        if old.ready and not replica.ready:
            self.left_ready[replica.id] = now
        if old.seen is not replica.seen:
            self._note_unwanted(replica, now)
            if (old.base_models, old.seen.base_roots) != (replica.base_models, replica.seen.base_roots):
                self._find_bases()
        self._changed()

    def lose(self, revision: Revision, reason: str) -> None:
        """Take a revision out of use: its files changed or went after it was loaded. Another scan may bring it back."""
        self.lost[revision] = reason
        self._changed()

    def recover(self, revision: Revision) -> None:
        """The revision's files are whole again (a snapshot was made anew)."""
        if self.lost.pop(revision, None) is not None:
            self._changed()

    def _note_unwanted(self, replica: Replica, now: float) -> None:
        for revision in replica.seen.names.values():
            if self.catalog.find(revision) is None and revision not in self.unwanted:
                self.unwanted[revision] = Unwanted(now, self.scans)

    def _find_bases(self) -> None:
        self.bases = Bases.of(self.replicas(), strict=self._strict)
        self._absent = None

    def _changed(self) -> None:
        """Forget the routes that were derived, and tell everybody who waits."""
        self._routes.clear()
        self.changed.notify()

    # what everybody reads

    def replicas(self) -> Iterable[Replica]:
        return [station.replica for station in self.stations.values()]

    @property
    def observed(self) -> bool:
        """Whether any replica's model list was ever read."""
        return bool(self.bases.groups)

    @property
    def inflight(self) -> int:
        return sum(station.inflight for station in self.stations.values())

    def retired(self, now: float, linger: float) -> set[Revision]:
        """What nobody should hold any more: unwanted for `linger` seconds and two scans, or lost."""
        gone = {r for r, u in self.unwanted.items() if now - u.since >= linger and self.scans - u.scan >= 2}
        return gone | self.lost.keys()

    def snapshots_in_use(self) -> set[Revision]:
        """Every snapshot that a known replica holds or loads."""
        used: set[Revision] = set()
        for replica in self.replicas():
            used |= replica.seen.snapshots | replica.loading
        return used

    def absent_model(self) -> str:
        """What a request without `model` means: the fleet's only base model."""
        if self._absent is None:
            if len(self.bases.groups) > 1:
                names = ", ".join(self.bases.names)
                raise InvalidRequest(f"'model' is missing and the replicas serve several base models: {names}", param="model")
            self._absent = self.bases.names[0] if self.bases.groups else ""
        return self._absent

    def route(self, model: str) -> Route | None:
        """Where `model` may go; None when nobody knows it. Raises what keeps a known adapter from being served."""
        route = self._routes.get(model)
        if route is None:
            route = self._find(model)
            if route is not None:
                self._routes[model] = route
        return route

    def lease(self, route: Route, model: str, seat: Seat) -> Lease:
        self._turn += 1
        if route.adapter is not None:
            self.last_used[route.label] = self._turn
        return Lease(self, route, model, seat)

    @property
    def turn(self) -> int:
        return self._turn

    def lease_ended(self, station: Station) -> None:
        if station.line:
            call_next(station.line)

    # how a name is resolved

    def _find(self, model: str) -> Route | None:
        if model in self.bases.names:
            return Route(model, model, tuple(Seat(s, model) for s in self._ready() if model in s.replica.base_models))
        adapter = self.catalog.adapters.get(model)
        if adapter is not None:
            self._refuse_misfit(adapter)
            return self._adapter_route(model, adapter.revision, adapter)
        revision = Revision.parse(model)
        if revision is not None and revision.name in self.catalog.adapters:
            current = self.catalog.find(revision)
            route = self._adapter_route(model, revision, current)
            if current is not None or route.seats:
                return route
        seats = tuple(Seat(s, model) for s in self._ready() if model in s.replica.seen.static)
        if seats or any(model in replica.seen.static for replica in self.replicas()):
            return Route(model, model, seats)
        self._refuse_rejected(model)
        return None

    def _adapter_route(self, model: str, revision: Revision, adapter: Adapter | None) -> Route:
        seats: tuple[Seat, ...] = ()
        if revision not in self.lost:
            able = (s for s in self._ready() if adapter is None or self.bases.accepts(adapter, s.replica.base_models))
            seats = tuple(Seat(s, s.replica.held[revision]) for s in able if revision in s.replica.held)
        return Route(model, revision.name, seats, adapter, revision)

    def _ready(self) -> Iterable[Station]:
        return (station for station in self.stations.values() if station.replica.ready)

    def _refuse_misfit(self, adapter: Adapter) -> None:
        if self.bases.fit(adapter) is Fit.NONE:
            raise AdapterRejected(adapter.name, self.bases.mismatch(adapter))

    def _refuse_rejected(self, model: str) -> None:
        rejected = self.catalog.rejected.get(model)
        if rejected is None:
            return
        if rejected.state is RejectedState.INCOMPLETE:
            raise AdapterIncomplete(f"The LoRA adapter '{model}' is still being written: {rejected.reason}", param="model")
        raise AdapterRejected(model, rejected.reason)


def inflight_by_adapter(stations: Mapping[str, Station]) -> Counter[Revision]:
    """This gateway's requests in flight, by revision."""
    counts: Counter[Revision] = Counter()
    for station in stations.values():
        for name, count in station.by_name.items():
            revision = station.replica.seen.names.get(name)
            if revision is not None:
                counts[revision] += count
    return counts
