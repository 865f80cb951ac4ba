"""Looks at the files that replicas load from before requests go to an adapter: once per interval, never per request.

A changed signature of the files means: digest again. Only another digest, or a confirmed absence, is a loss. An error, or
a look that takes too long, means unknown: the request goes on, and the look ends in the background.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from time import monotonic

import structlog

from gateway.control.absence import SECOND_LOOK
from gateway.control.directory import Directory
from gateway.control.files import DISK, FileLayer, Signature, signature
from gateway.core.adapters import Adapter, Revision

log = structlog.get_logger("gateway.guard")
SLOW = 0.1  # seconds after which a request does not wait for a look
KEPT = 20_000  # revisions that are remembered


class Finding(Enum):
    WHOLE = auto()
    CHANGED = auto()  # other bytes are no doubt a loss, and an engine that reads them now may die of it
    ABSENT = auto()


class Guard:
    """`interval` in seconds, 0 = off. `on_lost` is called in the event loop with the revision."""

    def __init__(
        self,
        interval: float,
        directory: Directory,
        on_lost: Callable[[Revision], None],
        *,
        layer: FileLayer = DISK,
    ) -> None:
        self._interval, self._directory, self._on_lost, self._layer = interval, directory, on_lost, layer
        self._looked: dict[Revision, float] = {}
        self._marks: dict[Revision, Signature] = {}
        self._looks: dict[Revision, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Guard every {self._interval:g} s, {len(self._looked)} known, {len(self._looks)} looking>"

    def fresh(self, adapter: Adapter) -> bool:
        """Whether the last look is young enough."""
        if not self._interval:
            return True
        looked = self._looked.get(adapter.revision)
        return looked is not None and monotonic() - looked < self._interval

    async def look(self, adapter: Adapter) -> None:
        """Look now, together with all who ask; returns early when that takes long."""
        task = self._looks.get(adapter.revision)
        if task is None:
            task = self._looks[adapter.revision] = asyncio.create_task(self._look(adapter), name=f"guard {adapter.name}")
        await asyncio.wait({task}, timeout=SLOW)
        self._note(adapter.revision)  # slow is no reason to look again for each request

    def forget(self, revision: Revision) -> None:
        """Its files were made anew."""
        self._marks.pop(revision, None)

    def _note(self, revision: Revision) -> None:
        if len(self._looked) > KEPT:
            self._looked.clear()
            self._marks.clear()
        self._looked[revision] = monotonic()

    async def _look(self, adapter: Adapter) -> None:
        try:
            finding = await asyncio.to_thread(self._find, adapter)
            if finding is Finding.ABSENT:
                await asyncio.sleep(SECOND_LOOK)  # an absence is confirmed by a second look
                finding = await asyncio.to_thread(self._find, adapter)
            if finding is not Finding.WHOLE:
                self._on_lost(adapter.revision)
        except OSError as error:
            log.warning("an adapter's files cannot be looked at", adapter=adapter.name, reason=error.strerror)
        finally:
            del self._looks[adapter.revision]

    def _find(self, adapter: Adapter) -> Finding:
        """Blocking."""
        try:
            marks = signature(adapter.load_path, self._layer)
            if marks == self._marks.get(adapter.revision):
                return Finding.WHOLE
            if not self._directory.is_unchanged(adapter):
                return Finding.CHANGED
        except (FileNotFoundError, NotADirectoryError):
            # a share that is away proves nothing about one adapter
            return Finding.ABSENT if self._directory.has_a_shelf(adapter) else Finding.WHOLE
        self._marks[adapter.revision] = marks
        return Finding.WHOLE
