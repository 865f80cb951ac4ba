"""Publishes an adapter: validates a folder, copies it aside within the adapter directory, and renames it into place.

A gateway sees either nothing, the old adapter, or the whole new one. What is copied is what replicas read, the config and
the weights; links are followed, so a hub cache becomes plain files. The copy is validated again before it
is renamed: what a gateway finds is what was checked. Whatever goes wrong, the directory is as it was before.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.check import Check, Checked
from gateway.control.files import CONFIG, CONTENT, DISK, PICKLES, opened
from gateway.control.hub_cache import current_snapshot, hub_name
from gateway.control.verdicts import Refused
from gateway.control.walk import Found
from gateway.publishing_names import Unpublishable as Unpublishable
from gateway.publishing_names import check_name, check_place
from gateway.publishing_place import put_in_place, sync_folder

STAGING = ".publishing-"
ABANDONED = 86_400.0  # seconds after which what a killed publisher left aside is removed
_CHUNK = 4 * 1024 * 1024
_SYNC_EACH = 64 * 1024 * 1024  # bytes
_ANYWHERE = Path("/")

Progress = Callable[[int, int], None]
"""Called with the bytes copied so far and their total."""


@dataclass(frozen=True, slots=True)
class Published:
    """`changed` is False when the same revision lay there already."""

    name: str
    path: str
    revision: str
    size_bytes: int
    replaced: bool
    changed: bool
    warnings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # of the source: what replicas do not read
    left_behind: str | None = None  # the old folder, when it could not be removed


@dataclass(frozen=True, slots=True)
class Publisher:
    """`directory` is the adapter directory, `snapshots` where its snapshots lie; `checker` judges as the gateway does."""

    directory: Path
    checker: Check
    snapshots: Path

    def publish(self, source: Path, name: str, progress: Progress) -> Published:
        """Raises Unpublishable with the reason, or OSError."""
        check_name(name, self.checker.depth)
        folder = _folder_of(source)
        files, left_out = self._sorted_out(folder)
        row = self._validated(name, folder, _ANYWHERE)
        check_place(self.directory, name, self.snapshots)
        target = self.directory / name
        told = Published(
            name, str(target), row.revision or "", row.size_bytes or 0, os.path.lexists(target), True, row.warnings, left_out
        )
        if self._revision_at(name, target) == told.revision:
            return replace(told, changed=False)
        with _parents(target.parent), _staging(target.parent) as staging:
            _copy(folder, staging, files, progress)
            if self._validated(name, staging, staging).revision != told.revision:
                raise Unpublishable(f"{str(source)!r} was changed while it was copied: publish it again")
            staging.chmod(0o755)
            sync_folder(staging)
            left = put_in_place(staging, target)
        return replace(told, left_behind=str(left) if left else None)

    def _sorted_out(self, folder: Path) -> tuple[list[str], tuple[str, ...]]:
        """Which files are copied, and which names are not."""
        names = sorted(entry.name for entry in DISK.listing(str(folder)))
        if CONFIG not in names:
            raise Unpublishable(f"{str(folder)!r} is no adapter: it has no {CONFIG}")
        unread = () if self.checker.allow_pickle else PICKLES
        content = [name for name in CONTENT if name in names and name not in unread]
        return content, tuple(name for name in names if name not in content)

    def _validated(self, name: str, folder: Path, root: Path) -> Checked:
        row = self._checked(name, folder, root)
        if not row.valid:
            raise Unpublishable(row.reason)
        return row

    def _checked(self, name: str, folder: Path, root: Path) -> Checked:
        return self.checker.adapter(Found(name, str(folder), "", ()), root)

    def _revision_at(self, name: str, target: Path) -> str | None:
        """What lies there now, None for nothing, for a link, and for what is no valid adapter."""
        if target.is_symlink() or not target.is_dir():
            return None
        return self._checked(name, target, self.directory).revision


def _folder_of(source: Path) -> Path:
    """The folder with the files: of a hub cache tree, that of its current commit."""
    if not source.is_dir():
        raise Unpublishable(f"{str(source)!r} is no folder")
    entries = {entry.name for entry in DISK.listing(str(source))}
    if CONFIG in entries or hub_name(source.name, entries) is None:
        return source
    try:
        return Path(current_snapshot(str(source), "/", DISK))
    except Refused as refused:
        raise Unpublishable(refused.reason) from None


@contextmanager
def _parents(folder: Path) -> Iterator[None]:
    """Make the folder; what was made goes again when it did not come to anything."""
    made = []
    above = folder
    while not above.is_dir():
        made.append(above)
        above = above.parent
    try:
        for new in reversed(made):
            with suppress(FileExistsError):
                new.mkdir()
                new.chmod(0o755)
        yield
    except BaseException:
        for new in made:
            with suppress(OSError):
                new.rmdir()
        raise


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A hidden folder beside the target, so on the same file system; it is gone afterwards."""
    _remove_abandoned(parent)
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for entry in DISK.listing(str(parent)):
        if entry.name.startswith(STAGING):
            with suppress(OSError):
                if time.time() - (parent / entry.name).stat().st_mtime > ABANDONED:
                    shutil.rmtree(parent / entry.name, ignore_errors=True)


def _copy(source: Path, staging: Path, files: list[str], progress: Progress) -> None:
    total, done = sum((source / name).stat().st_size for name in files), 0
    free = shutil.disk_usage(staging).free
    if free < total:
        raise Unpublishable(f"the disk has {free} bytes free, the adapter needs {total}")
    progress(0, total)
    for name in files:
        with opened(f"{source}/{name}", "/") as (descriptor, _), (staging / name).open("xb") as copy:
            while data := os.read(descriptor, _CHUNK):
                copy.write(data)
                done += len(data)
                if copy.tell() % _SYNC_EACH < len(data):  # so that progress is the disk's, and no long silence ends it
                    copy.flush()
                    os.fdatasync(copy.fileno())
                progress(done, total)
            os.fchmod(copy.fileno(), 0o644)
            copy.flush()
            os.fsync(copy.fileno())
