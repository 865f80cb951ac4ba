"""Puts one file into a snapshot: as a hard link, as a reflink where the file system shares blocks, or byte by byte.

The source is opened first and held against the root, so a link swapped in meanwhile cannot smuggle in another file:
what was linked must be the very file that was opened. An OSError is the source's trouble, `CannotStore` the target's.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.control.files import FileLayer, opened
from gateway.control.verdicts import Incomplete

_FICLONE = 0x40049409  # ioctl of Linux: share all blocks of another file
_CHUNK = 8 * 1024 * 1024
_OF_THE_SOURCE = (errno.ENOENT, errno.ESTALE, errno.EIO)  # a link names both files in its error
_REASONS = {
    errno.EPERM: "the files have another owner and may not be linked (fs.protected_hardlinks)",
    errno.EACCES: "the snapshot directory is not writable for the gateway",
    errno.EROFS: "the snapshot directory is read-only",
    errno.EXDEV: "the snapshot directory is on another filesystem",
    errno.ENAMETOOLONG: "the adapter's name is too long for a snapshot",
    errno.EMLINK: "the files have too many links",
    errno.ENOSPC: "the disk is full",
}


class CannotStore(Exception):
    """No snapshot can be made in this way; says why, without a path."""

    def __init__(self, error: OSError) -> None:
        number = error.errno or 0
        super().__init__(_REASONS.get(number) or (os.strerror(number) if number else "unknown error"))


@contextmanager
def storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _OF_THE_SOURCE:
            raise
        raise CannotStore(error) from error


def link_file(source: str, target: Path, root: str, layer: FileLayer) -> None:
    with opened(source, root, layer) as (_, status), storing():
        os.link(os.path.realpath(source), target, follow_symlinks=False)
        linked = target.lstat()
        if (linked.st_dev, linked.st_ino) != (status.st_dev, status.st_ino):
            raise Incomplete(f"{target.name} was exchanged while it was read", "changing")


def clone_file(source: str, target: Path, root: str, layer: FileLayer) -> None:
    """Share the blocks: the clone keeps its content when the source is written in place."""
    with opened(source, root, layer) as (descriptor, _), storing(), target.open("xb") as clone:
        fcntl.ioctl(clone.fileno(), _FICLONE, descriptor)
        os.fchmod(clone.fileno(), 0o644)


def copy_file(source: str, target: Path, root: str, layer: FileLayer) -> None:
    """Share the blocks where it can be, else copy the bytes."""
    try:
        clone_file(source, target, root, layer)
        return
    except CannotStore:
        target.unlink(missing_ok=True)
    with opened(source, root, layer) as (descriptor, _), storing(), target.open("xb") as copy:
        while data := os.read(descriptor, _CHUNK):
            copy.write(data)
        os.fchmod(copy.fileno(), 0o644)
