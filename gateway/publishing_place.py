"""Puts a finished folder into its place, where an older one may lie.

Two renames: the old folder goes aside under a hidden name, the new one comes in. A look in between sees neither, never a
mixture; a gateway believes that a folder is gone only after a second look half a second later, so the gap of some
microseconds harms nobody (and exchanging both in one step, renameat2, is not to be had on every share). Nobody else's
signal comes in between; a failure puts the old one back. Publishers of one name may run at once: each moves whole folders
only, and the last one wins.
"""

import errno
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ASIDE = ".replaced-"
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # another publisher came in between
_TRIES = 100
_HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def put_in_place(staging: Path, target: Path) -> Path | None:
    """Rename `staging` to `target`; a path when what was there before could not be removed. Raises OSError."""
    left: Path | None = None
    for attempt in range(_TRIES):
        aside = target.with_name(f"{ASIDE}{uuid.uuid4().hex[:12]}")
        with _undisturbed():
            moved = _moved(target, aside)
            try:
                staging.rename(target)
            except OSError as error:
                taken = error.errno in _TAKEN and attempt + 1 < _TRIES
                if moved and not taken:
                    _moved(aside, target)
                if not taken:
                    raise
                done = False
            else:
                done = True
        if moved and not _removed(aside):
            left = aside
        if done:
            break
    sync_folder(target.parent)
    return left


def _moved(source: Path, target: Path) -> bool:
    """Whether there was something to move."""
    try:
        source.rename(target)
    except FileNotFoundError:
        return False
    return True


def _removed(folder: Path) -> bool:
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last; some file systems cannot, and need not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """What would end the process waits until both renames are done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
