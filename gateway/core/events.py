"""What happened: every load, unload, drift repair and phase change, kept for a while and told to who listens."""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gateway.core.wakeup import Wakeup


@dataclass(frozen=True, slots=True)
class Event:
    """`at` is wall-clock seconds, `seconds` how long the thing took, `number` counts from 1."""

    number: int
    at: float
    kind: str
    adapter: str | None = None
    revision: str | None = None
    replica: str | None = None
    reason: str | None = None
    seconds: float | None = None

    def document(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


class EventLog:
    """The last `size` events. `on_event` is called with each (the log line)."""

    def __init__(self, clock: Callable[[], float], on_event: Callable[[Event], None], size: int = 1000) -> None:
        self._clock, self._on_event = clock, on_event
        self._events: deque[Event] = deque(maxlen=size)
        self._number = 0
        self.added = Wakeup()

    def add(self, kind: str, **facts: Any) -> None:
        self._number += 1
        event = Event(self._number, self._clock(), kind, **facts)
        self._events.append(event)
        self._on_event(event)
        self.added.notify()

    def since(self, number: int) -> list[Event]:
        """Events after `number`, oldest first."""
        return [event for event in self._events if event.number > number]
