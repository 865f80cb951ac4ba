"""Tells every waiter that something changed and carries no message: who wakes looks at the world again."""

import asyncio


class Wakeup:
    """One event for any number of waiters. Take `ticket()` before looking, then `await ticket.wait()`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        return self._event

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()
