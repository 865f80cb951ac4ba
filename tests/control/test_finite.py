"""Finite or not, held against the numbers themselves."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.finite import is_finite

PACKED = {"F64": "<d", "F32": "<f", "F16": "<e"}


def bf16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


@pytest.mark.parametrize("dtype", PACKED)
@given(data=st.binary(max_size=64))
def test_any_bytes_are_judged_as_their_values_are(dtype: str, data: bytes) -> None:
    size = struct.calcsize(PACKED[dtype])
    data = data[: len(data) // size * size]
    values = [value for (value,) in struct.iter_unpack(PACKED[dtype], data)]
    assert is_finite(dtype, data) == all(math.isfinite(value) for value in values)


@given(st.binary(max_size=64))
def test_bfloat16_is_judged_as_the_float_it_is_the_upper_half_of(data: bytes) -> None:
    data = data[: len(data) // 2 * 2]
    words = np.frombuffer(data, "<u2").astype("<u4") << 16
    assert is_finite("BF16", data) == bool(np.isfinite(words.view("<f4")).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "minus-inf"])
def test_one_bad_value_among_thousands_is_found(bad: float) -> None:
    assert not is_finite("F32", struct.pack("<f", 3e38) * 999 + struct.pack("<f", bad))
    assert not is_finite("BF16", bf16(0.5) * 999 + bf16(bad))


def test_the_largest_numbers_are_finite() -> None:
    assert is_finite("F32", struct.pack("<f", 3.4e38) * 100)
    assert is_finite("F16", struct.pack("<e", 65504.0) * 100)
    assert is_finite("F64", struct.pack("<d", 1.7e308))


@pytest.mark.parametrize("dtype", ["I8", "U8", "I64", "BOOL"])
def test_whole_numbers_are_always_finite(dtype: str) -> None:
    assert is_finite(dtype, b"\xff" * 64)
