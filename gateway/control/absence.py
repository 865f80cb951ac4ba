"""What it takes to believe that an adapter's folder is gone: so many looks in a row, over so many seconds.

Shares lie: a listing comes back empty once, a mount goes away and shows the empty folder below it. A folder that is
missing while others are there is confirmed by a second look. Where nothing is left, more looks are needed, and if the
folder that held it is not the one it was, no number of looks is enough.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.control.walk import Place, Tree


class Proof(NamedTuple):
    looks: int
    seconds: float


SECOND_LOOK = 0.5
MISSING = Proof(2, SECOND_LOOK)
EMPTIED = Proof(3, 2 * SECOND_LOOK)  # nothing is left in the folder, and its date says that names were removed
SILENT = Proof(12, 60.0)  # nothing is left, but the folder does not say so: a listing that lags, or dates that never move
NEVER = Proof(2**31, float("inf"))


def proof_needed(parent: str, tree: Tree, before: Mapping[str, Place]) -> Proof:
    """For a name that `tree` lacks. `before` tells which folder each place was when all was well."""
    if tree.truncated:
        return NEVER
    holder = _nearest_listed(parent, tree)
    if holder is None:
        return NEVER
    now, then = tree.listed[holder], before.get(holder)
    exchanged = then is not None and (now.device, now.inode) != (then.device, then.inode)
    if not _holds_any(holder, tree.found):
        if exchanged:
            return NEVER
        told = then is None or now.modified != then.modified or holder != parent
        return EMPTIED if told else SILENT
    return EMPTIED if exchanged else MISSING


def failure_above(name: str, tree: Tree) -> OSError | None:
    """The error that kept the walk from seeing this name, if there was one."""
    while True:
        if name in tree.failed:
            return tree.failed[name]
        if not name:
            return None
        name = name.rpartition("/")[0]


def _nearest_listed(parent: str, tree: Tree) -> str | None:
    while parent not in tree.listed:
        if not parent:
            return None
        parent = parent.rpartition("/")[0]
    return parent


def _holds_any(holder: str, names: Iterable[str]) -> bool:
    prefix = f"{holder}/" if holder else ""
    return any(name.startswith(prefix) for name in names)
