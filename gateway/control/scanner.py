"""Scans the adapter directory into a catalog: blocking, one scan at a time, and cheap where nothing changed.

A scan is a function of the directory and of what the last ones saw. An unchanged folder costs a few looks at its
files. One folder's trouble never touches another. When new bytes are incomplete or wrong, the old revision stays as
long as its snapshot is whole, and the catalog tells both. A root that cannot be read, or is not the one it was and
empty, keeps the last catalog.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gateway.control.absence import NEVER, SILENT, failure_above, proof_needed
from gateway.control.alias_file import NAME as ALIASES
from gateway.control.alias_file import NO_ALIASES, parse_aliases
from gateway.control.cataloguing import assemble
from gateway.control.files import DISK, FileLayer, signature, written_at
from gateway.control.folder_memory import FolderMemory
from gateway.control.followed_file import FollowedFile
from gateway.control.pins import Pins
from gateway.control.shelf import Shelf
from gateway.control.snapshots import Snapshots, Stored
from gateway.control.validation import Facts, Rules, inspect
from gateway.control.verdicts import Incomplete, Invalid, Refused
from gateway.control.walk import MAX_FOLDERS, Found, Place, Tree, Walk, place_of
from gateway.core.adapters import Adapter, Catalog, Home

HOME_RETRY = 60.0  # seconds until a snapshot that could not be made is tried again


class Scanner:
    def __init__(
        self,
        root: Path,
        *,
        depth: int,
        rules: Rules,
        snapshots: Snapshots | None,
        settle: float = 2.0,
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        layer: FileLayer = DISK,
    ) -> None:
        self.root = root
        self._depth, self._rules, self._snapshots, self._settle = depth, rules, snapshots, settle
        self._steady, self._wall, self._layer = steady, wall, layer
        self.shelf = Shelf(snapshots, Pins(snapshots.home), rules) if snapshots else None
        self._aliases = FollowedFile(root / ALIASES, root, parse_aliases, NO_ALIASES, layer=layer)
        self._lock = threading.Lock()
        self._memories: dict[str, FolderMemory] = {}
        self._good: dict[str, Place] = {}  # which folder each place was when nothing was missing below it
        self._listed: dict[str, Place] = {}
        self._now = self._wall_now = 0.0
        self._real_root = str(root)
        self.catalog = Catalog()
        self.restless = False  # something is to be looked at again soon

    def __repr__(self) -> str:
        return f"<Scanner {self.root.name}: {len(self.catalog.adapters)} adapters, {len(self.catalog.rejected)} rejected>"

    def scan(self) -> Catalog:
        """The catalog now; the same object as before when nothing differs."""
        with self._lock:
            self._now, self._wall_now = self._steady(), self._wall()
            self._real_root = os.path.realpath(self.root)
            home = [str(self._snapshots.home)] if self._snapshots else []
            tree = Walk(str(self.root), self._depth, self._layer, home).tree()
            self._listed = tree.listed
            catalog = self._complete(assemble(self._memories.values(), self._take(tree)))
            self.restless = any(memory.is_restless() for memory in self._memories.values())
            if catalog != self.catalog:
                self.catalog = catalog
            return self.catalog

    def _complete(self, catalog: Catalog) -> Catalog:
        """With what people wish: pins and aliases."""
        if self.shelf is not None:
            catalog = self.shelf.arrange(catalog, self._wall_now)
        aliases = self._aliases.read()
        return replace(catalog, aliases=aliases, aliases_trouble=self._aliases.trouble)

    def pending(self) -> set[str]:
        """Names whose files are right but too fresh to be believed before the next look."""
        return {name for name, memory in self._memories.copy().items() if memory.pending}

    def root_place(self) -> Place | None:
        """Which folder the root was in the last scan; None when it could not be read."""
        return self._listed.get("")

    def parents_changed(self) -> bool:
        """Whether a folder that was listed in the last scan has other names in it now. Costs one look each."""
        for rel, place in self._listed.items():
            try:
                if place_of(f"{self.root}/{rel}" if rel else str(self.root), self._layer) != place:
                    return True
            except OSError:
                return True
        return False

    def digest_now(self, adapter: Adapter) -> str:
        """The digest of the files that replicas load for this adapter. Raises Incomplete, Invalid or OSError."""
        if adapter.home is Home.OWN_PATH:
            return inspect(Path(adapter.load_path), self._rules, root=self.root, layer=self._layer).digest
        return inspect(Path(adapter.load_path), Rules(allow_pickle=True), layer=self._layer).digest

    # one scan

    def _take(self, tree: Tree) -> str:
        """Bring every memory up to what the walk saw; the directory's trouble in words."""
        if "" in tree.failed:
            return f"the adapter directory cannot be read: {tree.failed[''].strerror}"
        for name, found in tree.found.items():
            memory = self._memories.setdefault(name, FolderMemory(found))
            memory.found, memory.misses = found, 0
            self._judge(memory)
        for name, error in tree.failed.items():
            if name not in self._memories and not isinstance(error, FileNotFoundError | NotADirectoryError):
                folder = f"{self.root}/{name}"
                self._memories[name] = FolderMemory(Found(name, folder, name.rpartition("/")[0], ()))
        return "; ".join(filter(None, (self._miss(tree), self._too_many(tree))))

    def _too_many(self, tree: Tree) -> str:
        if not tree.truncated:
            return ""
        return f"more than {MAX_FOLDERS} folders: the rest is not looked at; move what is no adapter elsewhere"

    def _miss(self, tree: Tree) -> str:
        """Go through what is remembered but was not seen."""
        trouble, missing_below = "", set()
        for name in self._memories.keys() - tree.found.keys():
            memory = self._memories[name]
            error = failure_above(name, tree)
            if error is not None:
                memory.fail(_unreadable(error), self._wall_now)
                continue
            proof = proof_needed(memory.found.parent, tree, self._good)
            if memory.miss(proof, self._now):
                del self._memories[name]
                continue
            missing_below.update(_lineage(memory.found.parent))
            if proof in (NEVER, SILENT) and not tree.truncated:
                where = memory.found.parent or "the adapter directory"
                trouble = f"{where} is empty or was exchanged: is the share mounted? Its last state is kept"
        self._good |= {rel: place for rel, place in tree.listed.items() if rel not in missing_below}
        self._good = {rel: place for rel, place in self._good.items() if rel in tree.listed or rel in missing_below}
        return trouble

    # one folder

    def _judge(self, memory: FolderMemory) -> None:
        found = memory.found
        if found.problem is not None:
            memory.marks, memory.judged = (), True
            self._reject(memory, found.problem)
            return
        try:
            memory.mark(signature(found.folder, self._layer, found.files), self._now)
            memory.failures = 0 if memory.judged else memory.failures
            if memory.judged and self._is_home(memory):
                return
            self._examine(memory)
            memory.failures = 0
        except OSError as error:
            memory.fail(_unreadable(error), self._wall_now)

    def _is_home(self, memory: FolderMemory) -> bool:
        """Whether the adapter still lies where replicas load it from; drops it when it does not."""
        adapter = memory.adapter
        if adapter is None:
            return True
        if adapter.home is Home.OWN_PATH:
            return self._snapshots is None or self._now - memory.homed_at < HOME_RETRY
        if self._snapshots is not None and self._snapshots.intact(adapter.revision) is not None:
            return True
        if memory.rejected is not None:
            memory.adapter = None
        return memory.rejected is not None

    def _examine(self, memory: FolderMemory) -> None:
        """Judge the files as they are now."""
        folder = Path(memory.found.folder)
        try:
            facts = inspect(folder, self._rules, root=self.root, layer=self._layer)
            if self._is_believed(memory, facts):
                stored = self._store(memory, facts)
                if stored.facts.digest == facts.digest:
                    self._adopt(memory, stored)
                else:  # exchanged meanwhile: what was stored may be the config of one and the weights of another
                    memory.drop_unless_stored()
                    memory.wait(self._wall_now)
        except Incomplete as refused:
            memory.judged = True
            self._reject(memory, refused)
        except Invalid as refused:
            if memory.is_settled(self._settle, self._now, self._wall_now):
                memory.judged = True
                self._reject(memory, refused)
            else:
                memory.drop_unless_stored()
                memory.wait(self._wall_now)

    def _is_believed(self, memory: FolderMemory, facts: Facts) -> bool:
        if memory.adapter is not None and memory.adapter.digest == facts.digest:
            return True
        if memory.is_settled(self._settle, self._now, self._wall_now):
            return True
        memory.drop_unless_stored()
        memory.wait(self._wall_now)
        return False

    def _store(self, memory: FolderMemory, facts: Facts) -> Stored:
        folder = Path(memory.found.folder)
        if self._snapshots is None:
            return Stored(facts, folder, Home.OWN_PATH)
        memory.homed_at = self._now
        stored = self._snapshots.make(memory.found.name, folder, facts)
        if stored.home is Home.LINK:  # making links moved the change time of the files: that is no news
            marks = signature(str(folder), self._layer, memory.found.files)
            if memory.same_but_relinked(marks):
                memory.marks = marks
        return stored

    def _adopt(self, memory: FolderMemory, stored: Stored) -> None:
        facts, old = stored.facts, memory.adapter
        is_same = old is not None and old.digest == facts.digest
        adapter = Adapter(
            name=memory.found.name,
            digest=facts.digest,
            path=memory.found.folder,
            load_path=str(stored.path),
            home=stored.home,
            base_model=facts.base_model,
            rank=facts.rank,
            size_bytes=facts.size_bytes,
            warnings=facts.warnings,
            seen_at=old.seen_at if old is not None and is_same else self._wall_now,
            home_reason=stored.reason,
            made_at=written_at(memory.marks),
        )
        memory.adapter, memory.rejected = adapter, None
        memory.judged, memory.pending = True, False

    def _reject(self, memory: FolderMemory, refused: Refused) -> None:
        memory.reject(refused, self._wall_now)
        memory.drop_unless_stored()
        self._is_home(memory)


def _unreadable(error: OSError) -> Refused:
    """Permission is for a person to give; anything else heals by itself, and is tried again with each scan."""
    reason = f"the files cannot be read: {error.strerror or 'unknown error'}"
    if isinstance(error, PermissionError):
        return Invalid(f"{reason}; let the gateway's user read the folder and its files", "unreadable")
    return Incomplete(f"{reason}; tried again with each scan", "unreadable")


def _lineage(rel: str) -> list[str]:
    """The folder and all above it, the root last."""
    parts = rel.split("/") if rel else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
