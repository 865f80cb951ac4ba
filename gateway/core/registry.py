"""What the gateway knows: the catalog, the replicas, and the requests in flight. The control loop writes the first two,
leases write the third; the two planes share this object and nothing else.

A name is resolved against known names only, never against the disk, and the result is kept until something changes.
Choosing a replica and counting it is one synchronous step.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.core.adapters import Adapter, Catalog, Revision
from gateway.core.bases import Bases
from gateway.core.errors import InvalidRequest
from gateway.core.leases import Lease as Lease
from gateway.core.leases import Route as Route
from gateway.core.picker import Seat, Station
from gateway.core.placement import placed
from gateway.core.replica import Replica, is_refused
from gateway.core.resolution import Resolver
from gateway.core.strikes import Evidence, Strikes
from gateway.core.wakeup import Wakeup, call_next


class Unwanted(NamedTuple):
    """Since when (monotonic seconds), and at which scan, a revision is not in the catalog; `turn`: its last request."""

    since: float
    scan: int
    turn: int = 0


class Registry:
    """See the module. `scanned` and `observed` say whether the first look at the directory and at a replica is done."""

    def __init__(self, *, strict_base_model: bool = False) -> None:
        self.catalog = Catalog()
        self.stations: dict[str, Station] = {}
        self.bases = Bases.of((), strict=strict_base_model)
        self.strikes = Strikes()
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
        self._uses: dict[Revision, int] = {}  # of revisions that their names do not mean now: number of the last request
        self._strict = strict_base_model
        self._resolver = Resolver(self)
        self._routes: dict[str, Route] = {}
        self._turn = 0
        self._absent: str | None = None

    # what the control loop writes

    def replace_catalog(self, catalog: Catalog, now: float) -> None:
        self.catalog, self.scanned = catalog, True
        self.asked = {r for r in self.asked if catalog.get(r) is not None}
        self.lost = {r: why for r, why in self.lost.items() if catalog.get(r) is not None}
        self._uses = {r: turn for r, turn in self._uses.items() if r in catalog.shelf}
        self.strikes.keep([r for r in self.strikes.quarantined if catalog.get(r) is not None])
        self.last_used = {name: turn for name, turn in self.last_used.items() if name in catalog.adapters}
        self.unwanted = {r: u for r, u in self.unwanted.items() if catalog.find(r) is None}
        for station in self.stations.values():
            self._note_unwanted(station.replica, now)
            station.answered = {r: at for r, at in station.answered.items() if catalog.get(r) is not None}
        self._changed()

    def join(self, replica: Replica) -> Station:
        station = self.stations[replica.id] = Station(replica)
        self._changed()
        return station

    def leave(self, replica_id: str) -> None:
        self.stations.pop(replica_id, None)
        self.left_ready.pop(replica_id, None)
        self.strikes.forget_replica(replica_id)
        self._find_bases()
        self._changed()

    def publish(self, replica: Replica, now: float) -> None:
        """A reconciler's new record of its replica; ignored when the replica has left."""
        station = self.stations.get(replica.id)
        if station is None or station.replica == replica:
            return
        old, station.replica = station.replica, replica
        if not replica.held:
            station.shown.clear()
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

    def died(self, replica: Replica, at: float) -> list[Revision]:
        """A replica died unexpectedly; what is quarantined because of it."""
        station = self.stations.get(replica.id)
        answered = station.answered.copy() if station is not None else {}
        if station is not None:
            station.answered.clear()
        others = [other for other in self.stations.values() if other is not station]
        held = {revision for other in others for revision in other.replica.held}
        known = Evidence(answered, tuple(other.answered for other in others), held)
        convicted = self.strikes.died(replica.id, at, replica.loading, known)
        if convicted:
            self._changed()
        return convicted

    def release(self, revision: Revision) -> bool:
        """End a quarantine; whether there was one."""
        if not self.strikes.release(revision):
            return False
        self._changed()
        return True

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
        """What nobody should hold any more: unwanted for `linger` seconds and two scans, or lost. Each use counts anew."""
        for revision, turn in self._uses.items():
            unwanted = self.unwanted.get(revision)
            if unwanted is not None and unwanted.turn != turn:
                self.unwanted[revision] = Unwanted(now, self.scans, turn)
        gone = {r for r, u in self.unwanted.items() if now - u.since >= linger and self.scans - u.scan >= 2}
        return gone | self.lost.keys()

    def still_serves(self, revision: Revision, replica: Replica) -> bool:
        """Whether a replica answers with a former revision because it does not hold the current one."""
        current = self.catalog.adapters.get(revision.name)
        if current is None or current.revision in replica.held:
            return False
        formers = self.catalog.formers.get(revision.name, ())
        return revision == next((former for former in formers if former in replica.held), None)

    def stand_in(self, adapter: Adapter) -> Adapter | None:
        """The former revision that goes on serving because every placed replica refuses the current one."""
        formers = self.catalog.formers.get(adapter.name)
        if not formers:
            return None
        holders = placed(adapter, self.replicas(), self.bases)
        if not holders or not all(is_refused(replica, adapter.revision) for replica in holders):
            return None
        for former in formers:
            if former in self.lost or former in self.strikes.quarantined:
                continue
            if not all(is_refused(replica, former) for replica in holders):
                return self.catalog.shelf.get(former)
        return None

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

    def route(self, model: str, *, trial: bool = False) -> Route | None:
        """Where `model` may go; None when nobody knows it. Raises what keeps a known adapter from being served.

        `trial`: as if it were not quarantined.
        """
        if trial:
            return self._resolver.find(model, trial=True)
        route = self._routes.get(model)
        if route is None:
            route = self._resolver.find(model)
            if route is not None:
                self._routes[model] = route
        return route

    def label(self, model: str) -> str | None:
        """The known name that a model's name stands for, whether it can be served or not."""
        catalog = self.catalog
        if model in catalog.adapters or model in catalog.rejected or model in self.bases.names or model in catalog.aliases:
            return model
        revision = Revision.parse(model)
        if revision is not None and revision.name in catalog.adapters:
            return revision.name
        return model if any(model in replica.seen.static for replica in self.replicas()) else None

    def lease(self, route: Route, model: str, seat: Seat) -> Lease:
        self._turn += 1
        if route.adapter is not None:
            self.last_used[route.label] = self._turn
            if route.aside:
                self._uses[route.adapter.revision] = self._turn
        return Lease(route, model, seat, self._lease_ended)

    @property
    def turn(self) -> int:
        return self._turn

    def _lease_ended(self, lease: Lease, station: Station) -> None:
        if lease.trial is not None:
            self.strikes.end_trial(lease.trial)
        if station.line:
            call_next(station.line)


def inflight_by_adapter(stations: Mapping[str, Station]) -> Counter[Revision]:
    """This gateway's requests in flight, by revision."""
    counts: Counter[Revision] = Counter()
    for station in stations.values():
        for name, count in station.by_name.items():
            revision = station.replica.seen.names.get(name)
            if revision is not None:
                counts[revision] += count
    return counts
