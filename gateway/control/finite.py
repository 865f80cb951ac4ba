"""Whether a block of a tensor's bytes holds NaN or infinity, without unpacking it.

A value is not finite when all bits of its exponent are set. These sit in the highest bytes of each little-endian
value, so slices of every n-th byte tell at the speed of a memory copy; only a suspicious block is looked at closely.
An adapter with NaN weights loads, answers empty text, and has broken the next request to the base model (vLLM 0.32).
"""

from typing import NamedTuple


class _Layout(NamedTuple):
    size: int  # bytes of one value
    top: bytes  # highest bytes that belong to a value which is not finite
    below: int  # lowest value that the next byte then has


_LAYOUTS = {
    "F64": _Layout(8, b"\x7f\xff", 0xF0),
    "F32": _Layout(4, b"\x7f\xff", 0x80),
    "BF16": _Layout(2, b"\x7f\xff", 0x80),
    "F16": _Layout(2, bytes((*range(0x7C, 0x80), *range(0xFC, 0x100))), 0),
    "F8_E5M2": _Layout(1, bytes((*range(0x7C, 0x80), *range(0xFC, 0x100))), 0),
    "F8_E4M3": _Layout(1, b"\x7f\xff", 0),
}


def is_finite(dtype: str, block: bytes) -> bool:
    """Whether every value of the block is a finite number. Types that are no floats always are."""
    layout = _LAYOUTS.get(dtype)
    if layout is None:
        return True
    top = block[layout.size - 1 :: layout.size]
    if not any(byte in top for byte in layout.top):
        return True
    if layout.below == 0:
        return False
    below = block[layout.size - 2 :: layout.size]
    return not any(high in layout.top and low >= layout.below for high, low in zip(top, below, strict=False))
