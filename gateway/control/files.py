"""The file layer: everything that reads the adapter directory goes through a `FileLayer`.

Folders are hostile: a name may be a pipe, a device, a link to anywhere. So a file is looked at before it is opened,
opened without waiting and without following a last link, and must be a regular file inside the given root. Tests put
a layer here that fails like a network share does.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from gateway.control.verdicts import Invalid

CONFIG = "adapter_config.json"
SAFETENSORS = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt")  # what vLLM reads, in this order, where there are no safetensors
CONTENT = (CONFIG, SAFETENSORS, *PICKLES)


class Entry(NamedTuple):
    name: str
    is_folder: bool  # of what a link leads to
    is_link: bool


class FileLayer(Protocol):
    def listing(self, folder: str) -> list[Entry]: ...

    def stat(self, path: str) -> os.stat_result: ...

    def open(self, path: str) -> int: ...


class Disk:
    """The real file system. All methods may block for as long as a share hangs, and raise OSError."""

    def listing(self, folder: str) -> list[Entry]:
        with os.scandir(folder) as entries:
            return [Entry(entry.name, _is_folder(entry), entry.is_symlink()) for entry in entries]

    def stat(self, path: str) -> os.stat_result:
        return os.stat(path)  # noqa: PTH116 - a Path per file would double the cost of a scan

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)


DISK = Disk()


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads into a loop
        return False


class FileMark(NamedTuple):
    """What tells without reading that a file is still the same one. Access time is no part, reading changes it.

    The change time is: `cp -p` over an old file of equal size and date moves nothing else. A hard link made or removed
    moves it too; that costs one more digest and no more.
    """

    name: str
    kind: int
    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> "FileMark":
        kind = stat.S_IFMT(status.st_mode)
        ids = status.st_dev, status.st_ino, status.st_size
        return cls(name, kind, *ids, status.st_mtime_ns, status.st_ctime_ns)


Signature = tuple[FileMark, ...]


def signature(folder: str, layer: FileLayer = DISK, names: Sequence[str] | None = None) -> Signature:
    """The marks of the config and weight files of a folder, through links. FileNotFoundError without a config.

    `names` are those known to be there from a listing: one among them that a link no longer reaches counts as absent.
    """
    marks = []
    for name in CONTENT if names is None else names:
        try:
            marks.append(FileMark.of(name, layer.stat(f"{folder}/{name}")))
        except FileNotFoundError:
            if name == CONFIG:
                raise
    return tuple(marks)


def written_at(marks: Signature) -> int:
    """When the youngest of these files was written, in whole seconds."""
    return max((mark.modified for mark in marks), default=0) // 10**9


def is_inside(path: str, root: str) -> bool:
    """Whether a resolved path is the resolved root or lies below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


@contextmanager
def opened(path: str, root: str, layer: FileLayer = DISK) -> Iterator[tuple[int, os.stat_result]]:
    """A regular file that lies inside `root` (a resolved path) once all links are followed, as (descriptor, status)."""
    name = os.path.basename(path)  # noqa: PTH119
    real = os.path.realpath(path)
    if not is_inside(real, root):
        raise Invalid(f"{name} is a link that leads outside the adapter directory: put the file itself there", "outside")
    if not stat.S_ISREG(layer.stat(real).st_mode):  # before opening: opening a device can do things
        raise Invalid(f"{name} is not a regular file", "not_a_file")
    descriptor = layer.open(real)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(f"{name} is not a regular file", "not_a_file")
        yield descriptor, status
    finally:
        os.close(descriptor)
