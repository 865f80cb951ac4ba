"""What happens to a request for a name right now, and why: the words behind `lora-gateway explain`.

It looks at the registry as admission does, with the same resolution and the same picker, and promises nothing: the next
event may change it. Nothing is changed here. Times are monotonic seconds, given by the caller.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.core.adapters import Revision
from gateway.core.aliases import Alias
from gateway.core.bases import Fit
from gateway.core.errors import (
    AdapterLost,
    AdapterQuarantined,
    AdapterRejected,
    GatewayError,
    ModelNotFound,
    NoReplica,
    ReplicaFailed,
    ReplicaMisconfigured,
)
from gateway.core.picker import Seat, pick
from gateway.core.placement import placed
from gateway.core.places import Place, digest_of, places_for
from gateway.core.registry import Registry, Route
from gateway.core.remedies import with_remedy
from gateway.core.replica import FailureKind, LoraSupport, is_refused

RECENTLY_READY = 60.0  # a request waits for a replica that left `ready` this lately, as admission does


class Outcome(StrEnum):
    ANSWERED = "answered"
    WAITS = "waits"  # for a load or for room, and then it is answered
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ArmFate:
    """Where an alias may lead, with what would happen to a request there."""

    model: str
    weight: float
    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer that a client would get."""

    status: int
    code: str
    message: str

    @classmethod
    def of(cls, error: GatewayError) -> "Refusal":
        return cls(error.status, error.code, error.message)


@dataclass(frozen=True, slots=True)
class Explanation:
    """`stands_for` says what the name is, in words; `revision` which one would answer (or be loaded)."""

    model: str
    outcome: Outcome
    why: str
    stands_for: str
    revision: str | None = None
    base_model: str | None = None
    picked: str | None = None
    error: Refusal | None = None
    replicas: tuple[Place, ...] = ()
    arms: tuple[ArmFate, ...] = ()
    notes: tuple[str, ...] = ()


def explain(registry: Registry, model: str, *, now: float, limit: int = 0, session: bytes = b"") -> Explanation:
    """`limit`: the most requests on one replica, 0 for none; an empty `model` is a request that names none.

    `session` is what the client says its session is; it decides between the arms of an alias.
    """
    try:
        name = model or registry.absent_model()
        route = registry.route(name)
    except AdapterQuarantined as error:
        return _quarantined(registry, name, error, now, limit)
    except GatewayError as error:
        return _refused(model, _rejected_kind(registry, model), error)
    if route is None:
        return _unknown(registry, name)
    if route.alias is not None:
        return _alias(registry, route, now, limit, session)
    return _routed(registry, route, now, limit)


# what the name stands for


def _unknown(registry: Registry, name: str) -> Explanation:
    if not registry.scanned:
        return _refused(name, "unknown so far", NoReplica("The adapter directory has not been read yet."))
    if not registry.observed:
        return _refused(name, "unknown so far", NoReplica("No replica has told its models yet."))
    revision = Revision.parse(name)
    detail = ""
    if revision is not None and revision.name in registry.catalog.adapters:
        detail = f"No replica holds this revision of '{revision.name}' and no snapshot of it is stored."
    return _refused(name, "nothing: no base model, adapter, static LoRA or alias has this name", ModelNotFound(name, detail))


def _rejected_kind(registry: Registry, model: str) -> str:
    if model in registry.catalog.adapters:
        return "an adapter that does not fit the replicas"
    rejected = registry.catalog.rejected.get(model)
    return f"a folder whose files are {rejected.state.value}" if rejected is not None else "nothing"


def _refused(model: str, stands_for: str, error: GatewayError, revision: str | None = None) -> Explanation:
    return Explanation(model, Outcome.REFUSED, error.message, stands_for, revision, error=Refusal.of(error))


def _quarantined(registry: Registry, name: str, error: AdapterQuarantined, now: float, limit: int) -> Explanation:
    """One request at a time may try it once its time has come."""
    wait = error.trial_at - now
    told = _refused(name, "an adapter in quarantine", error, error.revision.digest)
    if wait > 0:
        note = f"in {wait:.0f} s the next request may try it; `lora-gateway adapters retry` ends the quarantine now"
        return replace(told, notes=(note,))
    if registry.strikes.quarantined[error.revision].running:
        return replace(told, notes=("a trial request with it is running",))
    route = registry.route(name, trial=True)
    if route is None:
        return told
    trial = _routed(registry, route, now, limit)
    return replace(trial, notes=("it is in quarantine: the next request is its trial, all others are refused", *trial.notes))


def _alias(registry: Registry, route: Route, now: float, limit: int, session: bytes) -> Explanation:
    """Without a session every arm is told and the best outcome counts; with one, what happens to its arm."""
    assert route.alias is not None
    alias, stands_for = route.alias, f"an alias for {route.alias}"
    fates = {arm.model: explain(registry, arm.model, now=now, limit=limit) for arm in alias.arms}
    arms = tuple(ArmFate(arm.model, arm.weight, fates[arm.model].outcome, fates[arm.model].why) for arm in alias.arms)
    arm = _arm(registry, alias, session) if session or len(arms) == 1 else None
    if arm is not None:
        whose = f"; the arm of this session is {arm}" if session else ""
        return replace(fates[arm], model=route.model, stands_for=stands_for + whose, arms=arms)
    best = next(outcome for outcome in Outcome if any(fate.outcome is outcome for fate in arms))
    if best is Outcome.REFUSED:
        known = (fate.error for fate in fates.values() if fate.error and fate.error.code != ModelNotFound.code)
        error = next(known, None) or Refusal.of(ModelNotFound(alias.name, f"It is an alias that leads to nothing: {alias}."))
        return Explanation(route.model, best, error.message, stands_for, error=error, arms=arms)
    why = "the client's session decides between the arms by their weights; an arm is taken only when a replica holds it"
    return Explanation(route.model, best, why, stands_for, arms=arms)


def _arm(registry: Registry, alias: Alias, session: bytes) -> str | None:
    """The model that admission takes for this session: the best that a replica holds, else the best that may come."""
    coming = None
    for model in alias.ranked(session):
        try:
            route = registry.route(model)
        except GatewayError:
            continue
        if route is not None and route.seats:
            return model
        if route is not None and coming is None:
            coming = model
    return coming


def _stands_for(registry: Registry, route: Route) -> str:
    if route.aside:
        return f"an older revision of the adapter {route.label}"
    if route.model in registry.catalog.adapters and route.model not in registry.bases.names:
        return "an adapter"
    if route.label != route.model:
        return f"the current revision of the adapter {route.label}"
    return "a base model of the replicas" if route.model in registry.bases.names else "a static LoRA of the replicas"


# who answers


def _routed(registry: Registry, route: Route, now: float, limit: int) -> Explanation:
    seat = pick(route.seats, registry.turn, limit=limit)
    if seat is not None and seat.station.queued:
        seat = None
    places = tuple(places_for(registry, route, seat, now, limit))
    base = route.adapter.base_model if route.adapter is not None else None
    revision = digest_of(seat) or (route.adapter.digest if route.adapter is not None else None)
    told = Explanation(
        route.model, Outcome.ANSWERED, "", _stands_for(registry, route), revision, base, replicas=places,
        notes=tuple(_notes(registry, route)),
    )  # fmt: skip
    if seat is not None:
        picked = seat.station.replica.id
        return replace(told, why=_why_picked(seat, sum(place.answers for place in places)), picked=picked)
    if route.seats:
        return replace(told, outcome=Outcome.WAITS, why="every replica that serves it is at its limit: it waits for room")
    error = _hopeless(registry, route, now)
    if error is not None:
        return replace(told, outcome=Outcome.REFUSED, why=error.message, error=Refusal.of(error))
    return replace(told, outcome=Outcome.WAITS, why=_awaited(registry, route))


def _why_picked(seat: Seat, count: int) -> str:
    who = seat.station.replica.id
    if count == 1:
        return f"{who} answers: it is the only one that can now"
    return f"{who} answers: of the {count} replicas that can, none has fewer requests of this gateway in flight"


def _awaited(registry: Registry, route: Route) -> str:
    if route.adapter is None or not any(replica.ready for replica in registry.replicas()):
        return "it waits for a replica: one was ready a moment ago"
    loading = [r.id for r in registry.replicas() if route.adapter.revision in r.loading]
    if loading:
        return f"it waits for the load that runs on {', '.join(sorted(loading)[:3])}, then it is answered there"
    return "no replica holds it yet: the request makes the load urgent, waits for it, and is answered where it lands first"


def _hopeless(registry: Registry, route: Route, now: float) -> GatewayError | None:
    """What ends the wait of a request before it began; None while something may still come."""
    replicas = list(registry.replicas())
    if not any(replica.ready for replica in replicas):
        if any(now - left < RECENTLY_READY for left in registry.left_ready.values()):
            return None
        return NoReplica("No replica is ready.")
    adapter = route.adapter
    if adapter is None:
        return NoReplica(f"No replica that serves '{route.model}' is ready.")
    if adapter.revision in registry.lost:
        return AdapterLost(adapter.name, registry.lost[adapter.revision])
    holders = placed(adapter, replicas, registry.bases)
    if not holders:
        if any(r.ready and r.lora is LoraSupport.UNSUPPORTED for r in replicas):
            return ReplicaMisconfigured("No replica can load LoRA adapters.")
        return NoReplica("No replica of its base model is ready.")
    failures = [(r, r.failures.get(adapter.revision)) for r in holders if adapter.revision not in r.loading]
    if len(failures) < len(holders) or any(failure is None for _, failure in failures):
        return None
    if any(is_refused(replica, adapter.revision) for replica in holders):
        reasons = (f.reason for _, f in failures if f is not None and f.kind is FailureKind.REJECTED)
        return AdapterRejected(adapter.name, with_remedy(next(reasons), adapter))
    replica, failure = failures[0]
    return ReplicaFailed(f"The last load failed on every replica; {replica.id}: {failure.reason if failure else ''}")


def _notes(registry: Registry, route: Route) -> Iterator[str]:
    """What else a person should know about the name."""
    catalog, name = registry.catalog, route.model
    current = catalog.adapters.get(name)
    if current is None or route.adapter is None:
        return
    if name in catalog.pins:
        yield f"pinned on {catalog.pins[name]}: `lora-gateway adapters unpin` lets it follow the directory"
    if route.adapter.digest != current.digest:
        yield f"every replica refuses the revision {current.digest}; {route.adapter.digest} goes on serving"
    rejected = catalog.rejected.get(name)
    if rejected is not None:
        yield f"new files in its folder are {rejected.state.value}: {rejected.reason}"
    if registry.bases.fit(current) is Fit.DIFFERS:
        yield registry.bases.mismatch(current)
