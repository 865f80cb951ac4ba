"""What one scan after another makes of a directory that people, sync jobs and failing shares change."""

import errno
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.control.files import CONFIG, SAFETENSORS, Disk
from gateway.control.scanner import Scanner
from gateway.control.snapshots import Snapshots
from gateway.control.validation import Rules, inspect
from gateway.core.adapters import Home, RejectedState
from gateway.publishing_place import put_in_place
from tests.adapters import config, lora_tensors, safetensors_bytes, write_adapter, write_file, write_weights
from tests.control.shelf import OLD, Shelf

INCOMPLETE, INVALID = RejectedState.INCOMPLETE, RejectedState.INVALID


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "root")


@pytest.fixture
def bare(tmp_path: Path) -> Shelf:
    """Without snapshots: replicas load from the folders themselves."""
    return Shelf(tmp_path / "root", snapshots=False)


def test_an_adapter_is_told_with_all_that_people_and_replicas_need(shelf: Shelf) -> None:
    shelf.put("team/alpha")
    adapter = shelf.scan().adapters["team/alpha"]
    assert adapter.path == f"{shelf.root}/team/alpha"
    assert adapter.load_path == f"{shelf.home}/team/alpha@{adapter.digest}"
    assert (adapter.base_model, adapter.rank, adapter.home, adapter.home_reason) == ("base-a", 8, Home.LINK, "")
    assert abs(adapter.seen_at - time.time()) < 5


def test_without_snapshots_it_is_loaded_from_its_own_path(bare: Shelf) -> None:
    bare.put("alpha")
    adapter = bare.scan().adapters["alpha"]
    assert (adapter.load_path, adapter.home) == (adapter.path, Home.OWN_PATH)


def test_two_at_once_are_sorted_and_twins_say_so(shelf: Shelf) -> None:
    shelf.put("beta", seed=1)
    shelf.put("alpha")
    shutil.copytree(shelf.root / "alpha", shelf.root / "gamma")
    catalog = shelf.settled()
    assert list(catalog.adapters) == ["alpha", "beta", "gamma"]
    assert catalog.adapters["gamma"].warnings == ("same weights as alpha",)
    assert catalog.adapters["alpha"].warnings == ()


def test_an_unchanged_directory_gives_the_same_catalog_object(shelf: Shelf) -> None:
    shelf.put("alpha")
    (shelf.put("bad") / CONFIG).write_text("{}")
    shelf.settled()
    assert shelf.scan(100.0) is shelf.scan(100.0)
    assert not shelf.scanner.restless


def test_an_unchanged_folder_is_not_read_again(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.settled()
    shelf.disk.fail(f"open {shelf.root}/alpha/{CONFIG}", errno.EIO)
    catalog = shelf.scan(1.0)
    assert (list(catalog.adapters), list(catalog.rejected)) == (["alpha"], [])


class Exchanging(Disk):
    """Exchanges a folder at the moment when the snapshot has its config and reaches for its weights."""

    def __init__(self, folder: Path, by: Path) -> None:
        self.folder, self.by = folder, by

    def stat(self, path: str) -> os.stat_result:
        if path.endswith(SAFETENSORS) and self.by.exists():
            put_in_place(self.by, self.folder)
        return super().stat(path)


def test_a_folder_that_is_exchanged_while_it_is_stored_is_never_served_as_a_mixture_of_both(tmp_path: Path) -> None:
    old, new = tmp_path / "alpha", tmp_path / ".new"
    write_adapter(old, age=OLD, lora_alpha=16)
    write_adapter(new, age=OLD, lora_alpha=32, seed=1)
    whole = {inspect(folder, Rules()).digest for folder in (old, new)}
    snapshots = Snapshots(tmp_path, tmp_path / ".lora-gateway", "link", 3600.0, layer=Exchanging(old, new))
    scanner = Scanner(tmp_path, depth=2, rules=Rules(), snapshots=snapshots)
    assert list(scanner.scan().adapters) == []
    assert scanner.restless
    assert {adapter.digest for adapter in scanner.scan().adapters.values()} == {inspect(old, Rules()).digest} <= whole


# fresh files


def test_fresh_files_are_taken_by_a_second_look_half_a_second_later(shelf: Shelf) -> None:
    shelf.put("alpha", age=0)
    catalog = shelf.scan()
    assert (list(catalog.adapters), list(catalog.rejected)) == ([], [])
    assert shelf.scanner.pending() == {"alpha"}
    assert shelf.scanner.restless
    shelf.scan(0.4)
    assert shelf.names == []
    shelf.scan(0.1)
    assert shelf.names == ["alpha"]
    assert shelf.scanner.pending() == set()


def test_files_dated_in_the_future_are_taken_by_the_second_look_too(shelf: Shelf) -> None:
    shelf.put("alpha", age=-3600)
    assert list(shelf.scan().adapters) == []
    assert list(shelf.scan(0.5).adapters) == ["alpha"]


def test_fresh_and_wrong_is_not_told_before_the_second_look(shelf: Shelf) -> None:
    (shelf.put("alpha") / CONFIG).write_text('{"peft_type": "LO')
    assert list(shelf.scan().rejected) == []
    shelf.scan(0.5)
    assert (shelf.state("alpha"), "not valid JSON" in shelf.reason("alpha")) == (INVALID, True)


def test_files_that_keep_changing_are_incomplete_until_they_rest(shelf: Shelf) -> None:
    for seed in range(4):
        shelf.put("alpha", seed=seed, age=0)
        shelf.scan(0.6)
    assert (shelf.state("alpha"), "still changing" in shelf.reason("alpha")) == (INCOMPLETE, True)
    shelf.scan(0.6)
    assert (shelf.names, shelf.state("alpha")) == (["alpha"], None)


def test_truncated_weights_are_incomplete_at_once_and_heal_by_themselves(shelf: Shelf) -> None:
    folder = shelf.root / "alpha"
    whole = safetensors_bytes(lora_tensors())
    folder.mkdir()
    write_file(folder / CONFIG, json.dumps(config()).encode())
    shelf.scan()
    assert "is not yet" in shelf.reason("alpha")
    since = shelf.scanner.catalog.rejected["alpha"].since
    for part in (0, 100, 900, len(whole) - 1):
        (folder / SAFETENSORS).write_bytes(whole[:part])
        shelf.scan(1.0)
        assert (shelf.names, shelf.state("alpha")) == ([], INCOMPLETE)
    assert shelf.scanner.catalog.rejected["alpha"].since == since
    assert time.strftime("(since %Y-%m-%d", time.gmtime(since)) in shelf.reason("alpha")
    (folder / SAFETENSORS).write_bytes(whole)
    shelf.scan(1.0)
    assert shelf.state("alpha") is INCOMPLETE
    shelf.scan(0.5)
    assert (shelf.names, shelf.state("alpha")) == (["alpha"], None)


def test_lfs_pointer_turns_ready_when_the_real_file_comes(shelf: Shelf) -> None:
    folder = shelf.put("alpha")
    write_file(folder / SAFETENSORS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", age=OLD)
    shelf.scan()
    assert (shelf.state("alpha"), "Git LFS" in shelf.reason("alpha")) == (INVALID, True)
    write_weights(folder / SAFETENSORS, lora_tensors(), age=OLD)
    shelf.scan()
    assert (shelf.names, shelf.state("alpha")) == (["alpha"], None)


# new bytes under an old name


def test_same_name_new_weights_are_a_new_revision_in_its_own_snapshot(shelf: Shelf) -> None:
    shelf.put("alpha", seed=1)
    first = shelf.scan().adapters["alpha"]
    shelf.put("alpha", seed=2)
    second = shelf.scan(1.0).adapters["alpha"]
    assert first.digest != second.digest
    assert Path(first.load_path).is_dir()
    assert Path(second.load_path).is_dir()
    shelf.put("alpha", seed=1)
    assert shelf.scan(1.0).adapters["alpha"].digest == first.digest


def test_k8s_data_link_new_content_counts_although_size_and_date_match(shelf: Shelf) -> None:
    folder = shelf.root / "alpha"
    for number, version in enumerate(("..2026_01_01", "..2026_01_02")):
        write_adapter(folder / version, seed=number)
        for file in (folder / version).iterdir():
            os.utime(file, (1e9, 1e9))
    (folder / "..data").symlink_to("..2026_01_01")
    for name in (CONFIG, SAFETENSORS):
        (folder / name).symlink_to(f"..data/{name}")
    first = shelf.settled().adapters["alpha"].digest
    (folder / "..aside").symlink_to("..2026_01_02")
    (folder / "..aside").rename(folder / "..data")
    shutil.rmtree(folder / "..2026_01_01")
    second = shelf.scan(1.0).adapters["alpha"].digest
    assert first != second


def test_hf_cache_a_new_commit_is_a_new_revision_of_the_same_name(shelf: Shelf) -> None:
    top = shelf.root / "models--org--alpha"
    for number, commit in enumerate(("a" * 40, "b" * 40)):
        write_adapter(top / "snapshots" / commit, seed=number, age=OLD)
    (top / "refs").mkdir()
    (top / "refs" / "main").write_text("a" * 40)
    first = shelf.scan().adapters["org/alpha"].digest
    (top / "refs" / "main").write_text("b" * 40)
    assert shelf.scan(1.0).adapters["org/alpha"].digest != first
    assert shelf.names == ["org/alpha"]


def test_overwritten_in_place_with_equal_size_and_date_is_seen(shelf: Shelf) -> None:
    weights = shelf.put("alpha") / SAFETENSORS
    before = shelf.settled().adapters["alpha"].digest
    date = weights.stat().st_mtime_ns
    weights.write_bytes(safetensors_bytes(lora_tensors(seed=5)))
    os.utime(weights, ns=(date, date))
    assert shelf.settled().adapters["alpha"].digest != before


def test_touched_files_stay_the_same_adapter_and_are_not_fresh_again(shelf: Shelf) -> None:
    folder = shelf.put("alpha")
    adapter = shelf.settled().adapters["alpha"]
    (folder / SAFETENSORS).touch()
    (folder / CONFIG).chmod(0o600)
    touched = shelf.scan(1.0).adapters["alpha"]
    assert touched == replace(adapter, made_at=touched.made_at)
    assert touched.made_at > adapter.made_at
    assert shelf.scanner.pending() == set()


def test_new_bytes_that_are_wrong_leave_the_old_revision_and_tell_why(shelf: Shelf) -> None:
    folder = shelf.put("alpha")
    old = shelf.scan().adapters["alpha"]
    write_weights(folder / SAFETENSORS, {"x": ("F32", (1,), bytes(4))}, age=OLD)
    catalog = shelf.scan(1.0)
    assert catalog.adapters["alpha"] == old
    assert "lora_A" in catalog.rejected["alpha"].reason
    write_file(folder / SAFETENSORS, b"", age=OLD)
    catalog = shelf.scan(1.0)
    assert (catalog.adapters["alpha"], catalog.rejected["alpha"].state) == (old, INCOMPLETE)
    shelf.put("alpha", seed=3)
    catalog = shelf.scan(1.0)
    assert (catalog.adapters["alpha"].digest != old.digest, dict(catalog.rejected)) == (True, {})


def test_cut_in_place_takes_the_linked_snapshot_with_it_so_the_old_revision_goes(shelf: Shelf) -> None:
    folder = shelf.put("alpha")
    shelf.settled()
    os.truncate(folder / SAFETENSORS, 100)
    catalog = shelf.scan(1.0)
    assert (list(catalog.adapters), catalog.rejected["alpha"].state) == ([], INCOMPLETE)


def test_cut_in_place_leaves_the_old_revision_where_snapshots_are_copies(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "root", mode="copy")
    folder = shelf.put("alpha")
    old = shelf.settled().adapters["alpha"]
    assert old.home is Home.COPY
    os.truncate(folder / SAFETENSORS, 100)
    assert shelf.scan(1.0).adapters["alpha"] == old


def test_new_bytes_on_its_own_path_take_the_old_revision_out_at_once(bare: Shelf) -> None:
    bare.put("alpha", seed=1)
    bare.scan()
    bare.put("alpha", seed=2, age=0)
    catalog = bare.scan(1.0)
    assert (list(catalog.adapters), list(catalog.rejected)) == ([], [])
    assert list(bare.scan(0.5).adapters) == ["alpha"]


def test_a_snapshot_that_vanished_is_made_again_at_the_same_path(shelf: Shelf) -> None:
    shelf.put("alpha")
    adapter = shelf.settled().adapters["alpha"]
    shutil.rmtree(adapter.load_path)
    assert shelf.scan(1.0).adapters["alpha"] == adapter
    assert (Path(adapter.load_path) / SAFETENSORS).is_file()


def test_a_snapshot_that_was_changed_is_made_again_at_the_same_path(shelf: Shelf) -> None:
    shelf.put("alpha")
    adapter = shelf.settled().adapters["alpha"]
    write_weights(Path(adapter.load_path) / SAFETENSORS, lora_tensors(seed=9))
    assert shelf.scan(1.0).adapters["alpha"] == adapter
    assert (Path(adapter.load_path) / SAFETENSORS).read_bytes() == safetensors_bytes(lora_tensors())


def test_an_own_path_is_tried_again_when_snapshots_may_have_become_possible(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.home.write_text("in the way")
    adapter = shelf.scan().adapters["alpha"]
    assert adapter.home is Home.OWN_PATH
    assert "no snapshot could be made" in adapter.home_reason
    shelf.home.unlink()
    assert shelf.scan(30.0).adapters["alpha"].home is Home.OWN_PATH
    assert shelf.scan(31.0).adapters["alpha"].home is Home.LINK


# folders that go away


def test_a_missing_folder_is_confirmed_by_a_second_look(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.put("beta", seed=1)
    shelf.scan()
    shutil.rmtree(shelf.root / "alpha")
    shelf.scan(5.0)
    assert shelf.names == ["alpha", "beta"]
    assert shelf.scanner.restless
    shelf.scan(0.4)
    assert shelf.names == ["alpha", "beta"]
    shelf.scan(0.1)
    assert shelf.names == ["beta"]


def test_rename_folder_has_the_new_name_no_later_than_it_loses_the_old_one(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.put("other", seed=1)
    shelf.scan()
    (shelf.root / "alpha").rename(shelf.root / "beta")
    assert list(shelf.scan(1.0).adapters) == ["alpha", "beta", "other"]
    assert list(shelf.scan(0.5).adapters) == ["beta", "other"]


def test_the_last_folder_can_be_removed(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.settled()
    shutil.rmtree(shelf.root / "alpha")
    shelf.scan(1.0)
    shelf.scan(0.5)
    assert shelf.names == ["alpha"]
    catalog = shelf.scan(0.5)
    assert (list(catalog.adapters), catalog.trouble) == ([], "")


def test_the_last_folder_of_a_team_and_the_team_itself_can_be_removed(shelf: Shelf) -> None:
    for name in ("alpha", "team/one", "crew/two"):
        shelf.put(name, seed=len(name))
    shelf.settled()
    shutil.rmtree(shelf.root / "team" / "one")
    shutil.rmtree(shelf.root / "crew")
    shelf.settled()
    assert shelf.names == ["alpha"]


def test_bucket_mount_one_empty_listing_removes_nothing(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.settled()
    shelf.disk.emptied.add(str(shelf.root))
    shelf.scan(1.0)
    shelf.disk.emptied.clear()
    shelf.scan(1.0)
    assert shelf.names == ["alpha"]


def test_bucket_mount_a_listing_that_lags_is_believed_only_after_a_minute(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.settled()
    shelf.disk.emptied.add(str(shelf.root))
    for _ in range(20):
        catalog = shelf.scan(2.0)
    assert (list(catalog.adapters), "is the share mounted" in catalog.trouble) == (["alpha"], True)
    for _ in range(20):
        catalog = shelf.scan(2.0)
    assert (list(catalog.adapters), catalog.trouble) == ([], "")


def test_bucket_mount_errors_on_one_folder_leave_it_ready_and_the_others_alone(shelf: Shelf) -> None:
    folder = shelf.put("alpha")
    shelf.settled()
    write_weights(folder / SAFETENSORS, lora_tensors(seed=4), age=OLD)
    shelf.put("beta", seed=1)
    shelf.disk.fail(f"open {folder}/{CONFIG}", errno.ESTALE, times=2)
    old = shelf.digest("alpha")
    for _ in range(2):
        catalog = shelf.scan(1.0)
        assert (list(catalog.adapters), list(catalog.rejected), shelf.digest("alpha")) == (["alpha", "beta"], [], old)
    shelf.scan(1.0)
    assert shelf.digest("alpha") != old


def test_bucket_mount_a_new_folder_with_errors_is_incomplete_until_it_can_be_read(shelf: Shelf) -> None:
    folder = shelf.put("alpha")
    shelf.disk.fail(f"open {folder}/{CONFIG}", errno.ESTALE, times=2)
    shelf.scan()
    assert (shelf.state("alpha"), "tried again" in shelf.reason("alpha")) == (INCOMPLETE, True)
    assert shelf.scanner.restless
    shelf.scan(1.0)
    shelf.scan(1.0)
    assert (shelf.names, shelf.state("alpha")) == (["alpha"], None)


def test_bucket_mount_a_folder_that_cannot_be_listed_keeps_what_was_ready_below(shelf: Shelf) -> None:
    shelf.put("team/alpha")
    shelf.settled()
    shelf.disk.fail(f"{shelf.root}/team", errno.EIO, times=10)
    for _ in range(3):
        shelf.scan(1.0)
    assert (shelf.names, shelf.state("team/alpha"), shelf.state("team")) == (["team/alpha"], INCOMPLETE, INCOMPLETE)
    shelf.disk.errors.clear()
    shelf.scan(1.0)
    assert (shelf.names, dict(shelf.scanner.catalog.rejected)) == (["team/alpha"], {})


def test_bucket_mount_errors_take_out_what_is_loaded_from_its_own_path_after_three(bare: Shelf) -> None:
    folder = bare.put("alpha")
    bare.settled()
    bare.disk.fail(f"stat {folder}/{CONFIG}", errno.EIO, times=3)
    bare.scan(1.0)
    bare.scan(1.0)
    assert bare.names == ["alpha"]
    bare.scan(1.0)
    assert (bare.names, bare.state("alpha")) == ([], INCOMPLETE)
    bare.scan(1.0)
    assert (bare.names, bare.state("alpha")) == (["alpha"], None)


def test_permissions_unreadable_files_are_invalid_with_the_remedy_and_heal(shelf: Shelf) -> None:
    folder = shelf.put("alpha")
    shelf.put("beta", seed=1)
    shelf.disk.fail(f"open {folder}/{CONFIG}", errno.EACCES)
    shelf.scan()
    assert (shelf.names, shelf.state("alpha")) == (["beta"], INVALID)
    assert "Permission denied; let the gateway's user read" in shelf.reason("alpha")
    shelf.scan(1.0)
    assert shelf.names == ["alpha", "beta"]


def test_permissions_an_unreadable_folder_is_told_under_its_name(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.disk.fail(f"{shelf.root}/alpha", errno.EACCES, times=1)
    shelf.scan()
    assert (shelf.state("alpha"), "cannot be read" in shelf.reason("alpha")) == (INVALID, True)
    shelf.scan(1.0)
    assert (shelf.names, shelf.state("alpha")) == (["alpha"], None)


# the root


def test_an_unreadable_root_keeps_the_last_catalog_and_tells(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.settled()
    shelf.disk.fail(str(shelf.root), errno.EIO, times=50)
    for _ in range(25):
        catalog = shelf.scan(60.0)
    assert (list(catalog.adapters), "cannot be read: Input/output error" in catalog.trouble) == (["alpha"], True)
    shelf.disk.errors.clear()
    assert shelf.scan(1.0).trouble == ""


def test_a_root_that_is_gone_keeps_the_last_catalog(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.settled()
    shelf.root.rename(shelf.root.with_name("away"))
    for _ in range(10):
        catalog = shelf.scan(60.0)
    assert list(catalog.adapters) == ["alpha"]
    assert "No such file" in catalog.trouble


def test_an_empty_folder_in_the_place_of_the_root_is_an_unmounted_share(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.put("team/beta", seed=1)
    shelf.settled()
    away = shelf.root.rename(shelf.root.with_name("away"))
    shelf.root.mkdir()
    for _ in range(30):
        catalog = shelf.scan(60.0)
    assert (list(catalog.adapters), "is the share mounted" in catalog.trouble) == (["alpha", "team/beta"], True)
    shelf.root.rmdir()
    away.rename(shelf.root)
    catalog = shelf.scan(1.0)
    assert (list(catalog.adapters), catalog.trouble) == (["alpha", "team/beta"], "")


def test_a_team_that_is_an_unmounted_share_keeps_its_adapters(shelf: Shelf) -> None:
    shelf.put("alpha")
    shelf.put("team/beta", seed=1)
    shelf.settled()
    (shelf.root / "team").rename(shelf.root.with_name("away"))
    (shelf.root / "team").mkdir()
    for _ in range(30):
        catalog = shelf.scan(60.0)
    assert (list(catalog.adapters), "team is empty or was exchanged" in catalog.trouble) == (["alpha", "team/beta"], True)


def test_a_root_exchanged_for_one_with_other_adapters_is_followed(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        write_adapter(tmp_path / name / f"a{number}", seed=number, age=OLD)
    (tmp_path / "current").symlink_to("one")
    shelf = Shelf(tmp_path / "current", snapshots=False)
    shelf.settled()
    assert shelf.names == ["a0"]
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "current")
    assert list(shelf.scan(1.0).adapters) == ["a0", "a1"]
    shelf.settled()
    assert shelf.names == ["a1"]


def test_an_empty_directory_at_the_start_is_no_trouble(shelf: Shelf) -> None:
    catalog = shelf.scan()
    assert (dict(catalog.adapters), dict(catalog.rejected), catalog.trouble) == ({}, {}, "")


# rules and names


def test_bin_only_and_rank_too_big_follow_the_rules(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "root", rules=Rules(allow_pickle=True, max_lora_rank=16))
    folder = shelf.put("old")
    (folder / SAFETENSORS).unlink()
    write_file(folder / "adapter_model.bin", b"any bytes", age=OLD)
    write_adapter(shelf.root / "big", rank=64, age=OLD)
    shelf.scan()
    assert shelf.names == ["old"]
    assert "--max-lora-rank 16" in shelf.reason("big")
    assert (Path(shelf.scanner.catalog.adapters["old"].load_path) / "adapter_model.bin").is_file()


def test_odd_names_reserved_ones_are_rejected_under_their_name(shelf: Shelf) -> None:
    shelf.put("alpha@0123456789ab")
    shelf.scan()
    assert (shelf.state("alpha@0123456789ab"), "reserved" in shelf.reason("alpha@0123456789ab")) == (INVALID, True)


def test_a_name_of_250_letters_is_loaded_from_its_own_path_and_says_why(shelf: Shelf) -> None:
    shelf.put("x" * 250)
    adapter = shelf.scan().adapters["x" * 250]
    assert (adapter.home, "too long" in adapter.home_reason) == (Home.OWN_PATH, True)


def test_a_scan_of_a_thousand_unchanged_adapters_only_looks_and_is_cheap(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "root")
    for number in range(1000):
        shelf.put(f"a{number}", seed=number)
    shelf.settled()
    looks, times = shelf.disk.calls, []
    for _ in range(5):
        began = time.perf_counter()
        shelf.scan(1.0)
        times.append(time.perf_counter() - began)
    assert (shelf.disk.calls - looks) / 5 <= 3002, "the folder and its two files, the root, and the aliases"
    assert min(times) < 0.5, "measured 0.04 s"
    print(f"1,000 unchanged adapters: {min(times) * 1000:.0f} ms")
