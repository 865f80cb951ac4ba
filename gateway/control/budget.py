"""How many background loads run at once in the whole fleet.

A load runs inside the engine loop and stalls that replica's streams, so loads that nobody waits for run on at most a
quarter of the fleet at a time. Loads that a request waits for do not ask here.
"""

from collections import deque
from collections.abc import Callable


class LoadBudget:
    """Who gets no turn is woken when one comes free, first come first served."""

    def __init__(self) -> None:
        self.fleet = 1
        self._running = 0
        self._queue: deque[tuple[str, Callable[[], None]]] = deque()

    @property
    def limit(self) -> int:
        return max(1, self.fleet // 4)

    def take(self, replica_id: str, wake: Callable[[], None]) -> bool:
        if self._running < self.limit and (not self._queue or self._queue[0][0] == replica_id):
            self._forget(replica_id)
            self._running += 1
            return True
        if all(queued != replica_id for queued, _ in self._queue):
            self._queue.append((replica_id, wake))
        return False

    def give_back(self) -> None:
        self._running -= 1
        self._wake_first()

    def leave(self, replica_id: str) -> None:
        """The replica has no use for a turn any more."""
        self._forget(replica_id)
        if self._running < self.limit:
            self._wake_first()

    def _forget(self, replica_id: str) -> None:
        self._queue = deque(entry for entry in self._queue if entry[0] != replica_id)

    def _wake_first(self) -> None:
        if self._queue:
            self._queue[0][1]()

    def __repr__(self) -> str:
        return f"<LoadBudget {self._running} of {self.limit} running, {len(self._queue)} queued>"
