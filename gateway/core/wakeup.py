"""Tells waiters that something changed and carries no message: who wakes looks at the world again.

Looking and beginning to wait happen in one synchronous step, so no change can fall between them.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

Line = deque["asyncio.Future[None]"]  # who stands in line for room on one replica


class Wakeup:
    """Any number of waiters; `notify` wakes them all."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self, seconds: float, lines: Iterable[Line] = ()) -> None:
        """Until a notification, a turn in one of `lines`, or the end of `seconds`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        queues = list(lines)
        for line in queues:
            line.append(waiter)
        timer = loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # its turn came as it left: the next one's
                for line in queues:
                    call_next(line)
            raise
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _wake(waiter)


def call_next(line: Line) -> None:
    """Wake the first who still stands in line."""
    while line:
        waiter = line.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
