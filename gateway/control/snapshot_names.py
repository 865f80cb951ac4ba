"""How folders in the home of the snapshots are named, and how they are found again.

`NAME@DIGEST` is a snapshot; a hidden name is something half done: made aside, put away, or found broken.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.core.adapters import Revision

STAGING = ".staging-"
AWAY = ".away-"
BROKEN = ".broken-"
_DEPTH = 12  # names of adapters have no more parts than this


def aside(target: Path, prefix: str) -> Path:
    """The hidden name beside a snapshot. Cut so that it fits; the digest at the end stays."""
    room = 250 - len(prefix)
    name = target.name.encode()[-room:].decode(errors="ignore")
    return target.with_name(f"{prefix}{name}")


def revisions_below(home: Path) -> Iterator[Revision]:
    for path in _folders(home, _DEPTH):
        revision = Revision.parse(path.relative_to(home).as_posix())
        if revision is not None:
            yield revision


def rubbish_below(home: Path) -> Iterator[Path]:
    for path in _folders(home, _DEPTH):
        if path.name.startswith((STAGING, AWAY, BROKEN)):
            yield path


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """All folders below that are no links; into a snapshot or something half done it does not go."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        yield folder / name
        if depth and not name.startswith(".") and Revision.parse(name) is None:
            yield from _folders(folder / name, depth - 1)
