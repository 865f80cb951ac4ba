"""A short run of the fuzz tests with a fixed seed; `python -m tests.fuzz` runs them for as long as one likes."""

import pytest

from tests.fuzz.__main__ import SIDES, fuzz
from tests.proxy.conftest import Setup


@pytest.mark.parametrize("side", sorted(SIDES))
async def test_nothing_hangs_and_nothing_is_mixed_up(setup: Setup, side: str) -> None:
    assert await fuzz(side, setup.adapter, 7, seconds=30.0, batches=12) == 12 * 16
