"""When the directory is looked at: on events, at intervals, and for requests that name what nobody knows."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

from gateway.control.directory import Directory
from gateway.control.files import SAFETENSORS
from gateway.control.snapshots import Snapshots
from gateway.control.validation import Rules
from gateway.core.adapters import Catalog
from tests.adapters import write_adapter
from tests.control.shelf import OLD
from tests.waiting import until, until_true

NEVER = 3600.0  # a scan interval that no test lives to see


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def directory(root: Path, scan_interval: float = NEVER, *, snapshots: bool = True) -> Directory:
    store = Snapshots(root, root / ".lora-gateway", "link", 3600.0) if snapshots else None
    return Directory(root, depth=2, rules=Rules(), snapshots=store, scan_interval=scan_interval)


class Follower:
    """Takes every catalog that comes."""

    def __init__(self) -> None:
        self.catalogs: list[Catalog] = []

    @property
    def names(self) -> list[str]:
        return list(self.catalogs[-1].adapters) if self.catalogs else []

    async def follow(self, source: Directory) -> None:
        async for catalog in source.catalogs():
            self.catalogs.append(catalog)


@asynccontextmanager
async def following(source: Directory, *, watch: Path | None = None) -> AsyncIterator[Follower]:
    follower = Follower()
    tasks = [asyncio.create_task(follower.follow(source))]
    if watch:
        tasks.append(asyncio.create_task(source.watch()))
    try:
        await until(lambda: bool(follower.catalogs))
        if watch:
            await settle(watch, follower)
        yield follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def settle(root: Path, follower: Follower) -> None:
    """Until events come: the watch needs a moment to begin, and says nothing when it has."""
    probe = root / "probe"
    write_adapter(probe, age=OLD)
    for attempt in range(100):
        write_adapter(probe, seed=attempt, age=OLD)
        try:
            await until(lambda: "probe" in follower.names, 0.2)
        except AssertionError:
            continue
        break
    shutil.rmtree(probe)
    await until(lambda: "probe" not in follower.names)


async def scans_rest(source: Directory, seconds: float = 0.6) -> int:
    """How many scans there were once none came for so long."""
    while True:
        before = source.scans
        with suppress(AssertionError):
            await until(lambda seen=before: source.scans != seen, seconds)  # type: ignore[misc]
        if source.scans == before:
            return before


# whole catalogs


async def test_the_first_catalog_is_whole_although_its_files_are_fresh(root: Path) -> None:
    for number in range(20):
        write_adapter(root / f"a{number:02}", seed=number)
    async with following(directory(root)) as follower:
        assert len(follower.catalogs[0].adapters) == 20


async def test_inotify_network_fs_without_events_the_periodic_scan_finds_all(root: Path) -> None:
    source = directory(root, 0.2)
    async with following(source) as follower:
        write_adapter(root / "alpha", age=OLD)
        await until(lambda: follower.names == ["alpha"], 2.0)
        shutil.rmtree(root / "alpha")
        await until(lambda: follower.names == [], 4.0)
        assert source.watch_mode == "polling"


async def test_an_equal_catalog_is_not_told_again(root: Path) -> None:
    write_adapter(root / "alpha", age=OLD)
    source = directory(root, 0.05)
    async with following(source) as follower:
        before = source.scans
        await until(lambda: source.scans > before + 5)
        assert len(follower.catalogs) == 1


# events


async def test_events_make_a_new_folder_known_without_a_periodic_scan(root: Path) -> None:
    source = directory(root)
    async with following(source, watch=root) as follower:
        assert source.watch_mode == "events"
        write_adapter(root / "team" / "alpha")
        await until(lambda: follower.names == ["team/alpha"], 4.0)
        shutil.rmtree(root / "team")
        await until(lambda: follower.names == [], 4.0)


async def test_same_name_new_weights_are_seen_by_their_event(root: Path) -> None:
    write_adapter(root / "alpha", age=OLD)
    source = directory(root)
    async with following(source, watch=root) as follower:
        before = follower.catalogs[-1].adapters["alpha"].digest
        write_adapter(root / "alpha", seed=9)
        await until(lambda: follower.catalogs[-1].adapters["alpha"].digest != before, 4.0)


async def test_checkpoint_tree_neither_other_files_nor_snapshots_are_a_reason_to_look(root: Path) -> None:
    write_adapter(root / "run7", age=OLD)
    (root / "run7" / "events.log").write_text("")
    source = directory(root)
    async with following(source, watch=root):
        before = await scans_rest(source)
        with (root / "run7" / "events.log").open("a") as log:
            for number in range(100):
                log.write(f"step {number}\n")
                log.flush()
        for number in range(10):
            (root / ".lora-gateway" / f"x{number}").mkdir()
        (root / ".lora-gateway" / "x1" / SAFETENSORS).write_bytes(b"")
        assert await scans_rest(source) == before


async def test_a_storm_of_events_is_a_few_scans(root: Path) -> None:
    source = directory(root)
    async with following(source, watch=root) as follower:
        before, begun = source.scans, monotonic()
        for number in range(100):
            write_adapter(root / f"a{number:02}", age=OLD)
            await asyncio.sleep(0.005)
        await until(lambda: len(follower.names) == 100)
        assert source.scans - before <= 3 + 5 * (monotonic() - begun)


async def test_a_root_that_was_exchanged_is_watched_anew(root: Path) -> None:
    write_adapter(root / "alpha", age=OLD)
    source = directory(root)
    async with following(source, watch=root) as follower:
        root.rename(root.with_name("old"))
        write_adapter(root / "beta", age=OLD)
        await source.rescan()  # as the periodic one would
        await settle(root, follower)
        write_adapter(root / "gamma", age=OLD)
        await until(lambda: "gamma" in follower.names, 4.0)


LIMITED = """
import asyncio, sys
from pathlib import Path
from gateway.control.directory import Directory
from gateway.control.validation import Rules
from tests.adapters import write_adapter
from tests.waiting import until, until_true

async def main(root):
    source = Directory(root, depth=2, rules=Rules(), snapshots=None, scan_interval=0.1)
    watch = asyncio.create_task(source.watch())
    catalogs = source.catalogs()
    await anext(catalogs)
    await until(lambda: source.watch_mode == "polling")
    write_adapter(root / "team" / "alpha", age=60.0)
    async with asyncio.timeout(5):
        assert list((await anext(catalogs)).adapters) == ["team/alpha"]
    assert not watch.done()
    watch.cancel()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("limit", ["instances", "watches"])
def test_inotify_network_fs_without_a_free_watch_the_directory_is_polled_and_the_remedy_told(root: Path, limit: str) -> None:
    """In a user namespace of its own, so that the limit concerns nobody else."""
    limits = f"echo 0 > /proc/sys/user/max_inotify_{limit}"
    if subprocess.run(["unshare", "-r", "sh", "-c", limits], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    run = f'{limits}; exec "$@"'
    ended = subprocess.run(
        ["unshare", "-r", "sh", "-c", run, "sh", sys.executable, "-c", LIMITED, str(root)],
        check=False, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert f"fs.inotify.max_user_{limit}" in ended.stdout + ended.stderr


# requests that name what nobody knows


async def names_after_refresh(source: Directory, name: str) -> list[str]:
    return list((await source.refresh(name)).adapters)


async def test_inotify_network_fs_a_new_folder_is_known_to_the_request_that_names_it(root: Path) -> None:
    source = directory(root)
    async with following(source):
        write_adapter(root / "alpha", age=OLD)
        assert await names_after_refresh(source, "alpha") == ["alpha"]


async def test_a_request_waits_until_fresh_files_may_be_believed(root: Path) -> None:
    source = directory(root)
    async with following(source):
        write_adapter(root / "alpha")
        begun = monotonic()
        assert await names_after_refresh(source, "alpha") == ["alpha"]
        assert monotonic() - begun < 3.0


async def test_a_request_for_another_name_does_not_wait_for_fresh_files(root: Path) -> None:
    source = directory(root)
    async with following(source):
        write_adapter(root / "alpha")
        assert await names_after_refresh(source, "nobody") == []


async def test_inotify_network_fs_a_thousand_unknown_names_are_at_most_two_scans_a_second(root: Path) -> None:
    write_adapter(root / "alpha", age=OLD)
    source = directory(root)
    async with following(source):
        before, begun = source.scans, monotonic()
        number = 0
        while monotonic() - begun < 2.2:
            await asyncio.gather(*(source.refresh(f"unknown-{number}-{which}") for which in range(50)))
            number += 1
            write_adapter(root / f"new-{number}", age=OLD)  # each look finds that the folder has changed
        assert number * 50 >= 200
        assert 2 <= source.scans - before <= 2 * (monotonic() - begun) + 1


async def test_unknown_names_in_an_unchanged_directory_are_a_look_each_and_no_scan(root: Path) -> None:
    write_adapter(root / "alpha", age=OLD)
    source = directory(root)
    async with following(source):
        await source.rescan()
        before, begun = source.scans, monotonic()
        for number in range(200):
            await source.refresh(f"unknown-{number}")
        assert source.scans - before <= 2 * (monotonic() - begun)


async def test_a_scan_that_is_shared_begins_after_each_of_those_who_asked(root: Path) -> None:
    """Whoever asks after a change sees it, however many scans are under way."""
    source = directory(root)
    async with following(source):
        asked = []
        for number in range(10):
            write_adapter(root / f"a{number}", age=OLD)
            asked.append(asyncio.create_task(source.refresh(f"a{number}")))
            await asyncio.sleep(0.12)
        for number, task in enumerate(asked):
            assert f"a{number}" in (await task).adapters


async def test_a_request_that_leaves_does_not_end_the_scan_of_the_others(root: Path) -> None:
    source = directory(root)
    async with following(source):
        write_adapter(root / "alpha", age=OLD)
        leaving, staying = (asyncio.create_task(source.refresh("alpha")) for _ in range(2))
        await asyncio.sleep(0.05)
        leaving.cancel()
        assert list((await staying).adapters) == ["alpha"]


# one adapter, for the guard


async def test_a_digest_is_taken_of_what_replicas_load(root: Path) -> None:
    alpha = write_adapter(root / "alpha", age=OLD)
    source = directory(root)
    adapter = (await source.rescan()).adapters["alpha"]
    write_adapter(alpha, seed=9)
    assert source.is_unchanged(adapter)
    write_adapter(Path(adapter.load_path), seed=9)
    assert not source.is_unchanged(adapter)
    (Path(adapter.load_path) / SAFETENSORS).write_bytes(b"cut")
    assert not source.is_unchanged(adapter)
    shutil.rmtree(adapter.load_path)
    with pytest.raises(FileNotFoundError):
        source.is_unchanged(adapter)


async def test_a_scan_that_fails_for_one_who_asked_is_tried_again_for_the_next(root: Path) -> None:
    source = directory(root)
    async with following(source):
        shutil.rmtree(root)
        assert (await source.refresh("alpha")).trouble
        root.mkdir()
        write_adapter(root / "alpha", age=OLD)
        await until_true(lambda: knows(source, "alpha"))


async def knows(source: Directory, name: str) -> bool:
    return name in (await source.refresh(name)).adapters
