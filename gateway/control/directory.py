"""Yields whole catalogs of the adapter directory: on file events, periodically whatever the events do, and when asked.

Events only say "look again": network shares give none, and some are lost. Scans run in a thread, one at a time. A request
that names what nobody knows gets one look at the known parent folders, and a scan only when those changed or the last scan
is old; all who ask meanwhile share it, and there are at most two such scans a second.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import structlog
from watchfiles import Change, awatch

from gateway.control.absence import SECOND_LOOK
from gateway.control.alias_file import NAME as ALIASES
from gateway.control.files import CONTENT
from gateway.control.scanner import Scanner
from gateway.control.snapshots import Snapshots
from gateway.control.validation import Rules
from gateway.control.verdicts import Refused
from gateway.core.adapters import Adapter, Catalog, Home, Revision
from gateway.core.errors import PinRefused

log = structlog.get_logger("gateway.directory")
WATCHED = (*CONTENT, ALIASES)
BETWEEN = 0.5  # seconds between the starts of two scans that requests asked for
OLD = 1.0  # seconds after which a scan says nothing about a name it did not find
PATIENCE = 5.0  # seconds that a request waits for files which are right but still fresh
WATCH_RETRY = 60.0  # seconds until file events are tried again


class Directory:
    """See the module. `scans` counts them; `watch_mode` is "events" or "polling"."""

    def __init__(
        self,
        root: Path,
        *,
        depth: int,
        rules: Rules,
        snapshots: Snapshots | None,
        scan_interval: float,
        on_scan: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._scanner = Scanner(root, depth=depth, rules=rules, snapshots=snapshots)
        self._root, self._interval, self._on_scan = root, scan_interval, on_scan
        self._snapshots = snapshots
        self._first_root = _identity(root)
        self._unwatched = f"{snapshots.home if snapshots else root / '.lora-gateway'}{os.sep}"
        self._one_scan = asyncio.Lock()
        self._wake = asyncio.Event()
        self._exchanged = asyncio.Event()  # the root is another folder than the one that is watched
        self._root_identity: tuple[int, int] | None = None
        self._shared: asyncio.Task[Catalog] | None = None
        self._began = float("-inf")
        self.scans = 0
        self.watch_mode = "polling"

    def __repr__(self) -> str:
        return f"<Directory {self.watch_mode} scans={self.scans} {self._scanner!r}>"

    async def catalogs(self) -> AsyncIterator[Catalog]:
        """The first as soon as fresh files have had their second look, then each that differs."""
        last: Catalog | None = None
        end = monotonic() + PATIENCE
        await self.rescan()
        while self._scanner.pending() and monotonic() < end:
            await asyncio.sleep(SECOND_LOOK / 2)
            await self.rescan()
        while True:
            self._wake.clear()
            catalog = await self.rescan()
            if catalog is not last:
                last = catalog
                yield catalog
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._interval, SECOND_LOOK) if self._scanner.restless else self._interval):
                    await self._wake.wait()

    async def rescan(self) -> Catalog:
        """A scan that begins now, after one that may be running."""
        async with self._one_scan:
            self._began = monotonic()
            catalog = await asyncio.to_thread(self._scanner.scan)
            self.scans += 1
            self._follow_root()
            self._on_scan(monotonic() - self._began)
            return catalog

    async def refresh(self, name: str) -> Catalog:
        """For a request that names what nobody knows."""
        end = monotonic() + PATIENCE
        if not self._ask(name) and not await self._may_have_changed():
            return self._scanner.catalog
        catalog = await self._shared_scan()
        while name in self._scanner.pending() and monotonic() < end:
            await asyncio.sleep(SECOND_LOOK / 2)
            catalog = await self._shared_scan()
        return catalog

    def _ask(self, name: str) -> bool:
        """Whether the name is a revision that lies in a snapshot: the next scan takes it from there."""
        revision, shelf = Revision.parse(name), self._scanner.shelf
        if revision is None or shelf is None or not shelf.has(revision):
            return False
        shelf.ask(revision)
        return True

    async def _may_have_changed(self) -> bool:
        if monotonic() - self._began > OLD or self._scanner.restless:
            return True
        return await asyncio.to_thread(self._scanner.parents_changed)

    async def _shared_scan(self) -> Catalog:
        """One scan for all who wait; it begins after each of them asked."""
        if self._shared is None:
            self._shared = asyncio.create_task(self._scan_in_turn(), name="shared scan")
        return await asyncio.shield(self._shared)

    async def _scan_in_turn(self) -> Catalog:
        await asyncio.sleep(max(0.0, self._began + BETWEEN - monotonic()))
        self._shared = None  # who asks from now on may have seen a later change
        return await self.rescan()

    # file events

    async def watch(self) -> None:
        """Follow file events for ever; without them the periodic scan goes on alone."""
        while True:
            try:
                self.watch_mode = "events"
                watched = awatch(self._root, watch_filter=self._matters, debounce=300, step=50, stop_event=self._exchanged)
                async for _ in watched:
                    self._wake.set()
            except (OSError, RuntimeError) as error:  # without a free inotify instance watchfiles raises the latter
                log.warning("no file events; the directory is polled", reason=str(error), remedy=_remedy(str(error)))
                self.watch_mode = "polling"
                await asyncio.sleep(WATCH_RETRY)
            self._exchanged.clear()
            self._wake.set()  # whatever happened while nobody watched

    def _follow_root(self) -> None:
        """Watch the folder that is the root now: events of one that was exchanged (mounted over, moved) never come."""
        place = self._scanner.root_place()
        if place is None:
            return
        identity = place.device, place.inode
        if self._root_identity not in (None, identity):
            self._exchanged.set()
        self._root_identity = identity

    def _matters(self, change: Change, path: str) -> bool:
        """Snapshots are never a source of events, nor are files that are neither config nor weights."""
        if path.startswith(self._unwatched) or path + os.sep == self._unwatched:
            return False
        return os.path.basename(path) in WATCHED or not os.path.isfile(path)  # noqa: PTH113, PTH119

    # pins

    async def pin(self, name: str, digest: str | None) -> Catalog:
        """Keep a name on a revision, None: let it follow the directory again. Raises PinRefused."""
        shelf = self._scanner.shelf
        assert shelf is not None, "without snapshots there are no pins"
        try:
            await asyncio.to_thread(shelf.pins.set, name, digest)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise PinRefused(f"The pins cannot be written beside the snapshots: {reason}.") from error
        return await self.rescan()

    # looking at one adapter

    def has_a_shelf(self, adapter: Adapter) -> bool:
        """Blocking: whether the folder that such files lie in is there, and is the one it was."""
        if adapter.home is not Home.OWN_PATH and self._snapshots is not None:
            return self._snapshots.home.is_dir()  # it lies in the directory, so a share that is away has none
        return _identity(self._root) == self._first_root

    def is_unchanged(self, adapter: Adapter) -> bool:
        """Blocking: digest once more what replicas load. FileNotFoundError and other OSErrors are the caller's."""
        try:
            return self._scanner.digest_now(adapter) == adapter.digest
        except Refused:
            return False


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _remedy(reason: str) -> str:
    """What an operator does about the two limits of inotify."""
    if "watch limit" in reason:
        return "raise the sysctl fs.inotify.max_user_watches"
    return "raise the sysctl fs.inotify.max_user_instances" if "Too many open files" in reason else ""
