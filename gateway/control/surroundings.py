"""What all reconcilers share, and what they ask of the rest: settings, the registry, files, counters, clocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.control.budget import LoadBudget
from gateway.core.adapters import Adapter
from gateway.core.events import EventLog
from gateway.core.placement import Everywhere
from gateway.core.registry import Registry
from gateway.core.replica import Roots


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of the control loop, in seconds."""

    probe_interval: float = 2.0
    drift_interval: float = 10.0
    unload_linger: float = 60.0
    unhealthy_after: int = 3
    healthy_after: int = 1
    load_concurrency: int = 1
    silence: float = 30.0  # without a byte of what a replica owes, until it is asked for a token


class Files(Protocol):
    """What a load needs of the directory."""

    async def before_load(self, adapter: Adapter) -> None: ...
    async def unchanged(self, adapter: Adapter) -> bool: ...
    async def rescan(self) -> None: ...
    def replica_path(self, adapter: Adapter) -> str: ...


class Counters(Protocol):
    def loaded(self, replica: str, outcome: str, seconds: float) -> None: ...
    def unloaded(self, replica: str, outcome: str) -> None: ...
    def drifted(self, replica: str, count: int) -> None: ...
    def quarantined(self, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all reconcilers share. Clocks in seconds."""

    registry: Registry
    roots: Roots
    files: Files
    placement: Everywhere
    budget: LoadBudget
    events: EventLog
    counters: Counters
    policy: Policy
    clock: Callable[[], float]  # monotonic
    wall: Callable[[], float]
    closing: Callable[[], bool]  # while shutting down no load starts
