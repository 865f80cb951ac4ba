"""The frame of a safetensors file: eight bytes of header length, a JSON header, then the tensors without gaps.

Read with a few small reads and no mapping (a mapped file that is cut short kills the process). What is shorter than it
announces is incomplete; what contradicts itself is invalid. Also says which blocks of a file stand for all of it.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from gateway.control.peft_config import LFS_POINTER, LFS_REASON
from gateway.control.verdicts import Incomplete, Invalid, quoted

MAX_HEADER_BYTES = 32 * 1024 * 1024  # 72,000 expert matrices take 12 MB
_LENGTH_BYTES = 8
_WHOLE = 16 * 1024  # a tensor up to this size is read whole
_BLOCK = 4 * 1024  # of a larger one, its first, middle and last block: training changes every block
_NAME = "adapter_model.safetensors"
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
_SIZES |= {"I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[list[_Natural], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Natural, _Natural]


class Tensor(NamedTuple):
    """One tensor; `begin` and `end` count from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Frame:
    tensors: tuple[Tensor, ...]  # in the order of their data
    metadata: Mapping[str, str]


def read_frame(descriptor: int, size: int) -> Frame:
    """The frame of an open file of `size` bytes; Incomplete or Invalid otherwise."""
    start = os.pread(descriptor, 64, 0)
    if start.startswith(LFS_POINTER):
        raise Invalid(f"{_NAME}: {LFS_REASON}", "lfs_pointer")
    if size < _LENGTH_BYTES:
        what = "is empty" if size == 0 else f"has {size} bytes so far"
        raise Incomplete(f"{_NAME} {what}: still being written", "weights_short")
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES or length < 2 or start[_LENGTH_BYTES : _LENGTH_BYTES + 1] not in (b"{", b""):
        raise Invalid(f"{_NAME} is not a safetensors file: upload it again", "weights_corrupt")
    if _LENGTH_BYTES + length > size:
        raise Incomplete(f"{_NAME} ends within its header: still being written", "weights_short")
    return parse_frame(os.pread(descriptor, length, _LENGTH_BYTES), size)


def parse_frame(header: bytes, size: int) -> Frame:
    """The frame that a header announces, held against the size of the whole file."""
    entries, metadata = _decode(header)
    start = _LENGTH_BYTES + len(header)
    tensors = sorted(_tensors(entries, start), key=lambda tensor: (tensor.begin, tensor.end))
    position = start
    for tensor in tensors:
        if tensor.begin != position:
            raise Invalid(f"{_NAME} is corrupt: the data of {quoted(tensor.name)} leaves a gap or overlaps", "weights_corrupt")
        position = tensor.end
    if position > size:
        reason = f"{_NAME} has {size} of the {position} bytes that its header announces: still being written"
        raise Incomplete(reason, "weights_short")
    if position < size:
        reason = f"{_NAME} is corrupt: {size - position} bytes more than its header announces; upload it again"
        raise Invalid(reason, "weights_corrupt")
    return Frame(tuple(tensors), metadata)


def _decode(header: bytes) -> tuple[dict[str, _Entry], dict[str, str]]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
        return entries, msgspec.json.decode(metadata, type=dict[str, str]) if metadata is not None else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Invalid(f"{_NAME} is corrupt: its header cannot be read; upload it again", "weights_corrupt") from None


def _tensors(entries: Mapping[str, _Entry], start: int) -> Iterator[Tensor]:
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        size = _SIZES.get(entry.dtype)
        if size is None:
            raise Invalid(f"{_NAME}: {quoted(name)} has the unknown type {quoted(entry.dtype)}", "weights_corrupt")
        if end - begin != size * math.prod(entry.shape):
            raise Invalid(f"{_NAME} is corrupt: size and shape of {quoted(name)} differ", "weights_corrupt")
        yield Tensor(name, entry.dtype, tuple(entry.shape), start + begin, start + end)


def sampled(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The blocks, as (offset, length), that stand for the bytes from `begin` to `end`."""
    size = end - begin
    if size <= _WHOLE:
        if size:
            yield begin, size
        return
    middle = begin + (size // 2) // 8 * 8  # on a boundary of every type
    for offset in (begin, middle, end - _BLOCK):
        yield offset, _BLOCK


def fetch(descriptor: int, blocks: Iterable[tuple[int, int]]) -> None:
    """Have the system read these blocks side by side, where it can: one after the other they cost a seek each."""
    if hasattr(os, "posix_fadvise"):
        for offset, length in blocks:
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)


def read_block(descriptor: int, offset: int, length: int) -> bytes:
    """Exactly these bytes; Incomplete when the file was cut short since its size was taken."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            raise Incomplete("the weights became shorter while they were read", "weights_short")
        data += more
    return data
