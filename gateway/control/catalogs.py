"""Keeps the registry's catalog true to the directory, and takes revisions out of use whose files changed after a load.

The only writer of the catalog. What the guard finds lost is looked at again until its files are whole or it has left
the catalog. Unused snapshots go only when every known replica was just seen not to hold them.
"""

import asyncio
import posixpath
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.control.alias_file import NAME as ALIASES
from gateway.control.directory import Directory
from gateway.control.guard import Guard
from gateway.control.pins import NAME as PINS
from gateway.control.snapshots import Snapshots
from gateway.core.adapters import Adapter, Catalog, RejectedState, Revision
from gateway.core.errors import PinRefused
from gateway.core.events import EventLog
from gateway.core.registry import Registry
from gateway.metrics import Metrics

log = structlog.get_logger("gateway.directory")
RECHECK = 1.0  # seconds between looks at files that were lost
CLEANING = 60.0  # seconds between looks for snapshots that nobody uses

_CHANGED = "its files changed or vanished after it was loaded: publish it again, as new files that are renamed into place"
Spawn = Callable[[Coroutine[Any, Any, None], str], None]


@dataclass(frozen=True, slots=True)
class PathMap:
    """The adapter directory on the gateway's side and on the replicas'."""

    here: Path
    there: str

    def replica_path(self, path: str) -> str:
        """Absolute, as the replicas see it: vLLM takes a relative path for the name of a repository."""
        return posixpath.normpath(posixpath.join(self.there, posixpath.relpath(path, self.here)))


class CatalogKeeper:
    """See the module; it is also what the loaders ask about files."""

    def __init__(
        self,
        registry: Registry,
        directory: Directory,
        guard_interval: float,
        snapshots: Snapshots | None,
        paths: PathMap,
        events: EventLog,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._registry, self._directory, self._snapshots = registry, directory, snapshots
        self._guard = Guard(guard_interval, directory, lambda revision: self.lose(revision, _CHANGED))
        self.fresh = self._guard.fresh  # asked for each request
        self._paths, self._events, self._metrics, self._clock = paths, events, metrics, clock
        self._changed: Callable[[], None] = lambda: None
        self._spawn: Spawn | None = None

    async def run(self, changed: Callable[[], None], spawn: Spawn) -> None:
        """Follow the directory. `changed` is called after each new catalog, `spawn` starts a task of the control loop."""
        self._changed, self._spawn = changed, spawn
        spawn(self._directory.watch(), "file events")
        async for catalog in self._directory.catalogs():
            self._take(catalog)

    async def refresh(self, name: str) -> None:
        """For a request that names what nobody knows: look now, together with all who ask, at most twice a second."""
        self._take(await self._directory.refresh(name))

    async def scan(self) -> None:
        """An operator's scan, at once."""
        self._take(await self._directory.rescan())

    async def pin(self, name: str, digest: str | None) -> str:
        """Keep a known name on a stored revision, None: the current one; returns the digest. Raises PinRefused."""
        if self._snapshots is None:
            raise PinRefused("Pins are kept beside the snapshots, which are off: see --snapshots.")
        await self.scan()
        catalog = self._registry.catalog
        current = catalog.adapters.get(name)
        digest = digest or catalog.pins.get(name) or (current.digest if current is not None else "")
        if Revision(name, digest) not in catalog.stored:
            reason = current.home_reason if current is not None and current.digest == digest else ""
            known = ", ".join(sorted(r.digest for r in catalog.stored if r.name == name)) or "none"
            raise PinRefused(f"There is no snapshot of '{name}' at that revision{reason and f' ({reason})'}. Stored: {known}.")
        self._take(await self._directory.pin(name, digest))
        self._events.add("pin", adapter=name, revision=digest)
        return digest

    async def unpin(self, name: str) -> bool:
        """Let a name follow the directory again; False when it was not pinned. Raises PinRefused."""
        await self.scan()
        digest = self._registry.catalog.pins.get(name)
        if digest is None:
            return False
        self._take(await self._directory.pin(name, None))
        self._events.add("unpin", adapter=name, revision=digest)
        return True

    def _take(self, catalog: Catalog) -> None:
        old = self._registry.catalog
        if catalog is old and self._registry.scanned:
            return
        self._registry.replace_catalog(catalog, self._clock())
        self._tell(old, catalog)
        self._changed()

    def _tell(self, old: Catalog, new: Catalog) -> None:
        """What people want to know of the difference, one event each."""
        for name, adapter in new.adapters.items():
            before = old.adapters.get(name)
            if before is None or before.digest != adapter.digest:
                kind = "adapter_added" if before is None else "adapter_changed"
                self._events.add(kind, adapter=name, revision=adapter.digest)
        for name in old.adapters.keys() - new.adapters.keys():
            self._events.add("adapter_removed", adapter=name)
            self._metrics.forget_adapter(name)
        for name, rejected in new.rejected.items():
            before_rejected = old.rejected.get(name)
            if before_rejected is None or before_rejected.reason != rejected.reason:
                self._events.add(f"adapter_{rejected.state}", adapter=name, reason=rejected.reason)
                if rejected.state is RejectedState.INVALID:
                    self._metrics.found_invalid(rejected.code)
        if new.trouble and new.trouble != old.trouble:
            self._events.add("directory_trouble", reason=new.trouble)
        if new.aliases_trouble and new.aliases_trouble != old.aliases_trouble:
            self._events.add("aliases_trouble", reason=f"{ALIASES} {new.aliases_trouble}; the last good one is followed")
        if new.pins_trouble and new.pins_trouble != old.pins_trouble:
            self._events.add("pins_trouble", reason=f"{PINS} {new.pins_trouble}; the last good one is followed")

    # for the loaders

    async def before_load(self, adapter: Adapter) -> None:
        """Note that the snapshot is used, so that nobody removes it; a failure is no reason not to load."""
        if self._snapshots is not None and adapter.plain_name_tells:
            try:
                await asyncio.to_thread(self._snapshots.touch, adapter.revision)
            except OSError as error:
                log.warning("cannot mark a snapshot as used", adapter=adapter.name, reason=error.strerror)

    async def unchanged(self, adapter: Adapter) -> bool:
        """Digest the files once more: they were loaded from a folder that may change."""
        try:
            return await asyncio.to_thread(self._directory.is_unchanged, adapter)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            log.warning("an adapter's files cannot be looked at", adapter=adapter.name, reason=error.strerror)
            return True

    async def rescan(self) -> None:
        """Before an unload: another gateway, or a person, may have brought the revision back."""
        self._take(await self._directory.rescan())

    def replica_path(self, adapter: Adapter) -> str:
        return self._paths.replica_path(adapter.load_path)

    # the guard

    async def look(self, adapter: Adapter) -> None:
        await self._guard.look(adapter)

    # for the status

    def watch_mode(self) -> str:
        return self._directory.watch_mode

    def snapshots_reason(self) -> str:
        return self._snapshots.reason if self._snapshots is not None else "snapshots are off"

    def lose(self, revision: Revision, reason: str) -> None:
        """Take a revision out of use until its files were found whole again."""
        adapter = self._registry.catalog.get(revision)
        if adapter is None or revision in self._registry.lost or self._spawn is None:
            return
        self._registry.lose(revision, reason)
        self._events.add("adapter_lost", adapter=revision.name, revision=revision.digest, reason=reason)
        self._changed()
        self._spawn(self._recheck(revision), f"look for {revision}")

    async def _recheck(self, revision: Revision) -> None:
        while revision in self._registry.lost:
            self._take(await self._directory.rescan())
            adapter = self._registry.catalog.get(revision)
            if adapter is None:
                return
            if await self.unchanged(adapter):
                self._guard.forget(revision)
                self._registry.recover(revision)
                self._events.add("adapter_recovered", adapter=revision.name, revision=revision.digest)
                self._changed()
                return
            await asyncio.sleep(RECHECK)

    # snapshots that nobody uses

    async def clean(self, look_all: Callable[[], Awaitable[bool]], every: float = CLEANING) -> None:
        """Now and then (seconds) remove old snapshots, when every known replica has just been seen."""
        if self._snapshots is None:
            return
        while True:
            await asyncio.sleep(every)
            if not await look_all():
                continue
            try:
                await self._clean_once(self._snapshots, look_all)
            except OSError as error:
                log.warning("cannot remove old snapshots", reason=error.strerror)

    async def _clean_once(self, snapshots: Snapshots, look_all: Callable[[], Awaitable[bool]]) -> None:
        away = await asyncio.to_thread(snapshots.put_away, self._in_use(), time.time())
        await asyncio.to_thread(snapshots.clean, time.time())
        if not away:
            return
        seen = await look_all()
        in_use = self._in_use()
        for revision in away:
            if not seen or revision in in_use:
                await asyncio.to_thread(snapshots.bring_back, revision)
            else:
                await asyncio.to_thread(snapshots.delete, revision)

    def _in_use(self) -> set[Revision]:
        """What the directory holds and means, what replicas hold, and what still stands in for a revision nobody holds."""
        registry, catalog = self._registry, self._registry.catalog
        current = {adapter.revision for adapter in catalog.adapters.values()}
        pinned = {Revision(name, digest) for name, digest in catalog.pins.items()}
        behind = {r for name in catalog.pins for r in catalog.shelf if r.name == name}
        held = {revision for replica in registry.replicas() for revision in replica.held}
        waiting = {r for name, kept in catalog.formers.items() if catalog.adapters[name].revision not in held for r in kept}
        return current | pinned | behind | waiting | registry.snapshots_in_use()
