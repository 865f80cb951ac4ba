"""What the directory holds: adapters, their revisions, and the catalog of them all (the desired state).

An adapter is immutable: new bytes under an old name are a new revision. What a replica holds is always one exact
revision, and its own model list tells which: either the path it was loaded from ends in `NAME@DIGEST` (a snapshot), or
the name it was loaded under does. Nothing here reads a file; the directory's scan fills these values in.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from gateway.core.aliases import Alias

DIGEST_LENGTH = 12
_PINNED = re.compile(rf"(?P<name>.+)@(?P<digest>[0-9a-f]{{{DIGEST_LENGTH}}})", re.DOTALL)


class Revision(NamedTuple):
    """One content of one adapter: equal means the same bytes under the same name. Prints as `NAME@DIGEST`."""

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Revision | None":
        """The revision that `NAME@DIGEST` names; None when the text has no such ending."""
        match = _PINNED.fullmatch(text)
        return cls(match["name"], match["digest"]) if match else None


class Home(StrEnum):
    """Where the replicas read a revision from: a snapshot made by links or copies, or the adapter's own path."""

    LINK = "link"
    COPY = "copy"
    OWN_PATH = "own path"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A valid LoRA in the directory. Paths are absolute and on the gateway's side."""

    name: str
    digest: str
    path: str  # the folder that people see
    load_path: str  # what replicas load: the snapshot, or `path`
    home: Home
    base_model: str | None
    rank: int  # the largest of `r` and the values of `rank_pattern`
    size_bytes: int
    warnings: tuple[str, ...] = ()
    seen_at: float = 0.0  # wall clock, when this revision was first seen by this process
    made_at: int = 0  # seconds, when its files were last written: the same for every gateway
    home_reason: str = ""  # why it is loaded from its own path although snapshots are on
    revision: Revision = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "revision", Revision(self.name, self.digest))

    @property
    def plain_name_tells(self) -> bool:
        """Whether the load path alone tells the revision, so that a replica may hold it under its plain name."""
        return self.home is not Home.OWN_PATH


class RejectedState(StrEnum):
    INCOMPLETE = "incomplete"  # files are still being written: will heal by itself
    INVALID = "invalid"  # complete but wrong


@dataclass(frozen=True, slots=True)
class Rejected:
    """A folder that looks like an adapter but cannot be one now. `reason` holds no path outside the directory."""

    name: str
    path: str
    state: RejectedState
    reason: str
    code: str = "other"  # a short fixed word for the metric `validation_failures_total{reason}`
    since: float = 0.0  # wall clock, when this state was first seen


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every adapter of the directory by name, at the revision that the name means now, and the rejected ones.

    The shelf has other revisions that lie in a whole snapshot and may be served too: what a name meant before, what
    clients asked for by `NAME@REVISION`, and what the directory holds where a pin says otherwise.
    """

    adapters: Mapping[str, Adapter] = field(default_factory=lambda: MappingProxyType({}))
    rejected: Mapping[str, Rejected] = field(default_factory=lambda: MappingProxyType({}))
    trouble: str = ""  # why the directory itself cannot be read; the last good adapters stay
    shelf: Mapping[Revision, Adapter] = field(default_factory=lambda: MappingProxyType({}))
    formers: Mapping[str, tuple[Revision, ...]] = field(default_factory=lambda: MappingProxyType({}))  # newest first
    stored: frozenset[Revision] = frozenset()  # every revision that has a snapshot
    pins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # name -> digest
    pins_trouble: str = ""
    aliases: Mapping[str, Alias] = field(default_factory=lambda: MappingProxyType({}))
    aliases_trouble: str = ""

    def find(self, revision: Revision) -> Adapter | None:
        """The adapter that is this very revision now."""
        adapter = self.adapters.get(revision.name)
        return adapter if adapter is not None and adapter.digest == revision.digest else None

    def get(self, revision: Revision) -> Adapter | None:
        """This revision, current or from the shelf."""
        return self.find(revision) or self.shelf.get(revision)
