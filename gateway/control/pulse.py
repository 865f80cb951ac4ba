"""Whether a replica that has given no byte for long still generates: it is asked for one token.

`/health` of a vLLM whose engine hangs stays 200. Silence alone proves nothing (long answers that are no streams), and one
token may stand in a long queue; so a replica whose own count of generated tokens grows is alive, too.
"""

from collections.abc import Callable

from gateway.control.replica_client import ReplicaClient, ReplicaError
from gateway.core.picker import Station

SILENCE = 30.0  # seconds without a byte of what it owes until it is asked
PATIENCE = 30.0  # seconds for one token, and between two questions
REASON = "it answers /health but gives no token: its engine hangs"


class Pulse:
    """Of one replica. `silent` holds until it has given a token."""

    def __init__(self, station: Station, client: ReplicaClient, clock: Callable[[], float], silence: float = SILENCE) -> None:
        self._station, self._client, self._clock, self._silence = station, client, clock, silence
        self._asked_at = float("-inf")
        self._asking = False
        self.silent = False

    def __repr__(self) -> str:
        return f"<Pulse {'silent' if self.silent else 'alive'}>"

    def forget(self) -> None:
        """Another process."""
        self.silent = False

    def is_due(self) -> bool:
        """Whether it should be asked now."""
        now, heard_at = self._clock(), self._station.heard_at
        quiet = heard_at is not None and now - heard_at > self._silence
        if self._asking or not (quiet or self.silent) or not self._station.replica.base_models:
            return False
        return now - self._asked_at > min(PATIENCE, self._silence)

    async def ask(self) -> None:
        """Ask for a token, and note what that says. Never raises."""
        self._asking, self._asked_at = True, self._clock()
        try:
            before = await self._generated()
            answered = await self._client.token(self._station.replica.base_models[0], min(PATIENCE, self._silence))
            after = None if answered else await self._generated()
            self.silent = not answered and (before is None or after is None or after <= before)
        finally:
            self._asking, self._asked_at = False, self._clock()

    async def _generated(self) -> float | None:
        try:
            return (await self._client.vitals()).generated
        except ReplicaError:
            return None
