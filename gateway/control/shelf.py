"""What else may be served than what the directory holds now: pinned revisions, former ones, and those asked for.

All of them lie in snapshots, which are looked at with each scan; one that is not whole any more is off the shelf. It
works inside a scan, and turns the catalog of the directory into the catalog that counts.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from gateway.control.files import signature, written_at
from gateway.control.pins import Pins
from gateway.control.snapshots import Snapshots
from gateway.control.validation import Rules, inspect
from gateway.control.verdicts import Refused
from gateway.core.adapters import Adapter, Catalog, Home, Rejected, RejectedState, Revision

FORMERS = 8  # earlier revisions of a name that are kept ready to serve


class Shelf:
    """Methods block, but `ask` and `has`."""

    def __init__(self, snapshots: Snapshots, pins: Pins, rules: Rules) -> None:
        self._snapshots, self._rules = snapshots, rules
        self.pins = pins
        self._stored: frozenset[Revision] = frozenset()
        self._known: dict[Revision, Adapter] = {}  # made from snapshots
        self._asked: set[Revision] = set()
        self._current: Mapping[str, Adapter] = {}
        self._formers: dict[str, tuple[Adapter, ...]] = {}

    def __repr__(self) -> str:
        return f"<Shelf {len(self._stored)} stored, {len(self._asked)} asked for, {self.pins!r}>"

    def has(self, revision: Revision) -> bool:
        """Whether a snapshot of it was there at the last scan."""
        return revision in self._stored

    def ask(self, revision: Revision) -> None:
        """A client wants this revision, which is stored: the next scan takes it from its snapshot."""
        self._asked.add(revision)

    def arrange(self, catalog: Catalog, wall: float) -> Catalog:
        """The catalog with pins applied, former revisions and those that were asked for."""
        self._stored = frozenset(self._snapshots.on_disk())
        self._asked &= self._stored
        self._known = {revision: adapter for revision, adapter in self._known.items() if revision in self._stored}
        pins = self.pins.read()
        adapters, rejected = dict(catalog.adapters), dict(catalog.rejected)
        shelf: dict[Revision, Adapter] = {}
        for name, digest in pins.items():
            self._apply_pin(Revision(name, digest), adapters, rejected, shelf, wall)
        self._remember(adapters)
        for formers in self._formers.values():
            shelf.update((adapter.revision, adapter) for adapter in formers)
        for revision in self._asked:
            current = adapters.get(revision.name)
            if current is not None and current.digest != revision.digest and revision not in shelf:
                adapter = self._take(revision, current.path, wall)
                if adapter is not None:
                    shelf[revision] = adapter
        return replace(
            catalog,
            adapters=MappingProxyType(dict(sorted(adapters.items()))),
            rejected=MappingProxyType(rejected),
            shelf=MappingProxyType(shelf),
            formers=MappingProxyType({n: tuple(a.revision for a in kept) for n, kept in self._formers.items()}),
            stored=self._stored,
            pins=pins,
            pins_trouble=self.pins.trouble,
        )

    def _apply_pin(
        self,
        pinned: Revision,
        adapters: dict[str, Adapter],
        rejected: dict[str, Rejected],
        shelf: dict[Revision, Adapter],
        wall: float,
    ) -> None:
        """What the directory holds goes on the shelf. A name that the directory lost is gone, pinned or not."""
        name = pinned.name
        newest, refused = adapters.get(name), rejected.get(name)
        if (newest is None and refused is None) or (newest is not None and newest.digest == pinned.digest):
            return
        path = newest.path if newest is not None else rejected[name].path
        adapter = self._take(pinned, path, wall)
        if adapter is not None:
            adapters[name] = adapter
            if newest is not None and newest.home is not Home.OWN_PATH:
                shelf[newest.revision] = newest
            return
        reason = f"pinned to the revision {pinned.digest}, whose snapshot is gone or not allowed here"
        reason += ": unpin it, or publish those files again"
        adapters.pop(name, None)
        rejected[name] = Rejected(name, path, RejectedState.INVALID, reason, "pin", refused.since if refused else wall)

    def _remember(self, adapters: Mapping[str, Adapter]) -> None:
        """Note what names meant before, as long as its snapshot is whole."""
        formers: dict[str, tuple[Adapter, ...]] = {}
        for name, adapter in adapters.items():
            kept = list(self._formers.get(name, ()))
            before = self._current.get(name)
            if before is not None and before.digest != adapter.digest and before.home is not Home.OWN_PATH:
                kept.insert(0, before)
            whole = {a.digest: a for a in kept if a.digest != adapter.digest and self._is_whole(a.revision)}
            if whole:
                formers[name] = tuple(whole.values())[:FORMERS]
        self._formers, self._current = formers, adapters

    def _is_whole(self, revision: Revision) -> bool:
        return revision in self._stored and self._snapshots.intact(revision) is not None

    def _take(self, revision: Revision, path: str, wall: float) -> Adapter | None:
        """The adapter that a snapshot holds; None when it is not whole, or not allowed here."""
        home = self._snapshots.intact(revision) if revision in self._stored else None
        if home is None:
            self._known.pop(revision, None)
            return None
        known = self._known.get(revision)
        if known is not None and known.path == path:
            return known
        folder = self._snapshots.path(revision)
        try:
            facts, marks = inspect(folder, self._rules), signature(str(folder))
        except (Refused, OSError):
            return None
        adapter = self._known[revision] = Adapter(
            name=revision.name,
            digest=revision.digest,
            path=path,
            load_path=str(folder),
            home=home,
            base_model=facts.base_model,
            rank=facts.rank,
            size_bytes=facts.size_bytes,
            warnings=facts.warnings,
            seen_at=wall,
            made_at=written_at(marks),
        )
        return adapter
