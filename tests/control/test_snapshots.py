"""Immutable copies of revisions: made, shared by several gateways, checked, removed in two steps."""

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.control.copying import CannotStore, storing
from gateway.control.files import CONFIG, SAFETENSORS
from gateway.control.snapshots import Snapshots, Stored
from gateway.control.validation import Facts, Rules, inspect
from gateway.control.verdicts import Incomplete, Refused
from gateway.core.adapters import Home, Revision
from tests.adapters import lora_tensors, safetensors_bytes, write_adapter, write_weights
from tests.control.shelf import FailingDisk

GRACE = 100.0
NOW = time.time()
LATER = NOW + GRACE + 86_400.0  # the suite may take a while to get here


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def facts_of(folder: Path) -> Facts:
    return inspect(folder, Rules(allow_pickle=True))


def snapshots(root: Path, mode: str = "link", home: Path | None = None, disk: FailingDisk | None = None) -> Snapshots:
    return Snapshots(root, home or root / ".lora-gateway", mode, GRACE, layer=disk or FailingDisk())


def make(store: Snapshots, folder: Path, name: str = "alpha") -> Stored:
    return store.make(name, folder, facts_of(folder))


def hidden(home: Path) -> list[str]:
    """What lies half done in the home."""
    return sorted(path.name for path in home.rglob(".*"))


# making


def test_a_snapshot_is_named_by_its_content_and_readable_for_every_user(root: Path) -> None:
    alpha = write_adapter(root / "team" / "alpha")
    (alpha / "optimizer.pt").write_bytes(b"large")
    mask = os.umask(0o077)
    try:
        stored = make(snapshots(root), alpha, "team/alpha")
    finally:
        os.umask(mask)
    assert stored.path == root / ".lora-gateway" / f"team/alpha@{facts_of(alpha).digest}"
    assert sorted(path.name for path in stored.path.iterdir()) == [CONFIG, SAFETENSORS]
    modes = {folder.stat().st_mode & 0o777 for folder in (stored.path, stored.path.parent, root / ".lora-gateway")}
    assert modes == {0o755}
    assert hidden(root / ".lora-gateway") == []


@pytest.mark.parametrize(("mode", "home", "same"), [("link", Home.LINK, True), ("copy", Home.COPY, False)])
def test_links_share_the_file_and_copies_do_not(root: Path, mode: str, home: Home, same: bool) -> None:
    alpha = write_adapter(root / "alpha")
    stored = make(snapshots(root, mode), alpha)
    assert stored.home is home
    assert (stored.path / SAFETENSORS).samefile(alpha / SAFETENSORS) is same
    assert (stored.path / SAFETENSORS).read_bytes() == (alpha / SAFETENSORS).read_bytes()


def test_a_copy_is_readable_although_its_source_is_private(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    (alpha / SAFETENSORS).chmod(0o600)
    assert (make(snapshots(root, "copy"), alpha).path / SAFETENSORS).stat().st_mode & 0o777 == 0o644


def test_a_snapshot_survives_that_its_source_is_replaced_or_removed(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    stored = make(snapshots(root), alpha)
    before = (stored.path / SAFETENSORS).read_bytes()
    write_weights(alpha / SAFETENSORS, lora_tensors(seed=9))
    shutil.rmtree(alpha)
    assert (stored.path / SAFETENSORS).read_bytes() == before


def test_what_is_stored_is_named_by_what_was_stored_and_not_by_what_was_looked_at_before(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    before = facts_of(alpha)
    write_weights(alpha / SAFETENSORS, lora_tensors(seed=9))
    stored = snapshots(root).make("alpha", alpha, before)
    assert stored.facts.digest == facts_of(alpha).digest != before.digest
    assert stored.path.name == f"alpha@{stored.facts.digest}"


def test_a_source_that_was_cut_meanwhile_leaves_nothing_behind(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    before = facts_of(alpha)
    weights = (alpha / SAFETENSORS).read_bytes()
    (alpha / SAFETENSORS).write_bytes(weights[:-10])
    store = snapshots(root)
    with pytest.raises(Incomplete):
        store.make("alpha", alpha, before)
    assert list(store.home.iterdir()) == []


def test_a_source_that_vanished_meanwhile_leaves_nothing_behind(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    before = facts_of(alpha)
    shutil.rmtree(alpha)
    store = snapshots(root)
    with pytest.raises(FileNotFoundError):
        store.make("alpha", alpha, before)
    assert list(store.home.iterdir()) == []


def test_a_link_that_was_swapped_in_cannot_smuggle_a_file_from_outside(root: Path, tmp_path: Path) -> None:
    alpha = write_adapter(root / "alpha")
    before = facts_of(alpha)
    write_weights(tmp_path / "secret", lora_tensors(seed=9))
    (alpha / SAFETENSORS).unlink()
    (alpha / SAFETENSORS).symlink_to(tmp_path / "secret")
    store = snapshots(root)
    with pytest.raises(Refused, match="outside"):
        store.make("alpha", alpha, before)
    assert list(store.home.iterdir()) == []


def test_k8s_data_link_the_file_behind_the_links_is_stored(root: Path) -> None:
    write_adapter(root / "alpha" / "..2026_01_01")
    (root / "alpha" / "..data").symlink_to("..2026_01_01")
    for file in (CONFIG, SAFETENSORS):
        (root / "alpha" / file).symlink_to(f"..data/{file}")
    facts = inspect(root / "alpha", Rules(), root=root)
    stored = snapshots(root).make("alpha", root / "alpha", facts)
    assert not (stored.path / SAFETENSORS).is_symlink()
    assert (stored.path / SAFETENSORS).samefile(root / "alpha" / "..2026_01_01" / SAFETENSORS)


# where none can be made


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system than the tests' own."""
    home = Path("/dev/shm") / f"lora-gateway-test-{os.getpid()}-{threading.get_ident()}"
    if not home.parent.is_dir() or home.parent.stat().st_dev == Path().stat().st_dev:
        pytest.skip("there is no second file system")
    yield home
    shutil.rmtree(home, ignore_errors=True)


def test_another_file_system_is_told_and_the_own_path_stands_in(root: Path, elsewhere: Path) -> None:
    alpha = write_adapter(root / "alpha")
    store = snapshots(root, home=elsewhere)
    stored = make(store, alpha)
    assert (stored.home, stored.path) == (Home.OWN_PATH, alpha)
    assert stored.reason == "no snapshot could be made: the snapshot directory is on another filesystem"
    assert store.reason
    assert list(elsewhere.iterdir()) == []


def test_another_file_system_is_no_hindrance_for_copies(root: Path, elsewhere: Path) -> None:
    alpha = write_adapter(root / "alpha")
    assert make(snapshots(root, "copy", home=elsewhere), alpha).home is Home.COPY


@pytest.fixture
def unlinkable(root: Path) -> Iterator[Path]:
    """An adapter whose files may be read but not linked, as those of another owner may not."""
    alpha = write_adapter(root / "alpha")
    files = [str(alpha / CONFIG), str(alpha / SAFETENSORS)]
    try:
        subprocess.run(["chattr", "+i", *files], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("files cannot be made immutable here")
    yield alpha
    subprocess.run(["chattr", "-i", *files], check=True, capture_output=True)


def test_files_that_may_not_be_linked_are_told_and_the_own_path_stands_in(root: Path, unlinkable: Path) -> None:
    store = snapshots(root)
    stored = make(store, unlinkable)
    assert (stored.home, stored.path) == (Home.OWN_PATH, unlinkable)
    assert "may not be linked (fs.protected_hardlinks)" in stored.reason
    assert list(store.home.iterdir()) == []


def test_the_reason_goes_as_soon_as_a_snapshot_can_be_made(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    store = snapshots(root)
    store.home.write_text("in the way")
    assert make(store, alpha).home is Home.OWN_PATH
    assert store.reason
    store.home.unlink()
    assert make(store, alpha).home is Home.LINK
    assert store.reason == ""


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(errno.EPERM, "another owner", id="may not be linked"),
        pytest.param(errno.EACCES, "not writable", id="no permission"),
        pytest.param(errno.EROFS, "read-only", id="read-only"),
        pytest.param(errno.EXDEV, "another filesystem", id="another file system"),
        pytest.param(errno.ENAMETOOLONG, "too long", id="long name"),
        pytest.param(errno.EMLINK, "too many links", id="too many links"),
        pytest.param(errno.ENOSPC, "disk is full", id="full"),
        pytest.param(errno.EDQUOT, os.strerror(errno.EDQUOT), id="quota"),
    ],
)
def test_the_reason_why_none_can_be_made_is_told_without_a_path(number: int, words: str) -> None:
    with pytest.raises(CannotStore, match=words) as caught, storing():
        raise OSError(number, os.strerror(number), "/secret/place")
    assert "/secret" not in str(caught.value)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EIO])
def test_bucket_mount_trouble_of_the_source_is_not_the_snapshots(number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)), storing():
        raise OSError(number, os.strerror(number))


# several gateways, and what lies there already


def test_two_gateways_at_once_make_one_snapshot(root: Path) -> None:
    folders = {f"a{number}": write_adapter(root / f"a{number}", seed=number) for number in range(20)}
    made: list[list[Stored]] = [[], []]
    together = threading.Barrier(2)

    def work(which: int) -> None:
        store = snapshots(root)
        for name, folder in folders.items():
            facts = facts_of(folder)
            together.wait(10)
            made[which].append(store.make(name, folder, facts))

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [stored.path for stored in made[0]] == [stored.path for stored in made[1]]
    assert len(made[0]) == len(folders)
    for stored in made[0]:
        assert facts_of(stored.path).digest == stored.facts.digest
        assert stored.home is Home.LINK
    assert hidden(root / ".lora-gateway") == []


def test_one_that_lies_there_is_taken_over_when_its_content_is_right(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    first = make(snapshots(root), alpha)
    inode = first.path.stat().st_ino
    second = make(snapshots(root), alpha)
    assert (second.path, second.home) == (first.path, Home.LINK)
    assert second.path.stat().st_ino == inode


def test_one_that_lies_there_with_other_content_is_moved_away_before_its_first_use(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    path = make(snapshots(root), alpha).path
    write_weights(path / SAFETENSORS, lora_tensors(seed=9))
    again = make(snapshots(root), alpha)
    assert again.path == path
    assert facts_of(path).digest == again.facts.digest
    broken = [name for name in hidden(path.parent) if name.startswith(".broken-")]
    assert len(broken) == 1  # deleted later: somebody may be reading it


@pytest.mark.parametrize("how", ["emptied", "cut", "config gone", "a file instead"])
def test_a_broken_one_is_never_called_intact(root: Path, how: str) -> None:
    alpha = write_adapter(root / "alpha")
    stored = make(snapshots(root, "copy"), alpha)
    revision = Revision("alpha", stored.facts.digest)
    if how == "cut":
        (stored.path / SAFETENSORS).write_bytes(b"")
    elif how == "config gone":
        (stored.path / CONFIG).unlink()
    else:
        shutil.rmtree(stored.path)
        if how == "a file instead":
            stored.path.write_text("x")
        else:
            stored.path.mkdir()
    store = snapshots(root, "copy")
    assert store.intact(revision) is None
    assert make(store, alpha).path == stored.path
    assert store.intact(revision) is Home.COPY


def test_a_look_that_fails_changes_nothing(root: Path) -> None:
    alpha, disk = write_adapter(root / "alpha"), FailingDisk()
    store = snapshots(root, disk=disk)
    stored = make(store, alpha)
    revision = Revision("alpha", stored.facts.digest)
    disk.fail(f"{stored.path.name}/{CONFIG}", errno.ESTALE)
    assert store.intact(revision) is Home.LINK
    assert stored.path.is_dir()


def test_an_unchanged_snapshot_is_not_read_again(root: Path) -> None:
    alpha, disk = write_adapter(root / "alpha"), FailingDisk()
    store = snapshots(root, disk=disk)
    stored = make(store, alpha)
    before = disk.calls
    assert store.intact(Revision("alpha", stored.facts.digest)) is Home.LINK
    assert disk.calls - before <= 4


def test_a_pickle_beside_the_weights_of_another_gateways_snapshot_does_not_make_it_wrong(root: Path) -> None:
    """Two gateways with different flags share a home: what one made is right for the other too."""
    alpha = write_adapter(root / "alpha")
    (alpha / "adapter_model.bin").write_bytes(b"pickle")
    permissive, strict = inspect(alpha, Rules(allow_pickle=True)), inspect(alpha, Rules())
    one, other = snapshots(root), snapshots(root)
    first, second = one.make("alpha", alpha, permissive), other.make("alpha", alpha, strict)
    assert first.path != second.path
    for store in (one, other, snapshots(root)):
        for stored in (first, second):
            assert store.intact(Revision("alpha", stored.facts.digest)) is Home.LINK


# removing


def test_what_nobody_uses_is_put_away_after_the_grace_and_then_deleted(root: Path) -> None:
    store = snapshots(root)
    stored = make(store, write_adapter(root / "team" / "alpha"), "team/alpha")
    revision = Revision("team/alpha", stored.facts.digest)
    assert store.on_disk() == {revision}
    assert store.put_away({revision}, LATER) == []
    assert store.put_away((), NOW + GRACE - 60) == []
    assert store.put_away((), LATER) == [revision]
    assert not stored.path.exists()
    store.delete(revision)
    assert list(store.home.iterdir()) == []
    assert store.put_away((), LATER) == []


def test_what_turns_out_to_be_used_is_brought_back(root: Path) -> None:
    store = snapshots(root)
    stored = make(store, write_adapter(root / "alpha"))
    revision = Revision("alpha", stored.facts.digest)
    store.put_away((), LATER)
    store.bring_back(revision)
    assert store.intact(revision) is Home.LINK
    assert hidden(store.home) == []


def test_what_was_made_again_meanwhile_stands_in_for_what_was_put_away(root: Path) -> None:
    alpha = write_adapter(root / "alpha")
    store = snapshots(root)
    revision = Revision("alpha", make(store, alpha).facts.digest)
    store.put_away((), LATER)
    again = make(store, alpha)
    store.bring_back(revision)
    assert store.intact(revision) is Home.LINK
    assert again.path.is_dir()
    assert hidden(store.home) == []
    store.put_away((), LATER)
    make(store, alpha)
    store.delete(revision)
    assert store.intact(revision) is Home.LINK


def test_a_touched_one_has_its_grace_anew(root: Path) -> None:
    store = snapshots(root)
    stored = make(store, write_adapter(root / "alpha"))
    revision = Revision("alpha", stored.facts.digest)
    old = NOW - 10 * GRACE
    os.utime(stored.path, (old, old))
    store.touch(revision)
    assert store.put_away((), NOW + 1) == []
    os.utime(stored.path, (old, old))
    assert store.put_away((), NOW + 1) == [revision]


def test_one_that_is_brought_back_has_its_grace_anew(root: Path) -> None:
    store = snapshots(root)
    stored = make(store, write_adapter(root / "alpha"))
    revision = Revision("alpha", stored.facts.digest)
    old = NOW - 10 * GRACE
    os.utime(stored.path, (old, old))
    store.put_away((), NOW)
    store.bring_back(revision)
    assert store.put_away((), NOW + 1) == []


def test_what_a_gateway_put_away_before_it_ended_is_brought_back_when_it_is_used(root: Path) -> None:
    ended = snapshots(root)
    revision = Revision("alpha", make(ended, write_adapter(root / "alpha")).facts.digest)
    ended.put_away((), LATER)
    store = snapshots(root)
    assert store.put_away({revision}, LATER) == []
    assert store.intact(revision) is Home.LINK


def test_what_a_process_left_half_done_is_removed_when_it_is_old(root: Path) -> None:
    store = snapshots(root)
    stored = make(store, write_adapter(root / "alpha"))
    for name in (".staging-1-abc", "team/.away-beta@0123456789ab", "team/.broken-1-gamma@0123456789ab"):
        (store.home / name).mkdir(parents=True)
        (store.home / name / CONFIG).write_text("{}")
    (store.home / "notes").mkdir()
    store.clean(NOW)
    assert len(hidden(store.home)) == 3
    store.clean(NOW + 7200)
    assert hidden(store.home) == []
    assert stored.path.is_dir()
    assert (store.home / "notes").is_dir()


def test_a_link_in_the_home_is_never_followed_to_what_it_names(root: Path, tmp_path: Path) -> None:
    store = snapshots(root)
    make(store, write_adapter(root / "alpha"))
    (tmp_path / "precious" / ".staging-1").mkdir(parents=True)
    (tmp_path / "precious" / "x@0123456789ab").mkdir()
    (store.home / "link").symlink_to(tmp_path / "precious")
    assert {revision.name for revision in store.on_disk()} == {"alpha"}
    store.clean(NOW + 7200)
    store.put_away((), LATER)
    assert sorted(path.name for path in (tmp_path / "precious").iterdir()) == [".staging-1", "x@0123456789ab"]


def test_a_snapshot_whose_name_fills_the_folder_can_be_put_away_and_brought_back(root: Path) -> None:
    name = "a" * 240
    store = snapshots(root)
    stored = make(store, write_adapter(root / name), name)
    revision = Revision(name, stored.facts.digest)
    assert stored.home is Home.LINK
    assert store.put_away((), LATER) == [revision]
    store.bring_back(revision)
    assert store.intact(revision) is Home.LINK


def test_another_seed_is_another_content(root: Path) -> None:
    """What the tests above rest on: equal seeds give equal bytes, others do not."""
    assert safetensors_bytes(lora_tensors()) == safetensors_bytes(lora_tensors())
    assert safetensors_bytes(lora_tensors()) != safetensors_bytes(lora_tensors(seed=9))
