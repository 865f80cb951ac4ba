"""The status document: the registry as one JSON value, for scripts, the console and the command line.

Rows come one by one, so that who asks can let the event loop run in between: a large fleet takes a while to tell.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.admin.cells import Cells, in_full
from gateway.core.adapters import Adapter, Catalog, Rejected, Revision
from gateway.core.picker import Station
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


@dataclass(frozen=True, slots=True)
class _Look:
    """The registry at one moment."""

    catalog: Catalog
    replicas: Sequence[Replica]
    inflight: Mapping[str, int]  # by adapter
    removing: Mapping[str, Revision]  # what some replica holds still though its folder is gone

    @classmethod
    def at(cls, registry: Registry) -> "_Look":
        inflight: Counter[str] = Counter()
        for revision, count in inflight_by_adapter(registry.stations).items():
            inflight[revision.name] += count
        replicas = sorted(registry.replicas(), key=lambda replica: replica.id)
        known = registry.catalog.adapters.keys() | registry.catalog.rejected.keys()
        removing = {
            revision.name: revision
            for revision in sorted(registry.unwanted)
            if revision.name not in known and any(revision in replica.held for replica in replicas)
        }
        return cls(registry.catalog, replicas, inflight, removing)


class Status:
    """Builds the document from the registry when somebody asks."""

    def __init__(self, registry: Registry, about: About) -> None:
        self._registry, self._about = registry, about

    @property
    def shutting_down(self) -> bool:
        return self._about.shutting_down()

    def readiness(self) -> Readiness:
        registry = self._registry
        if self.shutting_down:
            return Readiness(False, "the gateway is shutting down")
        if not registry.scanned:
            return Readiness(False, "the adapter directory has not been read yet")
        replicas = list(registry.replicas())
        if not any(replica.ready for replica in replicas):
            why = "; ".join(f"{replica.id}: {replica.reason}" for replica in replicas[:3] if replica.reason)
            return Readiness(False, f"0 of {len(replicas)} replicas are ready" + (why and f" ({why})"))
        return Readiness(True, registry.catalog.trouble)

    def document(self) -> dict[str, Any]:
        return {"gateway": self.gateway(), "adapters": list(self.adapters()), "replicas": self.replicas()}

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
            "aliases": {
                name: {arm.model: arm.weight for arm in alias.arms} for name, alias in self._registry.catalog.aliases.items()
            },
            "aliases_reason": self._registry.catalog.aliases_trouble,
            "pins_reason": self._registry.catalog.pins_trouble,
        }

    def adapters(self, cells: Cells = in_full) -> Iterator[dict[str, Any]]:
        """One row for each name, sorted; valid or not, and those that are being removed."""
        look = _Look.at(self._registry)
        for name in sorted(look.catalog.adapters.keys() | look.catalog.rejected.keys() | look.removing.keys()):
            yield self._row(name, look, cells)

    def adapter(self, name: str) -> dict[str, Any] | None:
        """The row of one adapter; None when there is none such."""
        look = _Look.at(self._registry)
        if name in look.catalog.adapters or name in look.catalog.rejected or name in look.removing:
            return self._row(name, look, in_full) | {"revisions": self._revisions(name)}
        return None

    def _revisions(self, name: str) -> list[dict[str, Any]]:
        """Every revision of a name that is stored or held, the current one first, then what it meant before."""
        catalog = self._registry.catalog
        held: dict[str, list[str]] = {}
        for replica in sorted(self._registry.replicas(), key=lambda replica: replica.id):
            for revision in replica.held:
                if revision.name == name:
                    held.setdefault(revision.digest, []).append(replica.id)
        current = catalog.adapters.get(name)
        order = [current.digest] if current is not None else []
        order += [revision.digest for revision in catalog.formers.get(name, ())]
        order += sorted({r.digest for r in catalog.stored if r.name == name} | held.keys())
        return [
            {"revision": digest, "stored": Revision(name, digest) in catalog.stored, "replicas": held.get(digest, [])}
            for digest in dict.fromkeys(order)
        ]

    def _row(self, name: str, look: _Look, cells: Cells) -> dict[str, Any]:
        adapter, rejected = look.catalog.adapters.get(name), look.catalog.rejected.get(name)
        revision = look.removing.get(name)
        if adapter is not None:
            row, revision = self._known(adapter, rejected), adapter.revision
        elif rejected is not None:
            row = _empty(name, State(rejected.state.value), rejected.reason)
            row |= {"path": rejected.path, "since": rejected.since}
        else:
            row = _empty(name, State.REMOVING, "its folder is gone; it is unloaded after its running requests")
            row["revision"] = revision.digest if revision else None
        return row | {"inflight": look.inflight.get(name, 0)} | cells(revision, look.replicas)

    def _known(self, adapter: Adapter, rejected: Rejected | None) -> dict[str, Any]:
        now = standing(adapter, self._registry)
        reasons, catalog = [now.reason] if now.reason else [], self._registry.catalog
        pinned = catalog.pins.get(adapter.name)
        if rejected is not None:  # an older revision still serves
            reasons.append(f"new files are {rejected.state.value}: {rejected.reason}")
        return {
            "name": adapter.name,
            "revision": adapter.digest,
            "path": adapter.path,
            "base_model": adapter.base_model,
            "rank": adapter.rank,
            "state": now.state.value,
            "reason": "; ".join(reasons),
            "warnings": list(now.warnings),
            "snapshot": adapter.home.value,
            "pinned": pinned is not None,
            "size_bytes": adapter.size_bytes,
            "seen_at": adapter.seen_at,
        }

    def replicas(self) -> list[dict[str, Any]]:
        return [_replica(station) | _holdings(station.replica) for station in self._stations()]

    def replica_counts(self) -> list[dict[str, Any]]:
        """The same with numbers where `replicas` has the names of what a replica holds."""
        rows = []
        for station in self._stations():
            replica = station.replica
            counts = {"held": len(replica.held), "static": len(replica.seen.static), "loading": len(replica.loading)}
            rows.append(_replica(station) | counts)
        return rows

    def _stations(self) -> list[Station]:
        return sorted(self._registry.stations.values(), key=lambda station: station.replica.id)


def _replica(station: Station) -> dict[str, Any]:
    replica = station.replica
    return {
        "id": replica.id,
        "url": replica.url,
        "phase": replica.phase.value,
        "reason": replica.reason,
        "lora": replica.lora.value,
        "base_models": list(replica.base_models),
        "inflight": station.inflight,
        "last_seen": station.last_seen,
    }


def _holdings(replica: Replica) -> dict[str, Any]:
    return {
        "held": sorted(str(revision) for revision in replica.held),
        "served_names": dict(sorted((name, str(revision)) for name, revision in replica.seen.names.items())),
        "static": list(replica.seen.static),
        "loading": sorted(str(revision) for revision in replica.loading),
    }


def _empty(name: str, state: State, reason: str) -> dict[str, Any]:
    """The row of what is no adapter now, with every field that an adapter's row has."""
    return {
        "name": name,
        "revision": None,
        "path": "",
        "base_model": None,
        "rank": None,
        "state": state.value,
        "reason": reason,
        "warnings": [],
        "snapshot": None,
        "pinned": False,
        "size_bytes": None,
        "seen_at": None,
    }
