"""Which folders look like adapters, under which names."""

import os
from pathlib import Path

import pytest

from gateway.control.files import DISK, Disk, Entry
from gateway.control.walk import Tree, Walk
from tests.adapters import write_adapter


def tree(root: Path, depth: int = 2, *excluded: Path) -> Tree:
    return Walk(str(root), depth, DISK, map(str, excluded)).tree()


def names(root: Path, depth: int = 2) -> list[str]:
    return sorted(tree(root, depth).found)


def problem(root: Path, name: str) -> str:
    found = tree(root).found[name].problem
    return found.reason if found is not None else ""


@pytest.mark.parametrize(
    "name", ["team/alpha", "base-a:v2", "a_b", "v1.2", "alpha beta", "ünï", "a%2Fb", "x" * 200, "-", "日本語"]
)
def test_odd_names_are_paths_below_the_root_and_nothing_is_split(tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path / name)
    assert names(tmp_path) == [name]
    assert problem(tmp_path, name) == ""


def test_depth_bounds_how_deep_adapters_may_lie(tmp_path: Path) -> None:
    for name in ("a", "b/c", "b/d/e"):
        write_adapter(tmp_path / name)
    assert names(tmp_path, 1) == ["a"]
    assert names(tmp_path, 2) == ["a", "b/c"]
    assert names(tmp_path, 3) == ["a", "b/c", "b/d/e"]


def test_a_folder_without_a_config_is_no_adapter(tmp_path: Path) -> None:
    (write_adapter(tmp_path / "alpha") / "adapter_config.json").unlink()
    assert names(tmp_path) == []


def test_the_root_itself_is_no_adapter(tmp_path: Path) -> None:
    write_adapter(tmp_path)
    assert names(tmp_path) == []


def test_checkpoint_tree_has_the_run_and_its_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    run = write_adapter(tmp_path / "run7")
    write_adapter(run / "checkpoint-100")
    for name in ("optimizer.pt", "trainer_state.json", ".adapter_model.safetensors.Xy12"):
        (run / name).write_text("x")
    (run / "runs").mkdir()
    (run / "runs" / "events.log").write_text("x")
    assert names(tmp_path) == ["run7", "run7/checkpoint-100"]


@pytest.mark.parametrize(
    "name", [".hidden", ".lora-gateway", "..data", "..2026_01_01", "a.part", "a.tmp", "__pycache__", "lost+found"]
)
def test_checkpoint_tree_hidden_and_temporary_names_are_skipped(tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path / name)
    write_adapter(tmp_path / name / "inner")
    write_adapter(tmp_path / "team" / name)
    assert names(tmp_path) == []


def test_snapshots_that_lie_elsewhere_in_the_root_are_left_out(tmp_path: Path) -> None:
    write_adapter(tmp_path / "kept" / "alpha@0123456789ab")
    assert sorted(tree(tmp_path, 2, tmp_path / "kept").found) == []


def test_k8s_data_link_is_one_adapter(tmp_path: Path) -> None:
    folder = tmp_path / "alpha"
    write_adapter(folder / "..2026_01_01")
    (folder / "..data").symlink_to("..2026_01_01")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).symlink_to(f"..data/{name}")
    assert names(tmp_path) == ["alpha"]


def test_a_linked_folder_inside_the_root_is_an_adapter_of_its_own_name(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha")
    (tmp_path / "latest").symlink_to("alpha")
    assert names(tmp_path) == ["alpha", "latest"]


def test_a_linked_folder_that_leaves_the_root_is_told_and_not_entered(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_adapter(tmp_path / "secret" / "inner")
    (root / "container").symlink_to(tmp_path / "secret")
    (root / "alpha").symlink_to(tmp_path / "secret" / "inner")
    assert names(root) == ["alpha"]
    assert "outside the adapter directory" in problem(root, "alpha")


def test_loops_of_links_end_and_add_no_names(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "alpha" / "up").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    assert names(tmp_path, 8) == ["alpha"]


def test_odd_names_a_revision_as_a_name_is_reserved(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha@0123456789ab")
    write_adapter(tmp_path / "beta@0123456789ab" / "inner")
    write_adapter(tmp_path / "gamma@0123456789AB")
    assert "reserved" in problem(tmp_path, "alpha@0123456789ab")
    assert "reserved" in problem(tmp_path, "beta@0123456789ab/inner")
    assert problem(tmp_path, "gamma@0123456789AB") == ""


@pytest.mark.parametrize(
    ("raw", "shown"),
    [(b"a\nb", "a\\nb"), (b"a\x1b[31m", "a\\x1b[31m"), (b"a\xff", "a\\udcff"), (b"a\x7f", "a\\x7f")],
    ids=["newline", "escape", "not-utf-8", "delete"],
)
def test_odd_names_that_cannot_be_shown_are_invalid_under_a_stand_in(tmp_path: Path, raw: bytes, shown: str) -> None:
    folder = write_adapter(tmp_path / "fine")
    folder.rename(tmp_path / os.fsdecode(raw))
    assert names(tmp_path) == [shown]
    assert "rename the folder" in problem(tmp_path, shown)
    shown.encode()


def test_the_number_of_folders_is_bounded(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"f{number:02}").mkdir()
    seen = Walk(str(tmp_path), 2, DISK, most=10).tree()
    assert (seen.truncated, len(seen.listed)) == (True, 10)


class Failing(Disk):
    """A disk on which the folders of some names cannot be listed."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def listing(self, folder: str) -> list[Entry]:
        if folder.endswith(self._names):
            raise OSError(116, "Stale file handle")
        return super().listing(folder)


def test_bucket_mount_a_folder_that_cannot_be_listed_is_told_apart_from_an_absent_one(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha")
    write_adapter(tmp_path / "team" / "beta")
    seen = Walk(str(tmp_path), 2, Failing("/team")).tree()
    assert sorted(seen.found) == ["alpha"]
    assert list(seen.failed) == ["team"]


# hub cache trees


def hub_tree(root: Path, *commits: str, main: str | None) -> Path:
    top = root / "models--org--alpha"
    for number, commit in enumerate(commits):
        source = write_adapter(root / ".made", seed=number)
        snapshot = top / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (top / "blobs").mkdir(exist_ok=True)
        for file in sorted(source.iterdir()):
            blob = top / "blobs" / f"{file.name}-{number}"
            file.rename(blob)
            (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    if main is not None:
        (top / "refs").mkdir(exist_ok=True)
        (top / "refs" / "main").write_text(main)
    return top


def test_hf_cache_is_one_adapter_whose_folder_follows_refs_main(tmp_path: Path) -> None:
    top = hub_tree(tmp_path, "a" * 40, "b" * 40, main="a" * 40)
    (found,) = tree(tmp_path).found.values()
    assert (found.name, found.folder) == ("org/alpha", f"{top}/snapshots/{'a' * 40}")
    (top / "refs" / "main").write_text("b" * 40 + "\n")
    (found,) = tree(tmp_path).found.values()
    assert found.folder == f"{top}/snapshots/{'b' * 40}"


def test_hf_cache_without_refs_takes_the_only_commit_or_asks_for_one(tmp_path: Path) -> None:
    top = hub_tree(tmp_path, "a" * 40, main=None)
    assert tree(tmp_path).found["org/alpha"].folder.endswith("a" * 40)
    (top / "snapshots" / ("b" * 40)).mkdir()
    assert "no refs/main" in problem(tmp_path, "org/alpha")


@pytest.mark.parametrize("main", ["../../..", "", "/etc", "a/b", "\xff"], ids=["up", "empty", "absolute", "slash", "binary"])
def test_hf_cache_refs_that_name_no_commit_are_invalid(tmp_path: Path, main: str) -> None:
    hub_tree(tmp_path, "a" * 40, main=main)
    assert "names no commit" in problem(tmp_path, "org/alpha")


def test_hf_cache_beside_a_folder_of_the_same_name_is_told(tmp_path: Path) -> None:
    hub_tree(tmp_path, "a" * 40, main="a" * 40)
    write_adapter(tmp_path / "org" / "alpha")
    assert names(tmp_path) == ["org/alpha"]
    assert "taken twice" in problem(tmp_path, "org/alpha")


def test_hf_cache_of_a_model_that_is_no_adapter_and_of_data_sets_is_passed_over(tmp_path: Path) -> None:
    top = hub_tree(tmp_path, "a" * 40, main="a" * 40)
    (top / "snapshots" / ("a" * 40) / "adapter_config.json").unlink()
    write_adapter(tmp_path / "datasets--org--x" / "snapshots")
    assert names(tmp_path) == []
