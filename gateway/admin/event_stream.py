"""The event log as Server-Sent Events, from a number on and then live."""

from collections.abc import AsyncGenerator, Callable

import msgspec

from gateway.core.events import Event, EventLog

KEEP_ALIVE = 15.0  # seconds between comments on a quiet stream
LOOK = 1.0  # seconds within which the stream notices that the gateway ends


async def event_stream(events: EventLog, last_id: str, closing: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """What came after `last_id` (a `Last-Event-ID`) and what comes; ends when the gateway ends, so as not to hold it.

    A number that this log has not reached is from before a restart: then everything is told.
    """
    number = _known(events, last_id)
    yield b": events of the gateway\n\n"
    quiet = 0.0
    while not closing():
        news = events.since(number)
        if news:
            number, quiet = news[-1].number, 0.0
            yield b"".join(map(_frame, news))
            continue  # more may have come while that was sent
        await events.added.wait(LOOK)
        quiet += LOOK
        if quiet >= KEEP_ALIVE:
            quiet = 0.0
            yield b": still here\n\n"


def _known(events: EventLog, last_id: str) -> int:
    number = int(last_id) if last_id.isascii() and last_id.isdigit() and len(last_id) < 19 else 0
    newest = max((event.number for event in events.since(0)), default=0)
    return number if number <= newest else 0


def _frame(event: Event) -> bytes:
    text = msgspec.json.encode({key: _clean(value) for key, value in event.document().items()})
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, event.kind.encode(), text)


def _clean(value: object) -> object:
    """Text of others may hold half of a surrogate pair, which is no UTF-8."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
