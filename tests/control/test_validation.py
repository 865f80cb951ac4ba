"""Folders as they come: whole, half written, hostile."""

import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.control.files import CONFIG, SAFETENSORS
from gateway.control.validation import Facts, Rules, inspect
from gateway.control.verdicts import Incomplete, Invalid
from tests.adapters import config, lora_tensors, safetensors_bytes, write_adapter, write_weights

RULES = Rules()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture
def alpha(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "alpha")


def look(folder: Path, rules: Rules = RULES, root: Path | None = None) -> Facts:
    return inspect(folder, rules, root=root or folder.parent)


def test_a_good_folder_gives_its_facts(alpha: Path) -> None:
    facts = look(alpha)
    size = sum(path.stat().st_size for path in alpha.iterdir())
    assert (facts.base_model, facts.rank, facts.size_bytes, facts.warnings) == ("base-a", 8, size, ())
    assert facts.files == (CONFIG, SAFETENSORS)
    assert len(facts.digest) == 12


def test_truncated_weights_a_config_without_weights_is_incomplete(alpha: Path) -> None:
    (alpha / SAFETENSORS).unlink()
    with pytest.raises(Incomplete, match=r"adapter_model\.safetensors is not yet") as refused:
        look(alpha)
    assert refused.value.code == "weights_missing"


@pytest.mark.parametrize("length", [0, 5, 40, 500, 2000], ids=["none", "length", "header", "most-header", "data"])
def test_truncated_weights_shorter_than_announced_are_incomplete(alpha: Path, length: int) -> None:
    os.truncate(alpha / SAFETENSORS, length)
    with pytest.raises(Incomplete, match="still being written"):
        look(alpha)


def test_a_missing_config_is_the_file_systems_error(alpha: Path) -> None:
    (alpha / CONFIG).unlink()
    with pytest.raises(FileNotFoundError):
        look(alpha)


@pytest.mark.parametrize("name", [CONFIG, SAFETENSORS])
def test_lfs_pointer_in_either_file_is_invalid(alpha: Path, name: str) -> None:
    (alpha / name).write_bytes(POINTER)
    with pytest.raises(Invalid, match="Git LFS pointer, content not fetched") as refused:
        look(alpha)
    assert refused.value.code == "lfs_pointer"


def test_bin_only_is_invalid_and_names_the_flag(alpha: Path) -> None:
    (alpha / SAFETENSORS).rename(alpha / "adapter_model.bin")
    with pytest.raises(Invalid, match="--allow-pickle") as refused:
        look(alpha)
    assert refused.value.code == "pickle"


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_bin_only_with_the_flag_is_accepted_with_a_warning(alpha: Path, name: str) -> None:
    (alpha / SAFETENSORS).unlink()
    (alpha / name).write_bytes(b"any bytes")
    facts = look(alpha, Rules(allow_pickle=True))
    assert facts.files == (CONFIG, name)
    assert "pickle" in facts.warnings[0]


def test_bin_only_empty_or_pointer_is_told_apart(alpha: Path) -> None:
    (alpha / SAFETENSORS).unlink()
    (alpha / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(Incomplete, match="is empty"):
        look(alpha, Rules(allow_pickle=True))
    (alpha / "adapter_model.bin").write_bytes(POINTER)
    with pytest.raises(Invalid, match="Git LFS"):
        look(alpha, Rules(allow_pickle=True))


def test_bin_only_both_formats_are_fine_and_a_change_of_either_is_another_content(alpha: Path) -> None:
    plain = look(alpha).digest
    (alpha / "adapter_model.bin").write_bytes(b"one")
    assert look(alpha).digest == plain, "a pickle that may not be used does not count"
    both = look(alpha, Rules(allow_pickle=True))
    (alpha / "adapter_model.bin").write_bytes(b"two")
    assert look(alpha, Rules(allow_pickle=True)).digest != both.digest
    assert both.warnings == ()


@pytest.mark.parametrize(
    "name", ["adapter_model-00001-of-00002.safetensors", "adapter_model.safetensors.index.json"], ids=["shard", "index"]
)
def test_sharded_weights_are_invalid(alpha: Path, name: str) -> None:
    (alpha / SAFETENSORS).rename(alpha / name)
    with pytest.raises(Invalid, match=r"sharded.*one file") as refused:
        look(alpha)
    assert refused.value.code == "sharded"


def test_rank_too_big_for_the_rule_names_the_flag(alpha: Path) -> None:
    write_adapter(alpha, rank=64)
    assert look(alpha).rank == 64
    with pytest.raises(Invalid, match="rank 64 is above --max-lora-rank 16") as refused:
        look(alpha, Rules(max_lora_rank=16))
    assert refused.value.code == "rank"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_weights_that_are_no_numbers_are_invalid(alpha: Path, bad: float) -> None:
    tensors = lora_tensors()
    name = list(tensors)[2]
    dtype, shape, data = tensors[name]
    write_weights(alpha / SAFETENSORS, {**tensors, name: (dtype, shape, data[:-4] + struct.pack("<f", bad))})
    with pytest.raises(Invalid, match=r"layers\.1.*NaN or infinite") as refused:
        look(alpha)
    assert refused.value.code == "not_finite"


def test_not_lora_is_told_before_the_weights_are_missed(alpha: Path) -> None:
    (alpha / CONFIG).write_text(json.dumps({"peft_type": "PROMPT_TUNING"}))
    (alpha / SAFETENSORS).unlink()
    with pytest.raises(Invalid, match="PROMPT_TUNING is not LORA"):
        look(alpha)


# links


def test_links_inside_the_root_are_followed(tmp_path: Path, alpha: Path) -> None:
    other = tmp_path / "linked"
    other.mkdir()
    for name in (CONFIG, SAFETENSORS):
        (other / name).symlink_to(f"../alpha/{name}")
    assert look(other) == look(alpha)


@pytest.mark.parametrize("name", [CONFIG, SAFETENSORS])
def test_a_link_that_leaves_the_root_is_invalid_and_its_target_is_not_named(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    folder = write_adapter(root / "alpha")
    secret = (folder / name).rename(tmp_path / "secret")
    (folder / name).symlink_to(secret)
    with pytest.raises(Invalid, match="outside the adapter directory") as refused:
        look(folder, root=root)
    assert refused.value.code == "outside"
    assert "secret" not in refused.value.reason


def test_a_link_to_a_sibling_that_only_begins_like_the_root_leaves_it(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "root" / "alpha")
    other = write_adapter(tmp_path / "root-secret")
    (folder / SAFETENSORS).unlink()
    (folder / SAFETENSORS).symlink_to(other / SAFETENSORS)
    with pytest.raises(Invalid, match="outside"):
        look(folder, root=tmp_path / "root")


def test_a_link_in_a_circle_is_an_error_of_the_file_system(alpha: Path) -> None:
    (alpha / SAFETENSORS).unlink()
    (alpha / SAFETENSORS).symlink_to(SAFETENSORS)
    with pytest.raises(OSError, match="symbolic links"):
        look(alpha)


# what is no file


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket may only be short
        try:
            bound.bind(path.name)
        finally:
            os.chdir(here)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices can be made by root only")


@pytest.mark.parametrize("make", [make_fifo, make_folder, make_socket, make_device], ids=["fifo", "folder", "socket", "device"])
@pytest.mark.parametrize("name", [CONFIG, SAFETENSORS])
def test_what_is_no_regular_file_is_invalid_and_never_waited_for(alpha: Path, name: str, make: Any) -> None:
    (alpha / name).unlink()
    make(alpha / name)
    with pytest.raises(Invalid, match="not a regular file"):
        look(alpha)


# the content's digest


def test_dates_paths_and_links_make_no_other_digest(tmp_path: Path, alpha: Path) -> None:
    digest = look(alpha).digest
    other = write_adapter(tmp_path / "elsewhere" / "deep", age=9999)
    assert look(other).digest == digest


def test_same_name_new_weights_every_tensor_counts(alpha: Path) -> None:
    tensors = lora_tensors()
    digests = {look(alpha).digest}
    for name, (dtype, shape, data) in tensors.items():
        write_weights(alpha / SAFETENSORS, {**tensors, name: (dtype, shape, data[:-1] + b"\x3e")})
        digests.add(look(alpha).digest)
    assert len(digests) == 1 + len(tensors)


def test_order_of_tensors_counts_and_order_of_header_keys_does_not(alpha: Path) -> None:
    digest = look(alpha).digest
    whole = (alpha / SAFETENSORS).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    text = json.dumps(dict(reversed(header.items()))).encode().ljust(length)
    (alpha / SAFETENSORS).write_bytes(whole[:8] + text + whole[8 + length :])
    assert look(alpha).digest == digest
    write_weights(alpha / SAFETENSORS, dict(reversed(lora_tensors().items())))
    assert look(alpha).digest != digest


def test_config_counts_by_meaning(alpha: Path) -> None:
    digest = look(alpha).digest
    (alpha / CONFIG).write_text(json.dumps(dict(reversed(config().items())), indent=4))
    assert look(alpha).digest == digest
    write_adapter(alpha, lora_alpha=32)
    assert look(alpha).digest != digest


def test_a_large_pickle_counts_by_samples_of_all_its_parts(alpha: Path) -> None:
    (alpha / SAFETENSORS).unlink()
    pickle = alpha / "adapter_model.bin"
    digests = set()
    for changed in (None, 0, 2 * 2**20, 5 * 2**20 - 1):
        pickle.write_bytes(bytes(5 * 2**20))
        if changed is not None:
            with pickle.open("r+b") as file:
                file.seek(changed)
                file.write(b"x")
        digests.add(look(alpha, Rules(allow_pickle=True)).digest)
    assert len(digests) == 4


@pytest.fixture
def half_a_gigabyte(tmp_path: Path) -> Iterator[Path]:
    """560 pairs of bfloat16, sparse, so it costs no disk."""
    side = 500_000_000 // (2 * 560 * 2 * 16)
    empty = {
        f"base_model.model.l{number}.lora_{half}.weight": ("BF16", (16, side) if half == "A" else (side, 16), b"")
        for number in range(560)
        for half in "AB"
    }
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape, _) in empty.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + 2 * 16 * side]}
        end += 2 * 16 * side
    text = json.dumps(header).encode()
    folder = write_adapter(tmp_path / "big", rank=16)
    with (folder / SAFETENSORS).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    yield folder
    (folder / SAFETENSORS).unlink()


def test_half_a_gigabyte_is_sampled_in_far_less_time_than_reading_it_takes(half_a_gigabyte: Path) -> None:
    assert look(half_a_gigabyte).size_bytes > 499_000_000
    times = []
    for _ in range(5):
        began = time.perf_counter()
        look(half_a_gigabyte)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.15, "measured 0.03 s; reading it all takes ten times as long"


def test_a_file_made_by_the_helper_is_what_the_library_reads(alpha: Path) -> None:
    assert safetensors_bytes(lora_tensors()) == (alpha / SAFETENSORS).read_bytes()
