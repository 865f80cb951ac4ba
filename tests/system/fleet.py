"""A gateway as operators run it, in this process, in front of simulated replicas: everything speaks over sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gateway.app import Gateway, build
from gateway.core.addresses import Address
from gateway.process import Server, listen
from gateway.settings import Settings
from gateway.settings_kinds import Secret
from replica.sim import Options, Sim
from tests.waiting import until, until_true

FAST: dict[str, Any] = {
    "scan_interval": 0.5,
    "probe_interval": 0.1,
    "drift_interval": 0.5,
    "unload_linger": 0.3,
    "discovery_interval": 0.1,
    "load_wait": 10.0,
    "drain_timeout": 0.2,
}


@dataclass
class Running:
    """A gateway that answers at `url`, and a client of it."""

    gateway: Gateway
    url: str
    client: httpx.AsyncClient

    async def chat(self, model: str | None, **more: Any) -> httpx.Response:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **more}
        if model is not None:
            body["model"] = model
        return await self.client.post("/v1/chat/completions", json=body)

    async def text(self, model: str) -> str:
        answer = await self.chat(model)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content

    async def status(self) -> dict[str, Any]:
        document: dict[str, Any] = (await self.client.get("/admin/status")).json()
        return document

    async def adapter(self, name: str) -> dict[str, Any] | None:
        return next((row for row in (await self.status())["adapters"] if row["name"] == name), None)

    async def state(self, name: str) -> str | None:
        row = await self.adapter(name)
        return row["state"] if row else None

    async def becomes(self, name: str, state: str | None, seconds: float = 8.0) -> None:
        async def holds() -> bool:
            return await self.state(name) == state

        try:
            await until_true(holds, seconds)
        except AssertionError:
            raise AssertionError(f"{name} is {await self.adapter(name)}, not {state}") from None

    async def ready(self, replicas: int = 1) -> None:
        registry = self.gateway.registry
        await until(lambda: sum(r.ready for r in registry.replicas()) == replicas, 8.0, f"{replicas} ready replicas")

    async def metric(self, line: str) -> float:
        """The value of one series, 0 when it is not there."""
        text = (await self.client.get("/metrics")).text
        for row in text.splitlines():
            if row.startswith(line + " "):
                return float(row.rsplit(" ", 1)[1])
        return 0.0


@asynccontextmanager
async def running(adapter_dir: Path, *sims: Sim, wait: bool = True, **settings: Any) -> AsyncIterator[Running]:
    """A gateway in front of the given replicas, once it knows one that is up; `settings` are those of `serve`."""
    chosen = {**FAST, "replica": tuple(Address.parse(sim.url) for sim in sims), "port": 0, **settings}
    if isinstance(chosen.get("replica_api_key"), str):
        chosen["replica_api_key"] = Secret(chosen["replica_api_key"])
    gateway = build(Settings(adapter_dir=adapter_dir, **chosen))
    config = uvicorn.Config(
        gateway.asgi, http=gateway.protocol, lifespan="off", log_config=None, access_log=False, ws="none",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    listening = listen("127.0.0.1", 0)
    server = Server(config, listening)
    control = asyncio.create_task(gateway.run())
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started or serving.done() or control.done())
        if control.done():
            control.result()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            made = Running(gateway, url, client)
            if wait:
                known = gateway.registry
                await until(lambda: known.scanned and any(r.ready or r.refuses_key for r in known.replicas()))
            yield made
    finally:
        gateway.begin_shutdown()
        server.should_exit = True
        await gateway.datapath.drain(0.2)
        await serving
        control.cancel()
        await asyncio.gather(control, return_exceptions=True)


@dataclass
class Sims:
    """Simulated replicas, stopped together."""

    stack: AsyncExitStack
    all: list[Sim] = field(default_factory=list)

    async def start(self, **options: Any) -> Sim:
        sim = await self.stack.enter_async_context(Sim(Options(model_names=options.pop("model_names", ("base-a",)), **options)))
        self.all.append(sim)
        return sim


@asynccontextmanager
async def replicas(count: int = 1, **options: Any) -> AsyncIterator[Sims]:
    async with AsyncExitStack() as stack:
        sims = Sims(stack)
        for _ in range(count):
            await sims.start(**dict(options))
        yield sims
