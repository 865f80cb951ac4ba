"""How a model's name is resolved: compared whole with known names, in this order: base models, adapters, `NAME@REVISION`,
static LoRAs of the replicas, aliases. Never a look at the disk; a folder that was rejected says why.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gateway.core.adapters import Adapter, RejectedState, Revision
from gateway.core.bases import Fit
from gateway.core.errors import AdapterIncomplete, AdapterQuarantined, AdapterRejected
from gateway.core.leases import Route
from gateway.core.picker import Seat, Station
from gateway.core.replica import is_refused

if TYPE_CHECKING:
    from gateway.core.registry import Registry


class Resolver:
    """Reads the registry as it is now."""

    def __init__(self, registry: "Registry") -> None:
        self._registry = registry

    def find(self, model: str, *, trial: bool = False) -> Route | None:
        """None when nobody knows the name; raises what keeps a known adapter from being served."""
        if model in self._registry.bases.names:
            return Route(model, model, tuple(Seat(s, model) for s in self._ready() if model in s.replica.base_models))
        adapter = self._registry.catalog.adapters.get(model)
        if adapter is not None:
            self._refuse_misfit(adapter)
            self._refuse_quarantined(adapter.revision, trial)
            return Route(model, model, self._seats(adapter), self._registry.stand_in(adapter) or adapter)
        revision = Revision.parse(model)
        if revision is not None and revision.name in self._registry.catalog.adapters:
            self._refuse_quarantined(revision, trial)
            route = self._find_revision(model, revision)
            if route is not None:
                return route
        seats = tuple(Seat(s, model) for s in self._ready() if model in s.replica.seen.static)
        if seats or any(model in replica.seen.static for replica in self._registry.replicas()):
            return Route(model, model, seats)
        alias = self._registry.catalog.aliases.get(model)
        if alias is not None and model not in self._registry.catalog.rejected:
            return Route(model, model, (), alias=alias)
        self._refuse_rejected(model)
        return None

    def _find_revision(self, model: str, revision: Revision) -> Route | None:
        """A revision that a client names; None when it is neither current, nor held, nor taken from its snapshot."""
        adapter = self._registry.catalog.get(revision)
        seats = tuple(self._holders(revision, adapter))
        if adapter is None and not seats:
            return None
        return Route(model, revision.name, seats, adapter, aside=self._registry.catalog.find(revision) is None)

    def _seats(self, adapter: Adapter) -> tuple[Seat, ...]:
        """Where the current revision is held, and a former one where the current one has not come yet.

        A replica that refuses the current one serves a former one only while no replica serves the current one.
        """
        current = list(self._holders(adapter.revision, adapter))
        formers = self._registry.catalog.formers.get(adapter.name)
        if not formers:
            return tuple(current)
        seats = {seat.station.replica.id: seat for seat in current}
        for seat in current:
            seat.station.shown[adapter.name] = adapter.digest
        for former in formers:
            shelved = self._registry.catalog.shelf.get(former) if former not in self._registry.strikes.quarantined else None
            for seat in self._holders(former, shelved) if shelved is not None else ():
                if seat.station.shown.get(adapter.name) == adapter.digest:
                    continue  # it has answered with the current one: never back
                if not current or not is_refused(seat.station.replica, adapter.revision):
                    seats.setdefault(seat.station.replica.id, seat)
        return tuple(seats.values())

    def _holders(self, revision: Revision, adapter: Adapter | None) -> Iterator[Seat]:
        """The ready replicas that hold a revision which is not lost; only those of its base model when that is known."""
        if revision in self._registry.lost:
            return
        for station in self._ready():
            replica = station.replica
            if revision in replica.held and (adapter is None or self._registry.bases.accepts(adapter, replica.base_models)):
                yield Seat(station, replica.held[revision], revision)

    def _ready(self) -> Iterable[Station]:
        return (station for station in self._registry.stations.values() if station.replica.ready)

    def _refuse_misfit(self, adapter: Adapter) -> None:
        if self._registry.bases.fit(adapter) is Fit.NONE:
            raise AdapterRejected(adapter.name, self._registry.bases.mismatch(adapter))

    def _refuse_quarantined(self, revision: Revision, trial: bool) -> None:
        quarantine = self._registry.strikes.quarantined.get(revision)
        if quarantine is not None and not trial:
            raise AdapterQuarantined(revision, quarantine)

    def _refuse_rejected(self, model: str) -> None:
        rejected = self._registry.catalog.rejected.get(model)
        if rejected is None:
            return
        if rejected.state is RejectedState.INCOMPLETE:
            raise AdapterIncomplete(f"The LoRA adapter '{model}' is still being written: {rejected.reason}", param="model")
        raise AdapterRejected(model, rejected.reason)
