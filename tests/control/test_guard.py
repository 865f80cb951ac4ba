"""Whether the files that replicas load from are still what they were: looked at once per interval, never in the way."""

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path
from time import monotonic

import pytest

from gateway.control.directory import Directory
from gateway.control.files import SAFETENSORS
from gateway.control.guard import SLOW, Guard
from gateway.control.snapshots import Snapshots
from gateway.control.validation import Rules
from gateway.core.adapters import Adapter, Revision
from tests.adapters import lora_tensors, write_adapter, write_weights
from tests.control.shelf import OLD, FailingDisk
from tests.waiting import until


class HangingDisk(FailingDisk):
    """Looks hang while `hangs` is set, as on a share whose server is away."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def stat(self, path: str) -> os.stat_result:
        self.answers.wait(10)
        return super().stat(path)


class Watch:
    """A guard over one adapter, what it found lost, and its disk."""

    def __init__(self, root: Path, interval: float) -> None:
        store = Snapshots(root, root / ".lora-gateway", "copy", 3600.0)
        self.directory = Directory(root, depth=2, rules=Rules(), snapshots=store, scan_interval=3600.0)
        self.lost: list[Revision] = []
        self.disk = HangingDisk()
        self.guard = Guard(interval, self.directory, self.lost.append, layer=self.disk)

    async def adapter(self, name: str = "alpha") -> Adapter:
        return (await self.directory.rescan()).adapters[name]

    async def idle(self) -> None:
        await until(lambda: "0 looking" in repr(self.guard))


@pytest.fixture
async def watch(tmp_path: Path) -> Watch:
    write_adapter(tmp_path / "alpha", age=OLD)
    return Watch(tmp_path, 0.2)


async def test_whole_files_are_looked_at_once_per_interval(watch: Watch) -> None:
    adapter = await watch.adapter()
    assert not watch.guard.fresh(adapter)
    await watch.guard.look(adapter)
    assert watch.guard.fresh(adapter)
    await until(lambda: not watch.guard.fresh(adapter), 1.0)
    await watch.guard.look(adapter)
    assert watch.guard.fresh(adapter)
    await watch.idle()
    assert watch.lost == []


async def test_an_interval_of_zero_is_off(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", age=OLD)
    watch = Watch(tmp_path, 0.0)
    assert watch.guard.fresh(await watch.adapter())


async def test_all_who_ask_at_once_share_one_look(watch: Watch) -> None:
    adapter = await watch.adapter()
    await watch.guard.look(adapter)
    before = watch.disk.calls
    await asyncio.gather(*(watch.guard.look(adapter) for _ in range(100)))
    await watch.idle()
    assert watch.disk.calls - before <= 4  # one for each name that an adapter's file may have


async def test_a_look_that_hangs_keeps_no_request_and_is_not_begun_again(watch: Watch) -> None:
    adapter = await watch.adapter()
    watch.disk.answers.clear()
    begun = monotonic()
    await watch.guard.look(adapter)
    assert SLOW * 0.9 <= monotonic() - begun < 10 * SLOW
    assert watch.guard.fresh(adapter)  # the next requests do not even wait so long
    await until(lambda: not watch.guard.fresh(adapter), 1.0)
    await watch.guard.look(adapter)
    assert "1 looking" in repr(watch.guard)
    watch.disk.answers.set()
    await watch.idle()
    assert watch.lost == []


async def test_bytes_that_changed_in_place_are_a_loss(watch: Watch) -> None:
    adapter = await watch.adapter()
    await watch.guard.look(adapter)
    weights = Path(adapter.load_path) / SAFETENSORS
    with weights.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\x00\x00\x80\x3f")
    await watch.guard.look(adapter)
    await until(lambda: watch.lost == [adapter.revision], 3.0)


@pytest.mark.parametrize("how", ["weights", "cut"])
async def test_weights_that_are_gone_or_cut_short_are_a_loss_at_once(watch: Watch, how: str) -> None:
    adapter = await watch.adapter()
    await watch.guard.look(adapter)
    weights = Path(adapter.load_path) / SAFETENSORS
    if how == "weights":
        weights.unlink()
    else:
        os.truncate(weights, 100)
    await watch.guard.look(adapter)
    await until(lambda: watch.lost == [adapter.revision], 0.4)


@pytest.mark.parametrize("how", ["folder", "file instead"])
async def test_deleted_files_are_a_loss_after_a_second_look(watch: Watch, how: str) -> None:
    adapter = await watch.adapter()
    await watch.guard.look(adapter)
    folder = Path(adapter.load_path)
    shutil.rmtree(folder)
    if how == "file instead":
        folder.write_text("x")
    begun = monotonic()
    await watch.guard.look(adapter)
    assert watch.lost == []
    await until(lambda: watch.lost == [adapter.revision], 3.0)
    assert monotonic() - begun >= 0.5


async def test_files_that_are_back_at_the_second_look_are_no_loss(watch: Watch) -> None:
    adapter = await watch.adapter()
    folder = Path(adapter.load_path)
    folder.rename(folder.with_name("away"))
    await watch.guard.look(adapter)
    folder.with_name("away").rename(folder)
    await watch.idle()
    assert watch.lost == []


async def test_files_never_looked_at_before_are_digested_and_not_believed(watch: Watch) -> None:
    """The guard of a gateway that was just started has seen no marks yet."""
    adapter = await watch.adapter()
    write_weights(Path(adapter.load_path) / SAFETENSORS, lora_tensors(seed=9))
    await watch.guard.look(adapter)
    await until(lambda: watch.lost == [adapter.revision], 3.0)


async def test_touched_files_of_the_same_content_are_no_loss(watch: Watch) -> None:
    adapter = await watch.adapter()
    await watch.guard.look(adapter)
    os.utime(Path(adapter.load_path) / SAFETENSORS)
    await watch.guard.look(adapter)
    await watch.idle()
    assert watch.lost == []


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
async def test_bucket_mount_an_error_is_no_loss_but_unknown(watch: Watch, number: int) -> None:
    adapter = await watch.adapter()
    watch.disk.fail(SAFETENSORS, number)
    await watch.guard.look(adapter)
    await watch.idle()
    assert watch.lost == []


async def test_one_adapters_loss_is_not_anothers(tmp_path: Path) -> None:
    for seed, name in enumerate(("alpha", "beta")):
        write_adapter(tmp_path / name, seed=seed, age=OLD)
    watch = Watch(tmp_path, 0.2)
    alpha, beta = await watch.adapter("alpha"), await watch.adapter("beta")
    shutil.rmtree(alpha.load_path)
    await asyncio.gather(watch.guard.look(alpha), watch.guard.look(beta))
    await until(lambda: watch.lost == [alpha.revision], 3.0)
    await watch.idle()
    assert watch.lost == [alpha.revision]
