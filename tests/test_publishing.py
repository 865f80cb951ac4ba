"""Publishing a folder: what is refused, what is copied, and that the directory is never half of anything."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.check import Check
from gateway.control.files import DISK
from gateway.control.validation import Rules, inspect
from gateway.control.verdicts import Refused
from gateway.control.walk import Walk
from gateway.publishing import ABANDONED, STAGING, Published, Publisher, Unpublishable
from gateway.publishing_place import put_in_place
from tests.adapters import write_adapter

DIGEST = "0123456789ab"


class Directory:
    """An adapter directory, and folders to publish from."""

    def __init__(self, root: Path) -> None:
        self.root, self.sources = root / "adapters", root / "sources"
        self.root.mkdir()
        self.old, self.new = write_adapter(self.sources / "old"), write_adapter(self.sources / "new", seed=1)

    def publish(
        self,
        source: Path,
        name: str = "sql",
        progress: Callable[[int, int], None] = lambda copied, total: None,
        **rules: object,
    ) -> Published:
        checker = Check(**rules)  # type: ignore[arg-type]
        return Publisher(self.root, checker, self.root / ".lora-gateway").publish(source, name, progress)

    def tree(self) -> list[str]:
        """Every path below, hidden ones too."""
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*"))

    def digest(self, name: str = "sql") -> str:
        return inspect(self.root / name, Rules()).digest


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


FILES = ["sql", "sql/adapter_config.json", "sql/adapter_model.safetensors"]


def test_what_is_published_is_what_check_saw_and_a_scan_finds_it(directory: Directory) -> None:
    seen: list[tuple[int, int]] = []
    done = directory.publish(directory.old, progress=lambda copied, total: seen.append((copied, total)))
    assert directory.tree() == FILES
    assert list(Walk(str(directory.root), 2, DISK).tree().found) == ["sql"]
    [row] = Check().adapters(directory.root, lambda count: None)
    assert (done.revision, done.size_bytes) == (row.revision, row.size_bytes)
    assert (done.changed, done.replaced, done.path) == (True, False, str(directory.root / "sql"))
    assert seen[0] == (0, done.size_bytes)
    assert seen[-1] == (done.size_bytes, done.size_bytes)


def test_only_what_replicas_read_is_copied_readable_for_everybody(directory: Directory) -> None:
    (directory.old / "optimizer.pt").write_bytes(b"x")
    (directory.old / "adapter_model.bin").write_bytes(b"x")
    (directory.old / "checkpoint-10").mkdir()
    before = os.umask(0o077)
    try:
        done = directory.publish(directory.old, "team/sql")
    finally:
        os.umask(before)
    assert done.left_out == ("adapter_model.bin", "checkpoint-10", "optimizer.pt")
    assert directory.tree() == ["team", *(f"team/{path}" for path in FILES)]
    assert {oct(path.stat().st_mode & 0o777) for path in directory.root.rglob("*") if path.is_dir()} == {"0o755"}
    assert {oct(path.stat().st_mode & 0o777) for path in directory.root.rglob("*") if path.is_file()} == {"0o644"}


@pytest.mark.parametrize("source", ["models--org--legal", "models--org--legal/snapshots/c0ffee"], ids=["tree", "commit"])
def test_a_hub_cache_becomes_plain_files(directory: Directory, source: str) -> None:
    tree = directory.sources / "models--org--legal"
    for part in ("blobs", "refs", "snapshots/c0ffee"):
        (tree / part).mkdir(parents=True)
    (tree / "refs" / "main").write_text("c0ffee")
    for number, file in enumerate(sorted(directory.old.iterdir())):
        shutil.move(file, tree / "blobs" / str(number))
        (tree / "snapshots" / "c0ffee" / file.name).symlink_to(f"../../blobs/{number}")
    directory.publish(directory.sources / source, "legal")
    assert [path.name for path in (directory.root / "legal").iterdir() if path.is_symlink()] == []
    shutil.rmtree(directory.sources)
    assert directory.digest("legal")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("", "is no name", id="empty"),
        pytest.param("/etc/sql", "is no name", id="absolute"),
        pytest.param("../sql", "is no name", id="upwards"),
        pytest.param("team/../../sql", "is no name", id="upwards inside"),
        pytest.param("sql/", "is no name", id="a slash at the end"),
        pytest.param("a/b/c", "3 deep, the gateway looks 2 deep", id="too deep"),
        pytest.param(".sql", "hidden or temporary", id="hidden"),
        pytest.param(".lora-gateway/sql", "hidden or temporary", id="among the snapshots"),
        pytest.param("sql.tmp", "hidden or temporary", id="temporary"),
        pytest.param("datasets--a--b", "hidden or temporary", id="a data set"),
        pytest.param("models--org--sql", "looks like a hub cache", id="hub cache"),
        pytest.param(f"sql@{DIGEST}", "is reserved", id="reserved"),
        pytest.param(f"sql@{DIGEST}/x", "is reserved", id="reserved above"),
        pytest.param("sql\x1b[2J", "control characters", id="control characters"),
        pytest.param("sql\udcff", "not valid UTF-8", id="no text"),
        pytest.param("ü" * 121, "too long", id="too long"),
    ],
)
def test_a_name_that_would_not_be_served_is_refused(directory: Directory, name: str, told: str) -> None:
    with pytest.raises(Unpublishable, match=told):
        directory.publish(directory.old, name)
    assert directory.tree() == []


def _file(root: Path) -> None:
    (root / "sql").write_text("")


def _other_folder(root: Path) -> None:
    (root / "sql").mkdir()
    (root / "sql" / "notes.txt").write_text("")


def _folder_of_adapters(root: Path) -> None:
    write_adapter(root / "sql")
    write_adapter(root / "sql" / "checkpoint-10")


def _hub_tree(root: Path) -> None:
    (root / "models--sql" / "snapshots").mkdir(parents=True)


@pytest.mark.parametrize(
    ("prepare", "name", "told"),
    [
        pytest.param(_file, "sql", "is a file already", id="a file"),
        pytest.param(_file, "sql/x", "is a file, no folder", id="a file above"),
        pytest.param(_other_folder, "sql", "no adapter", id="another folder"),
        pytest.param(_folder_of_adapters, "sql", r"holds others \(checkpoint-10\)", id="others inside"),
        pytest.param(_hub_tree, "sql", "the hub cache models--sql has this name", id="a hub cache of that name"),
        pytest.param(lambda root: (root / "team").symlink_to("/tmp"), "team/sql", "leads outside", id="a link outwards"),
    ],
)
def test_what_is_in_the_way_is_told_and_left_alone(
    directory: Directory, prepare: Callable[[Path], None], name: str, told: str
) -> None:
    prepare(directory.root)
    before = directory.tree()
    with pytest.raises(Unpublishable, match=told):
        directory.publish(directory.new, name)
    assert directory.tree() == before


def _no_weights(source: Path) -> None:
    (source / "adapter_model.safetensors").unlink()


def _big_rank(source: Path) -> None:
    write_adapter(source, rank=64)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(_no_weights, "incomplete: ", id="no weights"),
        pytest.param(_big_rank, "rank 64 is above --max-lora-rank 16", id="rank"),
        pytest.param(shutil.rmtree, "is no folder", id="nothing"),
        pytest.param(lambda s: (s / "adapter_config.json").unlink(), "it has no adapter_config.json", id="no config"),
    ],
)
def test_what_would_be_invalid_is_refused_and_the_old_adapter_stays(
    directory: Directory, spoil: Callable[[Path], None], told: str
) -> None:
    directory.publish(directory.old)
    before = directory.digest()
    spoil(directory.new)
    with pytest.raises(Unpublishable, match=told):
        directory.publish(directory.new, max_lora_rank=16)
    assert (directory.tree(), directory.digest()) == (FILES, before)


def test_a_base_model_that_is_known_may_not_lend_its_name_and_is_compared(directory: Directory) -> None:
    with pytest.raises(Unpublishable, match="named like the base model"):
        directory.publish(directory.old, "llama", base_model="llama")
    assert "it was made for the base model 'base-a'" in directory.publish(directory.old, base_model="llama").warnings[0]


def test_the_same_revision_again_changes_nothing(directory: Directory) -> None:
    directory.publish(directory.old)
    inode = (directory.root / "sql").stat().st_ino
    assert directory.publish(directory.old).changed is False
    assert (directory.root / "sql").stat().st_ino == inode


def test_a_new_revision_takes_the_place_and_the_old_folder_is_gone(directory: Directory) -> None:
    first, second = directory.publish(directory.old), directory.publish(directory.new)
    assert (second.replaced, second.left_behind) == (True, None)
    assert directory.digest() == second.revision != first.revision
    assert directory.tree() == FILES


def test_a_link_is_replaced_and_what_it_led_to_stays(directory: Directory) -> None:
    (directory.root / "sql").symlink_to(directory.old)
    directory.publish(directory.new)
    assert not (directory.root / "sql").is_symlink()
    assert sorted(path.name for path in directory.old.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.parametrize("name", ["sql", "team/sql"], ids=["over an old one", "in a new folder"])
def test_an_interruption_leaves_everything_as_it_was(directory: Directory, name: str) -> None:
    directory.publish(directory.old)
    before = directory.digest()

    def interrupt(copied: int, total: int) -> None:
        if copied:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        directory.publish(directory.new, name, interrupt)
    assert (directory.tree(), directory.digest()) == (FILES, before)


def test_a_source_that_changes_while_it_is_copied_is_refused(directory: Directory) -> None:
    def retrain(copied: int, total: int) -> None:
        write_adapter(directory.old, seed=9)

    with pytest.raises(Unpublishable, match="was changed while it was copied"):
        directory.publish(directory.old, progress=retrain)
    assert directory.tree() == []


def test_when_the_new_folder_cannot_come_in_the_old_one_is_put_back(directory: Directory) -> None:
    directory.publish(directory.old)
    with pytest.raises(FileNotFoundError):
        put_in_place(directory.root / "not there", directory.root / "sql")
    assert directory.tree() == FILES


def _digest_or_trouble(folder: Path) -> str:
    try:
        return inspect(folder, Rules()).digest
    except (Refused, OSError) as trouble:
        return repr(trouble)


def test_a_reader_meets_the_old_one_the_new_one_or_none_never_a_mixture(directory: Directory) -> None:
    digests = {inspect(folder, Rules()).digest for folder in (directory.old, directory.new)}
    directory.publish(directory.old)
    target, seen = directory.root / "sql", set[str]()
    stop = threading.Event()

    def read() -> None:
        """As a scan does, but so that it knows whether what it opened was still in its place afterwards."""
        while not stop.is_set():
            with suppress(FileNotFoundError):
                folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    found = _digest_or_trouble(Path(f"/proc/self/fd/{folder}"))
                    if os.path.samestat(os.fstat(folder), target.stat()):
                        seen.add(found)
                finally:
                    os.close(folder)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(60):
            directory.publish(directory.new if turn % 2 == 0 else directory.old)
    finally:
        stop.set()
        reader.join()
    assert seen == digests


def test_many_publishers_of_one_name_damage_nothing(directory: Directory) -> None:
    sources = [write_adapter(directory.sources / str(n), seed=n) for n in range(4)]
    start, troubles = threading.Barrier(len(sources)), []

    def publish(source: Path) -> None:
        start.wait()
        for _ in range(15):
            try:
                directory.publish(source)
            except Exception as trouble:
                troubles.append(trouble)

    threads = [threading.Thread(target=publish, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    assert directory.tree() == FILES
    assert directory.digest() in {inspect(source, Rules()).digest for source in sources}


def test_what_a_killed_publisher_left_aside_goes_after_a_day(directory: Directory) -> None:
    fresh, stale = directory.root / f"{STAGING}fresh", directory.root / f"{STAGING}stale"
    for folder in (fresh, stale):
        write_adapter(folder)
    then = time.time() - ABANDONED - 60
    os.utime(stale, (then, then))
    directory.publish(directory.old)
    assert (fresh.exists(), stale.exists()) == (True, False)
    assert list(Walk(str(directory.root), 2, DISK).tree().found) == ["sql"]


def test_a_config_that_is_changed_alone_is_another_revision(directory: Directory) -> None:
    first = directory.publish(directory.old)
    config = json.loads((directory.old / "adapter_config.json").read_text())
    (directory.old / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 99}))
    assert directory.publish(directory.old).revision != first.revision
