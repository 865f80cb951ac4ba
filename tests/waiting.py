"""Until something holds, at most so many seconds: what tests use instead of sleeping."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], bool], seconds: float = 5.0, what: str = "") -> None:
    """Wait until `holds()`; fail after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not holds():
        if loop.time() > end:
            raise AssertionError(f"not within {seconds:g} s: {what or holds}")
        await asyncio.sleep(0.01)


async def until_true(holds: Callable[[], Awaitable[bool]], seconds: float = 5.0, what: str = "") -> None:
    """The same for a condition that has to ask somebody."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await holds():
        if loop.time() > end:
            raise AssertionError(f"not within {seconds:g} s: {what or holds}")
        await asyncio.sleep(0.02)
