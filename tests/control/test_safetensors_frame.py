"""The frame of a safetensors file, held against the library that replicas read it with."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize

from gateway.control.safetensors_frame import Frame, parse_frame, read_block, read_frame, sampled
from gateway.control.verdicts import Incomplete, Invalid, Refused
from tests.adapters import lora_tensors, safetensors_bytes

GOOD = safetensors_bytes(lora_tensors())


def frame_of(tmp_path: Path, data: bytes) -> Frame:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_frame(descriptor, len(data))
    finally:
        os.close(descriptor)


def with_header(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(begin: int, end: int, shape: Any = (2, 2), dtype: object = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_whole_file_gives_its_tensors_in_the_order_of_their_data(tmp_path: Path) -> None:
    frame = frame_of(tmp_path, GOOD)
    assert [tensor.name for tensor in frame.tensors] == list(lora_tensors())
    assert frame.tensors[-1].end == len(GOOD)
    assert frame.metadata == {"format": "pt"}


def test_truncated_weights_every_shorter_length_is_incomplete_and_never_corrupt(tmp_path: Path) -> None:
    for length in range(0, len(GOOD), 7):
        with pytest.raises(Incomplete, match="still being written"):
            frame_of(tmp_path, GOOD[:length])


CORRUPT = {
    "longer": (GOOD + b"\0", "1 bytes more than its header announces"),
    "lfs-pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
    "ten-gigabytes": (struct.pack("<Q", 10 * 2**30) + b"{}", "not a safetensors file"),
    "html": (b"<!DOCTYPE html><html>", "not a safetensors file"),
    "zeros": (bytes(4096), "not a safetensors file"),
    "zip": (b"PK\x03\x04" + bytes(400), "not a safetensors file"),
    "no-json": (with_header(b"{nonsense}      "), "header cannot be read"),
    "array": (struct.pack("<Q", 2) + b"[]", "not a safetensors file"),
    "nested": (with_header(b'{"a":' * 300_000), "header cannot be read"),
    "nested-entry": (with_header(b'{"a":' + b"[" * 300_000), "header cannot be read"),
    "not-utf-8": (with_header(b'{"\xff\xfe": 1}'), "header cannot be read"),
    "entry-number": (with_header({"a": 3}), "header cannot be read"),
    "offsets-missing": (with_header({"a": {"dtype": "F32", "shape": [2]}}), "header cannot be read"),
    "offset-negative": (with_header({"a": entry(-16, 0)}), "header cannot be read"),
    "shape-negative": (with_header({"a": entry(0, 16, [-2, -2])}, bytes(16)), "header cannot be read"),
    "shape-endless": (with_header({"a": entry(0, 16, [2**60] * 1000)}, bytes(16)), "header cannot be read"),
    "metadata-number": (with_header({"__metadata__": {"a": 1}}), "header cannot be read"),
    "type-unknown": (with_header({"a": entry(0, 16, dtype="F99")}, bytes(16)), "unknown type 'F99'"),
    "size-differs": (with_header({"a": entry(0, 12)}, bytes(12)), "size and shape"),
    "hole": (with_header({"a": entry(0, 16), "b": entry(20, 36)}, bytes(36)), "leaves a gap or overlaps"),
    "overlap": (with_header({"a": entry(0, 16), "b": entry(8, 24)}, bytes(24)), "leaves a gap or overlaps"),
    "late-start": (with_header({"a": entry(4, 20)}, bytes(20)), "leaves a gap or overlaps"),
}


@pytest.mark.parametrize(("data", "reason"), CORRUPT.values(), ids=CORRUPT.keys())
def test_what_contradicts_itself_is_invalid(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        frame_of(tmp_path, data)
    assert reason in refused.value.reason


def verdict(data: bytes) -> str:
    (length,) = struct.unpack("<Q", data[:8])
    try:
        parse_frame(data[8 : 8 + length], len(data))
    except Refused as refused:
        return type(refused).__name__
    return "good"


ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "I8", "BOOL", "nope"]),
        "shape": st.lists(st.integers(0, 4), max_size=3),
        "data_offsets": st.tuples(st.integers(0, 40), st.integers(0, 40)),
    }
)


@given(st.dictionaries(st.text(max_size=4), ENTRIES, max_size=4), st.integers(0, 64))
def test_what_is_taken_is_what_the_library_takes(header: dict[str, Any], size: int) -> None:
    data = with_header(header, bytes(size))
    try:
        deserialize(data)  # type: ignore[no-untyped-call]
        taken = True
    except SafetensorError:
        taken = False
    assert (verdict(data) == "good") == taken


@given(st.lists(st.tuples(st.sampled_from([("F32", 4), ("BF16", 2), ("U8", 1)]), st.lists(st.integers(0, 5), max_size=3))))
def test_every_well_formed_file_is_taken(layout: list[tuple[tuple[str, int], list[int]]]) -> None:
    tensors = {}
    for number, ((dtype, size), shape) in enumerate(layout):
        count = size
        for side in shape:
            count *= side
        tensors[f"t{number}"] = dtype, tuple(shape), bytes(count)
    assert verdict(safetensors_bytes(tensors)) == "good"


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_changed_byte_is_a_verdict_and_never_an_accident(position: int, value: int) -> None:
    data = bytearray(GOOD)
    data[position] = value
    if int.from_bytes(data[:8], "little") < len(data):
        assert verdict(bytes(data)) in ("good", "Incomplete", "Invalid")


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 8, 10**9], ids=["none", "one", "whole", "above", "giga"])
def test_samples_lie_inside_and_cover_small_tensors_whole(size: int) -> None:
    blocks = list(sampled(100, 100 + size))
    assert all(offset >= 100 and offset + length <= 100 + size for offset, length in blocks)
    assert sum(length for _, length in blocks) == (size if size <= 16 * 1024 else 12 * 1024)
    assert all((offset - 100) % 8 == 0 for offset, _ in blocks)


def test_a_file_cut_short_while_it_is_read_is_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"123")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(Incomplete):
            read_block(descriptor, 0, 4)
    finally:
        os.close(descriptor)
