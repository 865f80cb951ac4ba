"""Which of the replicas that hold a model gets the next request: the one with the fewest of ours in flight."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from gateway.core.adapters import Revision
from gateway.core.replica import Replica
from gateway.core.wakeup import Line


@dataclass(slots=True, eq=False)
class Station:
    """A replica and what changes with every request on it. Counts are this gateway's own."""

    replica: Replica
    inflight: int = 0
    taken: int = 0  # requests that were ever sent here, replays too
    by_name: dict[str, int] = field(default_factory=dict)  # in flight, by served name
    line: Line = field(default_factory=deque)  # requests that wait for room here
    queued: int = 0  # how many they are: nobody overtakes them
    answered: dict[Revision, float] = field(default_factory=dict)  # when the present process last gave a whole answer
    shown: dict[str, str] = field(default_factory=dict)  # adapter name -> digest of the newest that clients could meet here
    heard_at: float | None = None  # monotonic: when it last gave a byte of what it owes; None while it owes nothing
    last_seen: float | None = None  # when it last answered a probe, wall-clock seconds; its reconciler writes it


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """A place for a request: a replica that serves the model, and the name it has it under there."""

    station: Station
    served_name: str
    revision: Revision | None = None  # what it has there, None for a base model or a static LoRA


def pick(seats: Sequence[Seat], turn: int, *, limit: int = 0, avoid: Collection[str] = ()) -> Seat | None:
    """The least busy seat below `limit` requests (0 = none) that is not to be avoided; `turn` rotates among equals."""
    best: Seat | None = None
    least = limit or 1 << 60
    count = len(seats)
    for index in range(count):
        seat = seats[(turn + index) % count]
        inflight = seat.station.inflight
        if inflight < least and seat.station.replica.id not in avoid:
            best, least = seat, inflight
            if inflight == 0:
                break
    return best
