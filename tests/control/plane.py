"""The whole control plane over an adapter directory and simulated replicas; a test decides which replicas there are."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import httpx

from gateway.control.budget import LoadBudget
from gateway.control.catalogs import CatalogKeeper, PathMap
from gateway.control.controller import Controller
from gateway.control.directory import Directory
from gateway.control.replica_client import ReplicaClient
from gateway.control.snapshots import Snapshots
from gateway.control.surroundings import Policy, Surroundings
from gateway.control.validation import Rules
from gateway.core.adapters import Adapter, Revision
from gateway.core.addresses import Address
from gateway.core.events import EventLog
from gateway.core.picker import pick
from gateway.core.placement import Everywhere
from gateway.core.registry import Lease, Registry
from gateway.core.replica import Phase, Replica, Roots
from gateway.metrics import Metrics
from replica.sim import Sim
from tests.adapters import write_adapter
from tests.control.shelf import OLD
from tests.waiting import until

QUICK = Policy(probe_interval=0.05, drift_interval=0.3, unload_linger=0.3, unhealthy_after=3)


class Located(Protocol):
    @property
    def url(self) -> str: ...


class ChosenSource:
    """The set of replicas is what was chosen last."""

    def __init__(self, sims: Iterable[Located]) -> None:
        self._set = frozenset(Address.parse(sim.url) for sim in sims)
        self._changed = asyncio.Event()

    def choose(self, *sims: Sim) -> None:
        self._set = frozenset(Address.parse(sim.url) for sim in sims)
        self._changed.set()

    async def addresses(self) -> AsyncIterator[frozenset[Address]]:
        while True:
            self._changed.clear()
            yield self._set
            await self._changed.wait()


class Plane:
    def __init__(self, root: Path, *sims: Located, preload: int | None = None, snapshots: str = "link", **policy: Any) -> None:
        self.root = root
        self.closing = False
        self.registry, self.metrics, self.source = Registry(), Metrics("test"), ChosenSource(sims)
        self.events = EventLog(time.time, lambda event: None)
        self.budget = LoadBudget()
        store = Snapshots(root, root / ".lora-gateway", snapshots, 3600.0) if snapshots != "off" else None
        directory = Directory(root, depth=2, rules=Rules(), snapshots=store, scan_interval=0.1, on_scan=self._count)
        keeper = CatalogKeeper(
            self.registry, directory, 0.1, store, PathMap(root, str(root)), self.events, self.metrics, time.monotonic
        )
        around = Surroundings(
            registry=self.registry,
            roots=Roots(str(root), f"{root}/.lora-gateway"),
            files=keeper,
            placement=Everywhere(preload),
            budget=self.budget,
            events=self.events,
            counters=self.metrics,
            policy=replace(QUICK, **policy),
            clock=time.monotonic,
            wall=time.time,
            closing=lambda: self.closing,
        )
        self.controller = Controller(around, keeper, [self.source], self._client, self.metrics)

    def _count(self, seconds: float) -> None:
        self.registry.scans += 1

    def _client(self, address: Address) -> ReplicaClient:
        return ReplicaClient(
            address.url, api_key=None, connect_timeout=1.0, probe_timeout=0.5, load_timeout=self.load_timeout, shown={}
        )

    load_timeout = 5.0

    def put(self, name: str, seed: int = 0, **more: Any) -> Path:
        return write_adapter(self.root / name, seed=seed, age=OLD, **more)

    async def replace(self, name: str, seed: int) -> str:
        """Other weights under an old name; the new digest once the catalog has it."""
        old = self.adapter(name).digest
        self.put(name, seed)
        await until(lambda: self.adapter(name).digest != old)
        return self.adapter(name).digest

    # what is known

    def replica(self, sim: Located) -> Replica:
        return self.registry.stations[Address.parse(sim.url).id].replica

    def phase(self, sim: Located) -> Phase:
        return self.replica(sim).phase

    def adapter(self, name: str) -> Adapter:
        return self.registry.catalog.adapters[name]

    def current(self, name: str) -> Revision | None:
        adapter = self.registry.catalog.adapters.get(name)
        return adapter.revision if adapter else None

    def holds(self, sim: Sim, name: str) -> bool:
        """Whether the gateway believes that the replica holds the current revision."""
        return self.current(name) in self.replica(sim).held

    def kinds(self, kind: str) -> list[str]:
        return [event.reason or "" for event in self.events.since(0) if event.kind == kind]

    # until

    async def ready(self, *sims: Sim, seconds: float = 5.0) -> None:
        stations = self.registry.stations
        await until(
            lambda: all(Address.parse(sim.url).id in stations and self.replica(sim).ready for sim in sims), seconds, "ready"
        )

    async def spread(self, name: str, *sims: Sim, seconds: float = 5.0) -> None:
        await until(lambda: all(self.holds(sim, name) for sim in sims), seconds, f"{name} everywhere")

    # what the data path does

    def lease(self, model: str) -> Lease:
        route = self.registry.route(model)
        seat = pick(route.seats, self.registry.turn) if route is not None else None
        assert route is not None and seat is not None, f"nobody serves {model}"
        return self.registry.lease(route, model, seat)

    def demand(self, name: str) -> Revision:
        """A request begins to wait for this adapter."""
        adapter = self.adapter(name)
        self.registry.demand[adapter.revision] += 1
        self.controller.want(adapter)
        return adapter.revision


def names(sim: Sim, name: str | None = None) -> list[str]:
    """The served names of the load calls, in their order."""
    served = [call.body["lora_name"] for call in sim.journal.loads()]
    return [n for n in served if name is None or n.split("@")[0] == name]


def unloaded(sim: Sim) -> list[str]:
    return [call.body["lora_name"] for call in sim.journal.unloads()]


@asynccontextmanager
async def running(plane: Plane, *, ready: bool = True) -> AsyncIterator[Plane]:
    """The control plane at work; fails when it ends by itself."""
    control = asyncio.create_task(plane.controller.run())
    try:
        await until(lambda: control.done() or (plane.registry.scanned and bool(plane.registry.stations)))
        if ready:
            await until(lambda: control.done() or all(r.ready for r in plane.registry.replicas()), what="all ready")
        yield plane
        assert not control.done()
    finally:
        control.cancel()
        await asyncio.gather(control, return_exceptions=True)


@asynccontextmanager
async def sims(count: int, **options: Any) -> AsyncIterator[list[Sim]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Sim(**{"model_names": ("base-a",), **options})) for _ in range(count)]


@asynccontextmanager
async def foreign_stream(sim: Sim, model: str) -> AsyncIterator[None]:
    """A long request that did not come through this gateway; it slows the replica's tokens down for good."""
    sim.inject(token_seconds=0.05)
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10_000, "stream": True}
    async with (
        httpx.AsyncClient(base_url=sim.url, timeout=10, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        await until(lambda: sim.running > 0)
        yield
