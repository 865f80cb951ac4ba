"""Why a wait for a replica ends without one: what the registry says of an adapter or a fleet, as an error for the client."""

from collections.abc import Callable, Collection

from gateway.core.adapters import Adapter
from gateway.core.bases import Fit
from gateway.core.errors import (
    AdapterLoading,
    AdapterLost,
    AdapterRejected,
    GatewayError,
    NoReplica,
    ReplicaCannotSeeAdapter,
    ReplicaCredentials,
    ReplicaFailed,
    ReplicaMisconfigured,
    ReplicasBusy,
)
from gateway.core.placement import placed
from gateway.core.registry import Registry, Route
from gateway.core.remedies import with_remedy
from gateway.core.replica import Failure, FailureKind, LoraSupport, Replica

RECENTLY_READY = 60.0  # seconds: a replica that left `ready` this lately may well come back


class Refusals:
    """Reads the registry; `load_wait` and the clock in seconds."""

    def __init__(self, registry: Registry, load_wait: float, clock: Callable[[], float]) -> None:
        self._registry, self._load_wait, self._clock = registry, load_wait, clock

    def give_up_if_hopeless(self, route: Route, begun: float, avoid: Collection[str]) -> None:
        registry = self._registry
        ready = [r for r in registry.replicas() if r.ready]
        if not ready and not self._may_return():
            raise self.no_replica()
        if route.seats and all(seat.station.replica.id in avoid for seat in route.seats) and len(ready) <= len(avoid):
            raise NoReplica("No replica that could take the request can be reached.")
        if route.adapter is None:
            return
        adapter = route.adapter
        if adapter.revision in registry.lost:
            raise AdapterLost(adapter.name, registry.lost[adapter.revision])
        holders = placed(adapter, registry.replicas(), registry.bases)
        if ready and not holders:
            self._refuse_unplaceable(ready)
        verdicts = [r.failures.get(adapter.revision) for r in holders]
        if holders and all(v is not None and _stands(v, begun) for v in verdicts):
            raise self._verdict(adapter, [(r, v) for r, v in zip(holders, verdicts, strict=True) if v is not None])

    def _may_return(self) -> bool:
        """No replica is ready, but one was a moment ago, or one that is new may be as soon as it was probed."""
        now = self._clock()
        if any(replica.unknown for replica in self._registry.replicas()):
            return True
        return any(now - left < RECENTLY_READY for left in self._registry.left_ready.values())

    def _refuse_unplaceable(self, ready: list[Replica]) -> None:
        if any(r.lora is LoraSupport.UNSUPPORTED for r in ready):
            names = ", ".join(r.id for r in ready)
            raise ReplicaMisconfigured(
                f"No replica can load LoRA adapters ({names}): start vLLM with --enable-lora and the environment "
                "variable VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."
            )

    def _verdict(self, adapter: Adapter, failures: list[tuple[Replica, Failure]]) -> GatewayError:
        """What the replicas said; a verdict on the adapter itself weighs most."""
        replica, failure = min(failures, key=lambda pair: _WEIGHT.index(pair[1].kind))
        if failure.kind is FailureKind.REJECTED:
            reason = with_remedy(failure.reason, adapter)
            if self._registry.bases.fit(adapter) is Fit.DIFFERS:
                reason = f"{reason} ({self._registry.bases.mismatch(adapter)})"
            return AdapterRejected(adapter.name, reason)
        if failure.kind is FailureKind.MISSING:
            return ReplicaCannotSeeAdapter(
                f"The replica {replica.id} cannot see the LoRA adapter '{adapter.name}': {failure.reason}. "
                "Check that it mounts the adapter directory, and --replica-adapter-dir if it does so at another path."
            )
        if failure.kind is FailureKind.CREDENTIALS:
            return ReplicaCredentials(f"The replica {replica.id} refused the gateway's credentials: see --replica-api-key.")
        return ReplicaFailed(f"The replica {replica.id} could not load the LoRA adapter '{adapter.name}': {failure.reason}")

    def too_late(self, route: Route) -> GatewayError:
        if route.seats:
            return ReplicasBusy(f"Every replica that serves '{route.label}' is at its limit of requests; try again shortly.")
        if route.adapter is not None and any(r.ready for r in self._registry.replicas()):
            wait = f"{self._load_wait:g}"
            return AdapterLoading(f"The LoRA adapter '{route.label}' was not loaded within {wait} s; it goes on loading.")
        return self.no_replica()

    def no_replica(self) -> GatewayError:
        replicas = list(self._registry.replicas())
        if replicas and any(r.refuses_key for r in replicas):
            ids = ", ".join(r.id for r in replicas if r.refuses_key)
            return ReplicaCredentials(f"The replica {ids} refused the gateway's credentials: see --replica-api-key.")
        if not replicas:
            return NoReplica("No replica is known yet.")
        shown = "; ".join(f"{r.id} is {r.phase}" + (r.reason and f" ({r.reason})") for r in replicas[:3])
        more = f" and {len(replicas) - 3} more" if len(replicas) > 3 else ""
        return NoReplica(f"No replica is ready: {shown}{more}.")


_WEIGHT = (FailureKind.REJECTED, FailureKind.MISSING, FailureKind.CREDENTIALS, FailureKind.ERROR, FailureKind.TIMEOUT)


def _stands(failure: Failure, begun: float) -> bool:
    """A verdict holds until the files or the replica change; anything else must be news since the request came."""
    return failure.kind is FailureKind.REJECTED or failure.at >= begun
