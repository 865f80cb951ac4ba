"""How an adapter stands in the fleet: on every placed replica, on some, on none yet; derived from the registry."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.adapters import Adapter, Revision
from gateway.core.bases import Fit
from gateway.core.placement import placed
from gateway.core.registry import Registry
from gateway.core.remedies import with_remedy
from gateway.core.replica import FailureKind, Replica


class State(StrEnum):
    READY = "ready"  # every placed replica that is ready holds the current revision
    PARTIAL = "partial"
    PENDING = "pending"
    INCOMPLETE = "incomplete"
    INVALID = "invalid"
    REJECTED = "rejected"
    QUARANTINED = "quarantined"
    REMOVING = "removing"


@dataclass(frozen=True, slots=True)
class Standing:
    state: State
    reason: str = ""
    warnings: tuple[str, ...] = ()


def standing(adapter: Adapter, registry: Registry) -> Standing:
    """The state of a valid adapter, with the reason when it is not ready and what to warn of when it is."""
    revision, bases = adapter.revision, registry.bases
    warnings = list(adapter.warnings)
    if adapter.name in bases.names:
        return Standing(State.INVALID, "a base model of the replicas has this name; the base model answers to it")
    fit = bases.fit(adapter)
    if fit is Fit.NONE:
        return Standing(State.INVALID, bases.mismatch(adapter), tuple(warnings))
    if fit is Fit.DIFFERS:
        warnings.append(f"base model name differs: {bases.mismatch(adapter)}")
    if adapter.home_reason:
        warnings.append(f"loaded from its own folder: {adapter.home_reason}")
    if revision in registry.lost:
        return Standing(State.INVALID, registry.lost[revision], tuple(warnings))
    quarantine = registry.strikes.quarantined.get(revision)
    if quarantine is not None:
        return Standing(State.QUARANTINED, quarantine.reason, tuple(warnings))
    holders = placed(adapter, registry.replicas(), bases)
    holding = [r for r in holders if revision in r.held]
    failures = [(r, r.failures[revision]) for r in holders if revision in r.failures]
    reason = _told_by([(replica.id, with_remedy(failure.reason, adapter)) for replica, failure in failures])
    if holders and len(holding) == len(holders):
        state = State.READY
    elif holding:
        state = State.PARTIAL
    elif holders and len(failures) == len(holders) and all(f.kind is FailureKind.REJECTED for _, f in failures):
        state = State.REJECTED
        former = registry.stand_in(adapter)
        if former is not None:
            reason += f"; the revision {former.digest} goes on serving"
    else:
        state = State.PENDING
        reason = reason or ("" if holders else "no replica that could hold it is ready")
    return Standing(state, reason, tuple(warnings))


def _told_by(reasons: list[tuple[str, str]], most: int = 3) -> str:
    """Each reason once, with the replicas that gave it; the first few of both."""
    replicas: dict[str, list[str]] = {}
    for replica, reason in reasons:
        replicas.setdefault(reason.rstrip("."), []).append(replica)
    told = []
    for reason, who in list(replicas.items())[:most]:
        more = f" and {len(who) - most} more" if len(who) > most else ""
        told.append(f"{', '.join(who[:most])}{more}: {reason}")
    return "; ".join(told)


def unconverged(registry: Registry) -> dict[Revision, Adapter]:
    """Adapters that some placed, ready replica does not hold yet and may still get."""
    return {adapter.revision: adapter for adapter in registry.catalog.adapters.values() if is_behind(adapter, registry)}


def is_behind(adapter: Adapter, registry: Registry) -> bool:
    """Whether some placed, ready replica does not hold it yet and may still get it."""
    revision = adapter.revision
    if adapter.name in registry.bases.names or revision in registry.lost or revision in registry.strikes.quarantined:
        return False
    return any(_may_come(replica, revision) for replica in placed(adapter, registry.replicas(), registry.bases))


def _may_come(replica: Replica, revision: Revision) -> bool:
    failure = replica.failures.get(revision)
    return revision not in replica.held and (failure is None or failure.kind is not FailureKind.REJECTED)
