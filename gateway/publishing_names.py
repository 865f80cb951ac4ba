"""Which names an adapter can be published under, and whether the place for it is free; no more than a look is taken.

A name is a path below the adapter directory that a scan would find: not hidden, not temporary, not reserved, not deeper
than the gateway looks, and not led out of the directory by a link.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gateway.control.files import CONFIG, DISK, Entry, is_inside
from gateway.control.walk import is_printable, is_skipped
from gateway.core.adapters import Revision

MAX_PART = 240  # bytes: a snapshot's name is 13 longer
_HUB = "models--"


class Unpublishable(Exception):
    """One line for people: what is wrong and what to do."""


def check_name(name: str, depth: int) -> None:
    """Raises Unpublishable for a name that the gateway would not serve."""
    parts = name.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise Unpublishable(f"{name!r} is no name: give the parts of a path below the adapter directory, as in team/legal")
        if not is_printable(part):
            raise Unpublishable(f"the name {name!r} has control characters or is not valid UTF-8")
        if is_skipped(part):
            raise Unpublishable(f"the gateway passes over names like {part!r} (hidden or temporary): choose another")
        if Revision.parse(part) is not None:
            raise Unpublishable(f"{part!r} is reserved: `@` and 12 hex digits at the end mark a revision")
        if part.startswith(_HUB):
            raise Unpublishable(f"{part!r} looks like a hub cache: give the name itself, as in org/legal")
        if len(part.encode()) > MAX_PART:
            raise Unpublishable(f"{part[:40]!r}... is too long: at most {MAX_PART} bytes between two slashes")
    if len(parts) > depth:
        raise Unpublishable(f"{name!r} is {len(parts)} deep, the gateway looks {depth} deep: see --adapter-depth")


def check_place(directory: Path, name: str, snapshots: Path) -> None:
    """Raises Unpublishable when something else than an adapter of this name is in the way, OSError when one cannot look."""
    target = directory / name
    if target == snapshots or snapshots in target.parents or target in snapshots.parents:
        raise Unpublishable(f"{name!r} would lie where the snapshots are: choose another name")
    parent = _existing(target.parent)
    if not parent.is_dir():
        raise Unpublishable(f"{str(parent.relative_to(directory))!r} is a file, no folder")
    if not is_inside(os.path.realpath(parent), os.path.realpath(directory)):
        raise Unpublishable(f"{name!r} lies behind a link that leads outside the adapter directory")
    for tree in _hub_trees(directory, name):
        if tree.is_dir():
            raise Unpublishable(f"the hub cache {tree.name} has this name already: remove it, or choose another name")
    entries = _listed(target, name)
    if entries and CONFIG not in {entry.name for entry in entries}:
        raise Unpublishable(f"{name!r} is a folder already and no adapter: choose another name")
    others = sorted(entry.name for entry in entries if entry.is_folder and not is_skipped(entry.name))
    if others:
        shown = ", ".join(others[:3])
        raise Unpublishable(f"the folder {name!r} holds others ({shown}), which would go with it: move them away first")


def _listed(target: Path, name: str) -> list[Entry]:
    """What the folder there holds, empty for none and for a link; another publisher may exchange it meanwhile."""
    with suppress(FileNotFoundError):
        while True:
            before = target.lstat()
            if stat.S_ISLNK(before.st_mode):
                break
            if not stat.S_ISDIR(before.st_mode):
                raise Unpublishable(f"{name!r} is a file already: remove it, or choose another name")
            entries = DISK.listing(str(target))
            if os.path.samestat(before, target.lstat()):
                return entries
    return []


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest above that exists."""
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder


def _hub_trees(directory: Path, name: str) -> Iterator[Path]:
    """Where a hub cache tree would take the same name."""
    parts = name.split("/")
    for above in range(len(parts)):
        yield directory.joinpath(*parts[:above], _HUB + "--".join(parts[above:]))
