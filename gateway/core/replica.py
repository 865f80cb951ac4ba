"""One vLLM replica as the gateway knows it: a frozen record that only its reconciler replaces.

What it holds comes from its own model list alone. *Ours* is what was loaded from under this gateway's adapter directory
(as the replicas see it) and tells its revision by path or by name; everything else is static and left alone.
"""

import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from gateway.core.adapters import Revision

NOT_PROBED = "not probed yet"


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


class LoraSupport(StrEnum):
    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class FailureKind(StrEnum):
    REJECTED = "rejected"  # a verdict on the adapter: stays until the revision or the replica changes
    MISSING = "missing"  # the replica does not see the files: a mount that lags, or a wrong path mapping
    CREDENTIALS = "credentials"
    ERROR = "error"  # the replica's own failure
    TIMEOUT = "timeout"  # may still take effect: observed, not assumed


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last load of a revision on a replica did not work. Times are on the monotonic clock, in seconds."""

    kind: FailureKind
    reason: str
    at: float
    retry_at: float  # infinite for a verdict
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Health:
    """Up or down, and how many probes in a row disagree with that."""

    up: bool = False
    streak: int = 0

    def after(self, ok: bool, *, rise: int, fall: int) -> "Health":
        if ok == self.up:
            return Health(self.up)
        streak = self.streak + 1
        return Health(ok) if streak >= (rise if ok else fall) else Health(self.up, streak)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One row of a replica's `/v1/models`; a row without parent is a base model."""

    id: str
    root: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Roots:
    """The adapter directory and the snapshots as the replicas see them: absolute, normalised paths."""

    adapters: str
    snapshots: str

    def revision(self, entry: ModelEntry) -> Revision | None:
        """The revision of ours that this row tells; None for a base model and for what is not ours."""
        if entry.root is None:
            return None
        by_path = self.snapshot(entry)
        if by_path is not None:
            return by_path if entry.id in (by_path.name, str(by_path)) else None
        return Revision.parse(entry.id) if _below(self.adapters, entry.root) else None

    def snapshot(self, entry: ModelEntry) -> Revision | None:
        """The snapshot this row was loaded from, whatever its name."""
        below = _below(self.snapshots, entry.root) if entry.root else None
        return Revision.parse(below) if below else None


def _below(root: str, path: str) -> str | None:
    """`path` relative to `root`, None when it is not below it."""
    path = posixpath.normpath(path)
    prefix = root.rstrip("/") + "/"
    return path[len(prefix) :] if path.startswith(prefix) else None


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look at a replica's model list showed."""

    base_models: tuple[str, ...] = ()
    base_roots: tuple[str, ...] = ()
    names: Mapping[str, Revision] = field(default_factory=lambda: MappingProxyType({}))  # ours, by served name
    static: tuple[str, ...] = ()
    snapshots: frozenset[Revision] = frozenset()  # every snapshot something was loaded from

    @classmethod
    def of(cls, entries: Iterable[ModelEntry], roots: Roots) -> "Observation":
        bases: dict[str, str] = {}
        names: dict[str, Revision] = {}
        static: list[str] = []
        snapshots = set()
        for entry in entries:
            if entry.parent is None:
                bases[entry.id] = entry.root or ""
                continue
            if (snapshot := roots.snapshot(entry)) is not None:
                snapshots.add(snapshot)
            if (revision := roots.revision(entry)) is not None:
                names[entry.id] = revision
            else:
                static.append(entry.id)
        held = MappingProxyType(names)
        return cls(tuple(bases), tuple(filter(None, bases.values())), held, tuple(static), frozenset(snapshots))


@dataclass(frozen=True, slots=True)
class Replica:
    """One vLLM server. `id` is `host:port`."""

    id: str
    url: str
    phase: Phase = Phase.STARTING
    reason: str = NOT_PROBED
    lora: LoraSupport = LoraSupport.UNKNOWN
    seen: Observation = Observation()
    held: Mapping[Revision, str] = field(default_factory=lambda: MappingProxyType({}))  # revision -> served name
    loading: frozenset[Revision] = frozenset()
    failures: Mapping[Revision, Failure] = field(default_factory=lambda: MappingProxyType({}))
    refuses_key: bool = False  # it answered 401 or 403 to the gateway itself

    @property
    def ready(self) -> bool:
        return self.phase is Phase.READY

    @property
    def unknown(self) -> bool:
        """Whether nothing is known of it so far, good or bad."""
        return self.phase is Phase.STARTING and self.reason == NOT_PROBED

    @property
    def base_models(self) -> tuple[str, ...]:
        return self.seen.base_models

    @property
    def can_load(self) -> bool:
        return self.ready and self.lora is not LoraSupport.UNSUPPORTED

    # transitions: each gives the next record

    def adopting(self, seen: Observation, known: Collection[Revision]) -> "Replica":
        """What was seen is what is. Failures are kept for `known` revisions only."""
        held = held_under(seen.names)
        failures = {r: f for r, f in self.failures.items() if r not in held and r in known}
        lora = LoraSupport.SUPPORTED if seen.names or seen.static else self.lora
        return replace(self, seen=seen, held=held, failures=MappingProxyType(failures), lora=lora, refuses_key=False)

    def naming(self, names: Mapping[str, Revision]) -> "Replica":
        """It holds these of ours, by served name."""
        kept = MappingProxyType(dict(names))
        return replace(self, seen=replace(self.seen, names=kept), held=held_under(kept))

    def without(self, served_name: str) -> "Replica":
        return self.naming({name: r for name, r in self.seen.names.items() if name != served_name})

    def beginning(self, revision: Revision) -> "Replica":
        return replace(self, loading=self.loading | {revision})

    def loaded(self, revision: Revision, served_name: str) -> "Replica":
        """It said yes to a load."""
        failures = MappingProxyType({r: f for r, f in self.failures.items() if r != revision})
        record = self.naming({**self.seen.names, served_name: revision})
        return replace(record, failures=failures, lora=LoraSupport.SUPPORTED)

    def ending(self, revision: Revision) -> "Replica":
        return replace(self, loading=self.loading - {revision})

    def failing(self, revision: Revision, failure: Failure) -> "Replica":
        lora = LoraSupport.SUPPORTED if failure.kind is FailureKind.REJECTED else self.lora
        return replace(self, failures=MappingProxyType({**self.failures, revision: failure}), lora=lora)

    def unable(self) -> "Replica":
        """It has no way to load an adapter: run-time loading or LoRA itself is switched off."""
        return replace(self, lora=LoraSupport.UNSUPPORTED)

    def reborn(self) -> "Replica":
        """A new process: what the old one refused or could not do says nothing any more."""
        return replace(self, failures=MappingProxyType({}), lora=LoraSupport.UNKNOWN)


def is_refused(replica: Replica, revision: Revision) -> bool:
    """Whether the replica gave a verdict against this revision."""
    failure = replica.failures.get(revision)
    return failure is not None and failure.kind is FailureKind.REJECTED


def held_under(names: Mapping[str, Revision]) -> Mapping[Revision, str]:
    """The served name to use for each revision: the plain one where two gateways gave it two."""
    held: dict[Revision, str] = {}
    for name in sorted(names):  # NAME sorts before NAME@DIGEST
        held.setdefault(names[name], name)
    return MappingProxyType(held)
