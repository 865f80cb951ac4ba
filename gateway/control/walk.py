"""Finds what looks like an adapter below the adapter directory: a folder with adapter_config.json, or a hub cache tree.

A walk only lists and looks, it reads no content (but refs/main of hub trees), and judges nothing it could not see: what
failed is told apart from what is absent. Names are paths below the root. Hidden and temporary names are skipped, links
are followed inside the root only, loops end where they begin, and the number of folders is bounded.
"""

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.control.files import CONFIG, CONTENT, Entry, FileLayer, is_inside
from gateway.control.hub_cache import current_snapshot, hub_name, is_other_tree
from gateway.control.verdicts import Invalid, Refused
from gateway.core.adapters import Revision

MAX_FOLDERS = 20_000
SKIPPED_SUFFIXES = (".part", ".tmp", ".partial", ".incomplete", "~")
_SKIPPED = frozenset({"__pycache__", "lost+found"})
_OUTSIDE = "the folder is a link that leads outside the adapter directory: put the folder itself there"
_RESERVED = "reserved name: `@` and 12 hex digits at the end mark a revision; rename the folder"
_UNPRINTABLE = "the folder's name has control characters or is not valid UTF-8: rename the folder"


class Place(NamedTuple):
    """Which folder a path leads to and when its list of names last changed."""

    device: int
    inode: int
    modified: int


@dataclass(frozen=True, slots=True)
class Found:
    """A folder that looks like an adapter."""

    name: str
    folder: str  # absolute
    parent: str  # the folder that lists it, as a path below the root ("" is the root)
    files: tuple[str, ...]  # config and weight files that its listing shows
    problem: Refused | None = None  # what its place or name alone forbids


@dataclass(slots=True)
class Tree:
    """What one walk saw. Keys of `listed` and `failed` are paths below the root."""

    found: dict[str, Found] = field(default_factory=dict)
    listed: dict[str, Place] = field(default_factory=dict)
    failed: dict[str, OSError] = field(default_factory=dict)
    truncated: bool = False


def is_skipped(name: str) -> bool:
    """Whether a name is never an adapter nor a folder of adapters: hidden (`..data` too), temporary, not ours."""
    return name.startswith(".") or name.endswith(SKIPPED_SUFFIXES) or name in _SKIPPED or is_other_tree(name)


def place_of(path: str, layer: FileLayer) -> Place:
    status = layer.stat(path)
    return Place(status.st_dev, status.st_ino, status.st_mtime_ns)


class Walk:
    """One walk over `root`, `depth` levels deep; folders in `excluded` (absolute paths) are left out."""

    def __init__(self, root: str, depth: int, layer: FileLayer, excluded: Iterable[str] = (), most: int = MAX_FOLDERS) -> None:
        self._root, self._depth, self._layer = root, depth, layer
        self._excluded, self._most = frozenset(excluded), most
        self._real_root = root
        self._visited = 0
        self._tree = Tree()

    def tree(self) -> Tree:
        self._real_root = os.path.realpath(self._root)
        self._visit("", self._root, self._depth, frozenset(), None)
        return self._tree

    def _visit(self, rel: str, path: str, depth: int, chain: frozenset[tuple[int, int]], problem: Refused | None) -> None:
        """List one folder, note it when it is an adapter, and go on to its folders while `depth` allows."""
        self._visited += 1
        if self._visited > self._most:
            self._tree.truncated = True
            return
        try:
            place = place_of(path, self._layer)  # before the listing: what changes in between is seen next time
            entries = self._layer.listing(path)
            names = {entry.name for entry in entries}
            is_adapter = CONFIG in names and rel != ""
            if is_adapter:
                self._note(rel, path, names, problem)
            folders = [entry for entry in entries if entry.is_folder and not is_skipped(entry.name)] if depth else []
        except OSError as error:
            self._tree.failed[rel] = error
            return
        if is_adapter and not folders:
            return
        self._tree.listed[rel] = place
        identity = place.device, place.inode
        if identity in chain:  # only a link can lead back to a folder above
            return
        for entry in sorted(folders):
            self._enter(rel, path, entry, depth - 1, chain | {identity}, problem)

    def _enter(
        self,
        parent: str,
        path: str,
        entry: Entry,
        depth: int,
        chain: frozenset[tuple[int, int]],
        problem: Refused | None,
    ) -> None:
        child = f"{path}/{entry.name}"
        rel = f"{parent}/{entry.name}" if parent else entry.name
        if child in self._excluded:
            return
        if entry.is_link and not is_inside(os.path.realpath(child), self._real_root):
            problem, depth = problem or Invalid(_OUTSIDE, "outside"), 0
        elif not is_printable(entry.name):
            problem, depth = problem or Invalid(_UNPRINTABLE, "name"), 0
            rel = _escaped(rel)
        elif Revision.parse(entry.name) is not None:
            problem = problem or Invalid(_RESERVED, "name")
        if entry.name.startswith("models--") and self._enter_hub_tree(parent, child, entry.name, problem):
            return
        self._visit(rel, child, depth, chain, problem)

    def _enter_hub_tree(self, parent: str, tree: str, folder_name: str, problem: Refused | None) -> bool:
        """Note the one adapter of a hub cache tree; False when the folder is none."""
        try:
            name = hub_name(folder_name, {entry.name for entry in self._layer.listing(tree)})
        except OSError:
            return False  # the plain visit meets the same error and tells it
        if name is None:
            return False
        rel = f"{parent}/{name}" if parent else name
        try:
            folder = current_snapshot(tree, self._real_root, self._layer)
            names = {entry.name for entry in self._layer.listing(folder)}
        except Invalid as refused:
            self._note(rel, tree, {CONFIG}, problem or refused, parent)
        except OSError as error:
            self._tree.failed[rel] = error
        else:
            if CONFIG in names:
                self._note(rel, folder, names, problem, parent)
        return True

    def _note(self, name: str, folder: str, names: set[str], problem: Refused | None, parent: str | None = None) -> None:
        parent = name.rpartition("/")[0] if parent is None else parent
        if name in self._tree.found:  # a plain folder org/alpha beside models--org--alpha
            reason = "the name is taken twice, by a folder and by a hub cache tree: remove one of them"
            problem = Invalid(reason, "duplicate")
        files = tuple(file for file in CONTENT if file in names)
        self._tree.found[name] = Found(name, folder, parent, files, problem)


def is_printable(name: str) -> bool:
    """Whether a name can be shown: no control characters, valid UTF-8."""
    if name.isascii():
        return name.isprintable()
    return not any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name)


def _escaped(name: str) -> str:
    """A printable stand-in for a name that cannot be shown."""
    text = name.encode("utf-8", "backslashreplace").decode()
    return "".join(letter if is_printable(letter) else ascii(letter)[1:-1] for letter in text)
