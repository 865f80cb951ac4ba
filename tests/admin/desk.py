"""The operations endpoints on a port of their own, over a registry that a test changes as the control loop would."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import uvicorn

from gateway.admin.access import Access
from gateway.admin.endpoints import Endpoints
from gateway.admin.status import About, Status
from gateway.core.adapters import Adapter, Catalog, Rejected, RejectedState
from gateway.core.events import EventLog
from gateway.core.registry import Registry
from gateway.core.replica import Failure, FailureKind, Phase, Replica
from gateway.metrics import Metrics
from tests.waiting import until

LOAD_FAILURE = "replica answered 400: LoRA rank 128 is greater than max_lora_rank 16."


@dataclass(slots=True)
class Orders:
    """Takes an operator's orders in place of the control loop, and keeps them."""

    registry: Registry
    taken: list[tuple[str, ...]] = field(default_factory=list)

    async def scan(self) -> None:
        self.taken.append(("scan",))

    async def refresh(self, name: str) -> None:
        self.taken.append(("refresh", name))

    def load(self, adapter: str) -> bool:
        return self._take("load", adapter, adapter in self.registry.catalog.adapters)

    def retry(self, adapter: str) -> bool:
        return self._take("retry", adapter, adapter in self.registry.catalog.adapters)

    async def pin(self, adapter: str, digest: str | None) -> str | None:
        found = self.registry.catalog.adapters.get(adapter)
        if not self._take(f"pin {digest}", adapter, found is not None) or found is None:
            return None
        return digest or found.digest

    async def unpin(self, adapter: str) -> bool:
        return self._take("unpin", adapter, adapter in self.registry.catalog.adapters)

    def drain(self, replica: str, on: bool) -> bool:
        return self._take("drain" if on else "undrain", replica, replica in self.registry.stations)

    def _take(self, order: str, name: str, known: bool) -> bool:
        if known:
            self.taken.append((order, name))
        return known


@dataclass(slots=True)
class Desk:
    """A gateway's operations side without its planes. `url` is set while it is served."""

    key: str | None = None
    loopback_only: bool = True
    closing: bool = False
    snapshots_reason: str = ""
    registry: Registry = field(default_factory=Registry)
    started_at: float = field(default_factory=time.time)
    url: str = ""
    orders: Orders = field(init=False)
    events: EventLog = field(init=False)
    status: Status = field(init=False)

    def __post_init__(self) -> None:
        self.orders = Orders(self.registry)
        self.events = EventLog(time.time, lambda event: None)
        about = About(
            version="1.2.3",
            started_at=self.started_at,
            placement="everywhere",
            snapshots="link",
            watch_mode=lambda: "events",
            snapshots_reason=lambda: self.snapshots_reason,
            shutting_down=lambda: self.closing,
        )
        self.status = Status(self.registry, about)

    def endpoints(self) -> Endpoints:
        metrics = Metrics("1.2.3")
        metrics.watch(self.registry, lambda: "events", time.time)
        access = Access(self.key, self.loopback_only)
        return Endpoints(self.registry, self.status, metrics, self.events, self.orders, access, "1.2.3")

    # what the control loop would do

    def join(self, *replicas: Replica) -> None:
        for record in replicas:
            self.registry.join(Replica(record.id, record.url))
            self.publish(record)
            self.registry.stations[record.id].last_seen = time.time()

    def publish(self, record: Replica) -> None:
        self.registry.publish(record, time.monotonic())

    def put(self, *adapters: Adapter, rejected: tuple[Rejected, ...] = (), trouble: str = "") -> None:
        """The directory holds these now."""
        named = {adapter.name: adapter for adapter in adapters}
        self.registry.replace_catalog(Catalog(named, {r.name: r for r in rejected}, trouble), time.monotonic())

    def replica(self, number: int) -> Replica:
        return self.registry.stations[f"r{number}:8000"].replica

    def load(self, number: int, adapter: Adapter) -> None:
        self.publish(self.replica(number).loaded(adapter.revision, adapter.name))
        self.events.add("load", adapter=adapter.name, revision=adapter.digest, replica=f"r{number}:8000", seconds=0.25)

    def fail(self, number: int, adapter: Adapter, reason: str = LOAD_FAILURE) -> None:
        failure = Failure(FailureKind.REJECTED, reason, 0.0, float("inf"))
        self.publish(self.replica(number).failing(adapter.revision, failure))
        self.events.add("load_failed", adapter=adapter.name, replica=f"r{number}:8000", reason=reason)

    def die(self, number: int, reason: str = "connection refused") -> None:
        record = replace(self.replica(number), phase=Phase.DOWN, reason=reason)
        self.publish(record)
        self.events.add("phase", replica=record.id, reason=f"ready -> down: {reason}")

    # serving

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator["Desk"]:
        config = uvicorn.Config(self.endpoints().app(), port=port, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        server = _Server(config)
        running = asyncio.create_task(server.serve())
        try:
            await until(lambda: server.started, what="the endpoints are served")
            self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            yield self
        finally:
            self.closing = True  # ends the event streams
            server.told_to_stop.set()
            await running


class _Server(uvicorn.Server):
    """uvicorn's, without the signals of a process and without a tick to wait for."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told_to_stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # the Date header
        await self.told_to_stop.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def broken(name: str, state: RejectedState, reason: str) -> Rejected:
    return Rejected(name, f"/adapters/{name}", state, reason, since=1_700_000_000.0)
