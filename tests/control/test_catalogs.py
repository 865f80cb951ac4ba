"""The keeper of the catalog: what the registry knows of the directory, what is lost and recovered, what is removed."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.control.catalogs import CatalogKeeper, PathMap
from gateway.control.directory import Directory
from gateway.control.files import SAFETENSORS
from gateway.control.snapshots import Snapshots
from gateway.control.validation import Rules
from gateway.core.adapters import Adapter, Revision
from gateway.core.events import EventLog
from gateway.core.registry import Registry
from gateway.core.replica import ModelEntry, Observation, Replica, Roots
from gateway.metrics import Metrics
from tests.adapters import lora_tensors, write_adapter, write_weights
from tests.control.shelf import OLD
from tests.waiting import until

GRACE = 100.0


class Desk:
    """A keeper with all that it keeps, and no replicas but those that a test publishes."""

    def __init__(self, root: Path, mode: str = "copy", scan_interval: float = 0.2) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.registry, self.metrics = Registry(), Metrics("test")
        self.events = EventLog(time.time, lambda event: None)
        self.snapshots = Snapshots(root, root / ".lora-gateway", mode, GRACE) if mode != "off" else None
        directory = Directory(root, depth=2, rules=Rules(), snapshots=self.snapshots, scan_interval=scan_interval)
        self.keeper = CatalogKeeper(
            self.registry, directory, 0.1, self.snapshots, PathMap(root, "/far/loras"), self.events, self.metrics,
            time.monotonic,
        )  # fmt: skip
        self.changes = 0
        self.all_seen = True
        self.looks = 0

    def changed(self) -> None:
        self.changes += 1

    async def look_all(self) -> bool:
        self.looks += 1
        return self.all_seen

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events.since(0)]

    def adapter(self, name: str = "alpha") -> Adapter:
        return self.registry.catalog.adapters[name]

    def hold(self, *revisions: Revision) -> None:
        """A replica that was seen to hold these."""
        roots = Roots("/far/loras", "/far/loras/.lora-gateway")
        entries = [ModelEntry("base-a", "/models/base-a"), *(_entry(revision) for revision in revisions)]
        record = Replica("r1:8000", "http://r1:8000")
        if "r1:8000" not in self.registry.stations:
            self.registry.join(record)
        self.registry.publish(record.adopting(Observation.of(entries, roots), ()), time.monotonic())


def _entry(revision: Revision) -> ModelEntry:
    return ModelEntry(revision.name, f"/far/loras/.lora-gateway/{revision}", "base-a")


@asynccontextmanager
async def running(desk: Desk, *, cleaning: float | None = None) -> AsyncIterator[Desk]:
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.create_task(work, name=name))

    spawn(desk.keeper.run(desk.changed, spawn), "keeper")
    if cleaning:
        spawn(desk.keeper.clean(desk.look_all, cleaning), "cleaning")
    try:
        await until(lambda: desk.registry.scanned)
        yield desk
        for task in tasks:
            assert not task.done() or task.exception() is None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_adapter(tmp_path / "root" / "alpha", age=OLD)
    return tmp_path / "root"


# following the directory


async def test_an_empty_directory_is_known_to_be_empty(tmp_path: Path) -> None:
    async with running(Desk(tmp_path / "root")) as desk:
        assert desk.registry.scanned
        assert desk.kinds == []


async def test_each_change_is_told_once_by_its_kind(root: Path) -> None:
    async with running(Desk(root)) as desk:
        assert desk.kinds == ["adapter_added"]
        before = desk.changes
        write_adapter(root / "alpha", seed=9, age=OLD)
        await until(lambda: desk.kinds == ["adapter_added", "adapter_changed"])
        write_adapter(root / "beta", rank=0, age=OLD)
        await until(lambda: desk.kinds[2:] == ["adapter_invalid"])
        write_adapter(root / "beta", age=OLD)
        await until(lambda: desk.kinds[3:] == ["adapter_added"])
        shutil.rmtree(root / "alpha")
        await until(lambda: desk.kinds[4:] == ["adapter_removed"])
        assert desk.changes - before >= 4


async def test_directory_trouble_is_told_once_and_the_last_adapters_stay(root: Path) -> None:
    async with running(Desk(root)) as desk:
        root.rename(root.with_name("away"))
        await until(lambda: "directory_trouble" in desk.kinds)
        await until(lambda: desk.registry.catalog.trouble != "")
        assert list(desk.registry.catalog.adapters) == ["alpha"]
        root.with_name("away").rename(root)
        await until(lambda: desk.registry.catalog.trouble == "")
        assert desk.kinds.count("directory_trouble") == 1
        assert "adapter_removed" not in desk.kinds


async def test_the_path_that_replicas_load_from_is_theirs_and_absolute(root: Path) -> None:
    async with running(Desk(root)) as desk:
        adapter = desk.adapter()
        assert desk.keeper.replica_path(adapter) == f"/far/loras/.lora-gateway/alpha@{adapter.digest}"


# lost and recovered


async def test_deleted_files_take_a_revision_out_until_its_snapshot_was_made_anew(root: Path) -> None:
    async with running(Desk(root)) as desk:
        adapter = desk.adapter()
        shutil.rmtree(adapter.load_path)
        desk.keeper.lose(adapter.revision, "a replica says that its files are missing")
        assert adapter.revision in desk.registry.lost
        await until(lambda: not desk.registry.lost)
        assert desk.kinds[-2:] == ["adapter_lost", "adapter_recovered"]
        assert (Path(adapter.load_path) / SAFETENSORS).is_file()


async def test_what_the_guard_finds_changed_is_lost_and_recovers_with_a_new_snapshot(root: Path) -> None:
    async with running(Desk(root, scan_interval=3600.0)) as desk:
        adapter = desk.adapter()
        await desk.keeper.look(adapter)
        write_weights(Path(adapter.load_path) / SAFETENSORS, lora_tensors(seed=9))
        await desk.keeper.look(adapter)
        await until(lambda: desk.kinds[-2:] == ["adapter_lost", "adapter_recovered"])
        assert desk.registry.lost == {}
        assert await desk.keeper.unchanged(adapter)


async def test_without_snapshots_a_lost_revision_returns_only_with_its_bytes(root: Path) -> None:
    async with running(Desk(root, mode="off")) as desk:
        adapter = desk.adapter()
        desk.keeper.lose(adapter.revision, "changed")
        (root / "alpha").rename(root / ".aside")
        await until(lambda: "alpha" not in desk.registry.catalog.adapters)
        assert desk.registry.lost == {}  # what is not in the catalog is not served anyway
        (root / ".aside").rename(root / "alpha")
        await until(lambda: "alpha" in desk.registry.catalog.adapters)
        assert desk.adapter().revision == adapter.revision


async def test_a_revision_that_the_catalog_does_not_know_cannot_be_lost(root: Path) -> None:
    async with running(Desk(root)) as desk:
        desk.keeper.lose(Revision("alpha", "0" * 12), "a replica says that its files are missing")
        desk.keeper.lose(Revision("nobody", "0" * 12), "a replica says that its files are missing")
        assert desk.registry.lost == {}


async def test_a_revision_that_is_lost_twice_is_looked_for_once(root: Path) -> None:
    async with running(Desk(root)) as desk:
        for _ in range(5):
            desk.keeper.lose(desk.adapter().revision, "missing")
        await until(lambda: not desk.registry.lost)
        assert desk.kinds.count("adapter_lost") == 1


# for the loaders


async def test_a_snapshot_is_noted_as_used_before_a_load_and_a_failure_is_no_hindrance(root: Path) -> None:
    async with running(Desk(root)) as desk:
        adapter = desk.adapter()
        os.utime(adapter.load_path, (1.0, 1.0))
        await desk.keeper.before_load(adapter)
        assert time.time() - Path(adapter.load_path).stat().st_mtime < 10
        shutil.rmtree(adapter.load_path)
        await desk.keeper.before_load(adapter)


async def test_files_that_are_gone_are_not_unchanged(root: Path) -> None:
    async with running(Desk(root, mode="off")) as desk:
        adapter = desk.adapter()
        assert await desk.keeper.unchanged(adapter)
        shutil.rmtree(root / "alpha")
        assert not await desk.keeper.unchanged(adapter)


# snapshots that nobody uses


async def old_revision(desk: Desk, root: Path) -> Adapter:
    """The first revision of alpha, replaced by now, not used for long."""
    old = desk.adapter()
    write_adapter(root / "alpha", seed=9, age=OLD)
    await until(lambda: desk.adapter().digest != old.digest)
    long_ago = time.time() - 2 * GRACE
    for revision in (old, desk.adapter()):
        os.utime(revision.load_path, (long_ago, long_ago))
    return old


async def test_what_nobody_uses_is_removed_when_all_replicas_were_seen(root: Path) -> None:
    async with running(Desk(root), cleaning=0.1) as desk:
        desk.hold()
        old = await old_revision(desk, root)
        before = desk.looks
        await until(lambda: desk.looks > before + 3)
        assert Path(old.load_path).is_dir(), "nobody holds the new revision yet: the old one may have to serve again"
        desk.hold(desk.adapter().revision)
        await until(lambda: not Path(old.load_path).exists())
        assert Path(desk.adapter().load_path).is_dir()
        assert desk.looks >= 2


async def test_what_a_replica_holds_or_loads_stays(root: Path) -> None:
    async with running(Desk(root), cleaning=0.1) as desk:
        desk.hold(desk.adapter().revision)
        old = await old_revision(desk, root)
        before = desk.looks
        await until(lambda: desk.looks > before + 3)
        assert Path(old.load_path).is_dir()


async def test_while_a_replica_cannot_be_seen_nothing_is_removed(root: Path) -> None:
    desk = Desk(root)
    desk.all_seen = False
    async with running(desk, cleaning=0.1):
        desk.hold()
        old = await old_revision(desk, root)
        before = desk.looks
        await until(lambda: desk.looks > before + 3)
        assert Path(old.load_path).is_dir()


async def test_what_a_replica_is_found_to_hold_at_the_last_look_is_brought_back(root: Path) -> None:
    desk = Desk(root)
    async with running(desk):
        desk.hold()
        old = await old_revision(desk, root)
        desk.hold(desk.adapter().revision)
        looks: list[bool] = []

        async def look_all() -> bool:
            looks.append(Path(old.load_path).exists())
            if len(looks) == 2:
                desk.hold(desk.adapter().revision, old.revision)
            return True

        cleaning = asyncio.create_task(desk.keeper.clean(look_all, 0.1))
        await until(lambda: len(looks) >= 3)
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)
        assert looks[:3] == [True, False, True]
        assert Path(old.load_path).is_dir()
