"""Public names that stand for one model or for a weighted set of models (a canary).

Which arm a request gets follows from its session by weighted rendezvous hashing: the same session gets the same arm on
every gateway, and another weight moves only as many sessions as it must.
"""

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple


class Arm(NamedTuple):
    """One of the models behind an alias. Weights are relative to each other, above 0."""

    model: str
    weight: float


@dataclass(frozen=True, slots=True)
class Alias:
    name: str
    arms: tuple[Arm, ...]

    def ranked(self, session: bytes) -> list[str]:
        """The models of all arms, the one for this session first."""
        if len(self.arms) == 1:
            return [self.arms[0].model]
        return [arm.model for arm in sorted(self.arms, key=lambda arm: -self._score(arm, session))]

    def _score(self, arm: Arm, session: bytes) -> float:
        digest = blake2b(b"\0".join((self.name.encode(), arm.model.encode(), session)), digest_size=7).digest()
        point = (int.from_bytes(digest) + 1) / (2**56 + 1)  # above 0 and below 1
        return -arm.weight / math.log(point)

    def __str__(self) -> str:
        return ", ".join(arm.model if len(self.arms) == 1 else f"{arm.model} ({arm.weight:g})" for arm in self.arms)
