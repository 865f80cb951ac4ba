"""The status document: the registry as one JSON value, for scripts, the console and the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.adapters import Adapter, Rejected, Revision
from gateway.core.registry import Registry, inflight_by_adapter
from gateway.core.replica import Replica
from gateway.core.standing import State, standing


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What the document says of the gateway itself."""

    version: str
    started_at: float
    placement: str
    snapshots: str
    watch_mode: Callable[[], str]
    snapshots_reason: Callable[[], str]
    shutting_down: Callable[[], bool]


class Status:
    """Builds the document from the registry when somebody asks."""

    def __init__(self, registry: Registry, about: About) -> None:
        self._registry, self._about = registry, about

    def readiness(self) -> Readiness:
        registry = self._registry
        if self._about.shutting_down():
            return Readiness(False, "the gateway is shutting down")
        if not registry.scanned:
            return Readiness(False, "the adapter directory has not been read yet")
        replicas = list(registry.replicas())
        ready = sum(replica.ready for replica in replicas)
        if not ready:
            return Readiness(False, f"0 of {len(replicas)} replicas are ready")
        return Readiness(True, registry.catalog.trouble)

    def document(self) -> dict[str, Any]:
        return {"gateway": self.gateway(), "adapters": self.adapters(), "replicas": self.replicas()}

    def gateway(self) -> dict[str, Any]:
        about, readiness = self._about, self.readiness()
        return {
            "version": about.version,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "started_at": about.started_at,
            "watch": about.watch_mode(),
            "placement": about.placement,
            "snapshots": about.snapshots,
            "snapshots_reason": about.snapshots_reason(),
            "directory": self._registry.catalog.trouble,
        }

    def adapters(self) -> list[dict[str, Any]]:
        catalog, inflight = self._registry.catalog, inflight_by_adapter(self._registry.stations)
        rows = {name: self._adapter(adapter, inflight) for name, adapter in catalog.adapters.items()}
        for name, rejected in catalog.rejected.items():
            if name in rows:  # an older revision still serves
                rows[name]["reason"] = rows[name]["reason"] or f"new files are {rejected.state}: {rejected.reason}"
            else:
                rows[name] = _rejected(rejected)
        for revision in self._registry.unwanted:
            if revision.name not in rows:
                removing = self._removing(revision, inflight)
                if removing["replicas"]:
                    rows[revision.name] = removing
        return [rows[name] for name in sorted(rows)]

    def _adapter(self, adapter: Adapter, inflight: Mapping[Revision, int]) -> dict[str, Any]:
        now = standing(adapter, self._registry)
        fields = {
            "name": adapter.name,
            "revision": adapter.digest,
            "path": adapter.path,
            "base_model": adapter.base_model,
            "rank": adapter.rank,
            "state": now.state.value,
            "reason": now.reason,
            "warnings": list(now.warnings),
            "inflight": sum(count for revision, count in inflight.items() if revision.name == adapter.name),
            "snapshot": adapter.home.value,
            "size_bytes": adapter.size_bytes,
            "seen_at": adapter.seen_at,
        }
        replicas = self._registry.replicas()
        return fields | {"replicas": {r.id: _on_replica(adapter.revision, r) for r in replicas}}

    def _removing(self, revision: Revision, inflight: Mapping[Revision, int]) -> dict[str, Any]:
        held = {r.id: {"state": "loaded", "reason": ""} for r in self._registry.replicas() if revision in r.held}
        row = _row(revision.name, "", State.REMOVING, "its folder is gone; it is unloaded after its running requests")
        return row | {"revision": revision.digest, "inflight": inflight.get(revision, 0), "replicas": held}

    def replicas(self) -> list[dict[str, Any]]:
        rows = []
        for station in self._registry.stations.values():
            replica = station.replica
            rows.append(
                {
                    "id": replica.id,
                    "url": replica.url,
                    "phase": replica.phase.value,
                    "reason": replica.reason,
                    "lora": replica.lora.value,
                    "base_models": list(replica.base_models),
                    "held": sorted(str(revision) for revision in replica.held),
                    "served_names": dict(sorted((name, str(r)) for name, r in replica.seen.names.items())),
                    "static": list(replica.seen.static),
                    "loading": sorted(str(revision) for revision in replica.loading),
                    "inflight": station.inflight,
                    "last_seen": station.last_seen,
                }
            )
        return sorted(rows, key=lambda row: str(row["id"]))


def _on_replica(revision: Revision, replica: Replica) -> dict[str, Any]:
    failure = replica.failures.get(revision)
    if revision in replica.held:
        return {"state": "loaded", "reason": "", "served_name": replica.held[revision]}
    if revision in replica.loading:
        return {"state": "loading", "reason": failure.reason if failure else ""}
    if failure is not None:
        return {"state": "failed", "reason": failure.reason, "kind": failure.kind.value, "attempts": failure.attempts}
    return {"state": "absent", "reason": ""}


def _row(name: str, path: str, state: State, reason: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"revision": None, "base_model": None, "rank": None, "warnings": [], "inflight": 0}
    return {
        "name": name,
        "path": path,
        "state": state.value,
        "reason": reason,
        "snapshot": None,
        "replicas": {},
    } | empty


def _rejected(rejected: Rejected) -> dict[str, Any]:
    row = _row(rejected.name, rejected.path, State(rejected.state.value), rejected.reason)
    return row | {"since": rejected.since}
