"""Where a request for a model may go, replica by replica, in words: who may answer under which name, and what is missing.

Derived from the registry and a route of it; nothing is changed. Times are monotonic seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.core.adapters import Adapter
from gateway.core.picker import Seat, Station
from gateway.core.registry import Registry, Route
from gateway.core.remedies import with_remedy
from gateway.core.replica import FailureKind, LoraSupport, Replica


@dataclass(frozen=True, slots=True)
class Place:
    """One replica: whether it may answer, under which served name and with which revision; `missing`: why it may not now."""

    replica: str
    phase: str
    answers: bool
    picked: bool
    served_name: str | None
    revision: str | None
    inflight: int
    missing: str


def places_for(registry: Registry, route: Route, picked: Seat | None, now: float, limit: int) -> Iterator[Place]:
    seats = {seat.station.replica.id: seat for seat in route.seats}
    for station in sorted(registry.stations.values(), key=lambda station: station.replica.id):
        replica, seat = station.replica, seats.get(station.replica.id)
        missing = _busy(station, limit) if seat is not None else _missing(registry, route, replica, now)
        yield Place(
            replica.id,
            replica.phase.value,
            seat is not None and not missing,
            picked is not None and seat is picked,
            seat.served_name if seat is not None else None,
            digest_of(seat),
            station.inflight,
            missing,
        )


def digest_of(seat: Seat | None) -> str | None:
    return seat.revision.digest if seat is not None and seat.revision is not None else None


def _busy(station: Station, limit: int) -> str:
    if limit and station.inflight >= limit:
        return f"busy: {station.inflight} of at most {limit} requests run there"
    return f"{station.queued} requests wait for room there" if station.queued else ""


def _missing(registry: Registry, route: Route, replica: Replica, now: float) -> str:
    if not replica.ready:
        return f"{replica.phase.value}: {replica.reason}" if replica.reason else replica.phase.value
    if route.adapter is None:
        return "does not serve it"
    adapter = registry.catalog.adapters.get(route.model, route.adapter)
    if replica.lora is LoraSupport.UNSUPPORTED:
        return "cannot load LoRA: start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
    if not registry.bases.accepts(adapter, replica.base_models):
        return f"another base model: it serves {', '.join(replica.base_models)}, the adapter is for {adapter.base_model}"
    return _not_loaded(registry, adapter, replica, now)


def _not_loaded(registry: Registry, adapter: Adapter, replica: Replica, now: float) -> str:
    revision = adapter.revision
    if revision in registry.lost:
        return registry.lost[revision]
    if revision in replica.held:
        return "held, but not in use"
    failure = replica.failures.get(revision)
    if revision in replica.loading:
        return "is being loaded now"
    if failure is None:
        return "not loaded yet"
    if failure.kind is FailureKind.REJECTED:
        return f"rejected: {with_remedy(failure.reason, adapter)}"
    wait = max(0.0, failure.retry_at - now)
    return f"the load failed ({failure.kind.value}, {failure.attempts} times), tried again in {wait:.0f} s: {failure.reason}"
