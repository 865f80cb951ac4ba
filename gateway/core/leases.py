"""Where requests for a model may go, and the counted right to use one of those replicas."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.adapters import Adapter, Revision
from gateway.core.aliases import Alias
from gateway.core.picker import Seat, Station


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests for one model may go now. `label` is safe as a metric label."""

    model: str
    label: str
    seats: tuple[Seat, ...]
    adapter: Adapter | None = None  # what is loaded for it where no replica holds it
    alias: Alias | None = None  # it stands for others: where it leads follows from the session
    aside: bool = False  # a revision that its name does not mean now


class Lease:
    """The counted right to use one replica for one request. Release it exactly when the request is over."""

    __slots__ = ("_ended", "_station", "exact", "label", "model", "replica", "revision", "served_name", "trial", "url")

    def __init__(self, route: Route, model: str, seat: Seat, ended: "Callable[[Lease, Station], None]") -> None:
        station = seat.station
        self._ended = ended
        self.trial: Revision | None = None  # it tries whether this quarantined revision does well now
        self._station: Station | None = station
        self.model, self.label, self.served_name = model, route.label, seat.served_name
        self.replica, self.url = station.replica.id, station.replica.url
        self.exact = seat.revision
        self.revision = seat.revision.digest if seat.revision is not None else None
        station.inflight += 1
        station.taken += 1
        station.by_name[seat.served_name] = station.by_name.get(seat.served_name, 0) + 1

    def answered(self, now: float) -> None:
        """The replica gave a whole answer that is no failure of its own; monotonic seconds."""
        if self.exact is not None and self._station is not None:
            self._station.answered[self.exact] = now

    def release(self) -> None:
        """Idempotent."""
        station, self._station = self._station, None
        if station is None:
            return
        station.inflight -= 1
        left = station.by_name[self.served_name] - 1
        if left:
            station.by_name[self.served_name] = left
        else:
            del station.by_name[self.served_name]
        self._ended(self, station)

    def __repr__(self) -> str:
        return f"<Lease {self.model} on {self.replica}{'' if self._station else ' released'}>"
