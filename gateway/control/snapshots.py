"""Immutable copies of revisions for the replicas to load from: `HOME/NAME@DIGEST/` with the config and the weights.

A vLLM engine reads a cold adapter again from its path, and dies when the files are gone or cut. So a snapshot is made
aside, digested and validated there, and only then renamed to the digest found; it is never changed. One that lies there
already is digested before this process first uses it. Any number of gateways may share a home: names tell the content.
Removing goes in two steps, `put_away` then `delete` or `bring_back`, so that replicas can be looked at in between.
All methods block; the lock makes them safe to call from several threads.
"""

import errno
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.control.copying import CannotStore, clone_file, copy_file, link_file, storing
from gateway.control.files import DISK, FileLayer, Signature, signature
from gateway.control.snapshot_names import AWAY, BROKEN, STAGING, aside, revisions_below, rubbish_below
from gateway.control.validation import Facts, Rules, inspect
from gateway.control.verdicts import Refused
from gateway.core.adapters import Home, Revision

_ANY = Rules(allow_pickle=True)  # a snapshot is what it is: other flags than its maker's do not make it wrong
_FOLDER_MODE = 0o755
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
RUBBISH_AGE = 3600.0  # seconds after which what another process left half done is removed

_Put = Callable[[str, Path, str, FileLayer], None]


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the replicas read a revision from, and what was found there."""

    facts: Facts
    path: Path
    home: Home
    reason: str = ""  # why it is the adapter's own path


class Snapshots:
    def __init__(self, root: Path, home: Path, mode: str, grace: float, *, layer: FileLayer = DISK) -> None:
        self.home = home
        self._root, self._mode, self._grace, self._layer = root, mode, grace, layer
        self._verified: dict[Revision, tuple[Signature, Home]] = {}
        self._away: dict[Revision, Path] = {}
        self._lock = threading.RLock()
        self.reason = ""  # why no snapshot at all could be made at the last try

    def __repr__(self) -> str:
        return f"<Snapshots {self._mode} in {self.home.name}, {len(self._verified)} verified>"

    def path(self, revision: Revision) -> Path:
        return self.home / str(revision)

    # making

    def make(self, name: str, folder: Path, facts: Facts) -> Stored:
        """A snapshot of what lies in `folder` now, which was just found to be `facts`; the own path where none can be.

        Raises Incomplete, Invalid or OSError when the source changed and is no adapter any more.
        """
        with self._lock:
            revision = Revision(name, facts.digest)
            home = self.intact(revision)
            if home is not None:
                return Stored(facts, self.path(revision), home)
            try:
                stored = self._make(name, folder, facts)
            except CannotStore as cause:
                self.reason = str(cause)
                return Stored(facts, folder, Home.OWN_PATH, f"no snapshot could be made: {self.reason}")
            self.reason = ""
            return stored

    def _make(self, name: str, folder: Path, facts: Facts) -> Stored:
        if self._mode == "copy":
            return self._make_by(copy_file, Home.COPY, name, folder, facts)
        try:
            return self._make_by(link_file, Home.LINK, name, folder, facts)
        except CannotStore as cause:
            with suppress(CannotStore):
                return self._make_by(clone_file, Home.COPY, name, folder, facts)
            raise cause from None

    def _make_by(self, put: _Put, home: Home, name: str, folder: Path, facts: Facts) -> Stored:
        staging = self.home / f"{STAGING}{os.getpid()}-{uuid.uuid4().hex[:12]}"
        root = os.path.realpath(self._root)
        try:
            with storing():
                self._make_folder(self.home)
                self._make_folder(staging)
            for file in facts.files:
                put(f"{folder}/{file}", staging / file, root, self._layer)
            found = inspect(staging, _ANY)
            revision = Revision(name, found.digest)
            with storing():
                home = self._publish(staging, revision, home)
            return Stored(found, self.path(revision), home)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _publish(self, staging: Path, revision: Revision, home: Home) -> Home:
        """Rename to the final name. What another gateway put there first stays if its content is right."""
        target = self.path(revision)
        self._make_folder(target.parent)
        try:
            staging.rename(target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            there = self.intact(revision)
            if there is not None:
                return there
            staging.rename(target)
        self._verified[revision] = signature(str(target), self._layer), home
        self.touch(revision)
        return home

    def _make_folder(self, folder: Path) -> None:
        """With parents below the home, readable for the replicas' user whatever the umask."""
        if folder != self.home and self.home in folder.parents:
            self._make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(_FOLDER_MODE)

    # looking

    def intact(self, revision: Revision) -> Home | None:
        """How the snapshot of this revision was made, when it is there and has that content; else it is moved away.

        Costs a few looks at files when nothing changed since the last time. An error but absence changes nothing.
        """
        with self._lock:
            target, known = self.path(revision), self._verified.get(revision)
            try:
                folder = target.stat().st_ino
            except OSError as error:
                absent = isinstance(error, FileNotFoundError | NotADirectoryError)
                return known[1] if known is not None and not absent else None
            try:
                marks = signature(str(target), self._layer)
                if known is not None and known[0] == marks:
                    return known[1]
                if inspect(target, _ANY).digest == revision.digest:
                    home = known[1] if known is not None else self._kind(marks, target)
                    self._verified[revision] = marks, home
                    return home
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError:
                return known[1] if known is not None else None
            except Refused:
                pass
            self._verified.pop(revision, None)
            self._discard(target, folder)
            return None

    def _kind(self, marks: Signature, target: Path) -> Home:
        """How another process made it: what shares its inode was linked."""
        linked = any(self._layer.stat(f"{target}/{mark.name}").st_nlink > 1 for mark in marks)
        return Home.LINK if linked or self._mode == "link" else Home.COPY

    def _discard(self, target: Path, inode: int) -> None:
        """Out of the way at once, deleted when it is old: the right content may be made again at the same path.

        Only the folder with this inode was looked at; what another gateway has put there meanwhile stays.
        """
        broken = aside(target, f"{BROKEN}{uuid.uuid4().hex[:6]}-")
        with suppress(OSError):
            if target.stat().st_ino != inode:
                return
            target.rename(broken)
            if broken.stat().st_ino != inode:
                broken.rename(target)

    def on_disk(self) -> set[Revision]:
        """Every revision that has a snapshot here, whoever made it."""
        return set(revisions_below(self.home))

    def touch(self, revision: Revision) -> None:
        """Note that it is about to be used: its grace begins anew. OSError when it is gone."""
        os.utime(self.path(revision))

    # removing

    def put_away(self, in_use: Collection[Revision], now: float) -> list[Revision]:
        """Rename away every snapshot that nobody uses and nobody used for the grace; `now` is a wall clock time.

        Returns all that is put away, also by an earlier call: each is then to be deleted or brought back.
        """
        with self._lock:
            there = self.on_disk()
            for revision in set(in_use) - there:  # put away by a gateway that ended before it looked again
                with suppress(OSError):
                    aside(self.path(revision), AWAY).rename(self.path(revision))
            for revision in there.difference(in_use):
                target = self.path(revision)
                with suppress(OSError):
                    if now - target.stat().st_mtime < self._grace:
                        continue
                    away = aside(target, AWAY)
                    target.rename(away)
                    self._away[revision] = away
                    self._verified.pop(revision, None)
                    os.utime(away)  # fresh rubbish, should this process end now; and a new grace when it is brought back
            return sorted(self._away)

    def bring_back(self, revision: Revision) -> None:
        """A replica holds it after all. One that was made again meanwhile stands in for it."""
        with self._lock:
            away = self._away.pop(revision, None)
            if away is None:
                return
            try:
                away.rename(self.path(revision))
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                shutil.rmtree(away, ignore_errors=True)

    def delete(self, revision: Revision) -> None:
        """Delete what was put away, and the folder above when it is empty."""
        with self._lock:
            away = self._away.pop(revision, None)
            if away is None:
                return
            shutil.rmtree(away, ignore_errors=True)
            folder = away.parent
            while folder != self.home and self.home in folder.parents:
                with suppress(OSError):
                    folder.rmdir()
                folder = folder.parent

    def clean(self, now: float) -> None:
        """Remove what was found broken, and what a process that is gone left half done, when it is old."""
        with self._lock:
            for path in rubbish_below(self.home):
                with suppress(OSError):
                    status = path.lstat()
                    if now - max(status.st_mtime, status.st_ctime) > max(RUBBISH_AGE, self._grace):
                        shutil.rmtree(path, ignore_errors=True)
