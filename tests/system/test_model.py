"""The lifecycle at random: adapters are added, replaced, broken, refused, pinned and removed while replicas restart, join,
leave, slow down and fail. Whatever happens: no answer by a wrong revision, no served name loaded twice at once or while a
request with it runs, no engine death that files caused, and at rest every replica holds exactly what it should.

A whole gateway and simulated replicas that keep two adapters in memory, so that the engines read files again all the
time. `LIFECYCLE_SEQUENCES=1000` runs as many sequences (about two seconds each); `make test` runs a few.
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import booleans, integers, sampled_from

from gateway.control.validation import Rules, inspect
from replica.sim import Options, Sim
from tests.adapters import config, lora_tensors, safetensors_bytes, write_adapter, write_file
from tests.system.fleet import Running, running
from tests.waiting import until, until_true

SEQUENCES = int(os.environ.get("LIFECYCLE_SEQUENCES", "12"))
NAMES, SEEDS = ("alpha", "beta", "team/gamma"), range(4)
STAYS = "stays"
OLD = 5.0  # seconds: such files are believed at the first look
LONG = "hello " * 60  # longer than two blocks of the prefix cache
PATIENCE = 15.0


@dataclass
class Folder:
    """What lies in the directory under one name, and what should answer for it."""

    there: bool = False
    newest: str | None = None  # the last whole revision
    refused: bool = False  # the replicas refuse the newest
    former: str | None = None  # the last good one before refused ones
    broken: int = 0  # status of a request when nothing good is there
    pinned: str | None = None
    past: list[str] = field(default_factory=list)  # every good revision this name ever had

    @property
    def answering(self) -> str | None:
        if not self.there:
            return None
        if self.pinned is not None:
            return self.pinned
        return self.former if self.refused else self.newest


class Lifecycle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.root = Path(tempfile.mkdtemp(prefix="lifecycle-"))
        self.adapters = self.root / "adapters"
        self.adapters.mkdir()
        self.folders = {name: Folder() for name in NAMES}
        self.sims: list[Sim] = []
        self.texts: dict[str, dict[str, str]] = {}  # digest -> prompt -> text
        self.serial = 0
        self.kills = 0  # two, in the middle of loads, may look like an adapter that kills
        self.disturbed = False  # loads fail, or a replica was away while clients asked
        self.clients: list[asyncio.Task[None]] = []
        self.gateway: Running

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    # the world

    @initialize(mode=sampled_from(["link", "copy"]), replicas=integers(1, 3))
    def begin(self, mode: str, replicas: int) -> None:
        self.do(self._begin(mode, replicas))

    async def _begin(self, mode: str, replicas: int) -> None:
        self.file = self.root / "replicas.yaml"
        write_adapter(self.adapters / STAYS, seed=9, age=OLD)  # a directory that is empty all at once proves nothing
        for _ in range(replicas):
            await self._join()
        self.gateway = await self.stack.enter_async_context(
            running(
                self.adapters,
                replica=(),
                replicas_file=self.file,
                snapshots=mode,
                scan_interval=0.2,
                unload_linger=0.2,
                drift_interval=0.3,
                guard_interval=0.1,
            )
        )

    async def _join(self) -> None:
        options = Options(model_names=("base-a",), max_lora_rank=16, max_cpu_loras=2, adapter_dirs=(self.adapters,))
        self.sims.append(await self.stack.enter_async_context(Sim(options)))
        self._tell()

    def _tell(self) -> None:
        write_file(self.file, "\n".join(f"- {sim.url}" for sim in self.sims).encode())

    def _digest(self, name: str) -> str:
        return inspect(self.adapters / name, Rules()).digest

    async def _learn(self, seed: int) -> str:
        """What the revision of this seed answers, from a replica of its own, before a client can meet it; its digest."""
        copy = write_adapter(self.root / f"copy-{seed}", seed=seed)
        digest = inspect(copy, Rules()).digest
        if digest in self.texts:
            return digest
        texts = {}
        async with Sim(model_names=("base-a",)) as sim, httpx.AsyncClient(base_url=sim.url, trust_env=False) as client:
            body = {"lora_name": "x", "lora_path": str(copy)}
            assert (await client.post("/v1/load_lora_adapter", json=body)).status_code == 200
            for prompt in ("hi", LONG):
                answer = await client.post("/v1/chat/completions", json=_body("x", prompt))
                texts[prompt] = answer.json()["choices"][0]["message"]["content"]
        self.texts[digest] = texts
        return digest

    async def _seen(self, name: str, *, newest: str | None = None, code: str | None = None) -> None:
        """Until the gateway has noticed what was done to a folder; loads may come later."""
        registry = self.gateway.gateway.registry
        assert (await self.gateway.client.post("/admin/scan")).status_code == 200

        def noticed() -> bool:
            catalog = registry.catalog
            adapter, rejected = catalog.adapters.get(name), catalog.rejected.get(name)
            if newest is not None:
                return (adapter is not None and adapter.digest == newest) or any(
                    revision.name == name and revision.digest == newest for revision in catalog.shelf
                )
            if code is not None:
                return rejected is not None and rejected.code == code
            return adapter is None and rejected is None

        await until(noticed, PATIENCE, f"{name} is noticed")

    # what happens to the directory

    @rule(name=sampled_from(NAMES), seed=sampled_from(SEEDS))
    def put(self, name: str, seed: int) -> None:
        self.do(self._put(name, seed))

    async def _put(self, name: str, seed: int) -> None:
        digest = await self._learn(seed)
        write_adapter(self.adapters / name, seed=seed, age=OLD)
        folder = self.folders[name]
        await self._seen(name, newest=digest)
        folder.there, folder.newest, folder.refused, folder.former = True, digest, False, None
        folder.past = [*(d for d in folder.past if d != digest), digest]

    @precondition(lambda self: any(f.there and f.newest for f in self.folders.values()))
    @rule(name=sampled_from(NAMES))
    def put_what_replicas_refuse(self, name: str) -> None:
        self.do(self._refuse(name))

    async def _refuse(self, name: str) -> None:
        folder = self.folders[name]
        self.serial += 1
        good = folder.former if folder.refused else (folder.newest if folder.there else None)
        write_adapter(self.adapters / name, seed=100 + self.serial, rank=64, age=OLD)
        digest = self._digest(name)
        await self._seen(name, newest=digest)
        folder.there, folder.newest, folder.refused, folder.former, folder.broken = True, digest, True, good, 400

    @rule(name=sampled_from(NAMES), half=booleans())
    def spoil(self, name: str, half: bool) -> None:
        self.do(self._spoil(name, half))

    async def _spoil(self, name: str, half: bool) -> None:
        path = self.adapters / name
        path.mkdir(parents=True, exist_ok=True)
        if half:
            write_adapter(path, seed=50, age=OLD) if not (path / "adapter_config.json").exists() else None
            whole = safetensors_bytes(lora_tensors(seed=51))
            write_file(path / "adapter_config.json", _good_config(), age=OLD)
            write_file(path / "adapter_model.safetensors", whole[: len(whole) // 2], age=OLD)
        else:
            write_file(path / "adapter_config.json", b"[]", age=OLD)
        await self._seen(name, code="weights_short" if half else "config")
        folder = self.folders[name]
        if not folder.there:
            folder.newest, folder.refused, folder.former = None, False, None
        if not (folder.there and folder.refused):  # else what the replicas say of the revision before still holds
            folder.broken = 503 if half else 400
        folder.there = True

    @rule(name=sampled_from(NAMES))
    def remove(self, name: str) -> None:
        self.do(self._remove(name))

    async def _remove(self, name: str) -> None:
        shutil.rmtree(self.adapters / name, ignore_errors=True)
        await self._seen(name)
        folder = self.folders[name]
        folder.there, folder.newest, folder.refused, folder.former = False, None, False, None

    @rule(name=sampled_from(NAMES), which=integers(0, 3))
    def pin(self, name: str, which: int) -> None:
        folder = self.folders[name]
        if folder.there and folder.past:
            digest = folder.past[which % len(folder.past)]
            answer = self.do(self.gateway.client.post(f"/admin/adapters/{name}/pin", json={"revision": digest}))
            assert answer.status_code == 200, answer.text
            folder.pinned = digest

    @rule(name=sampled_from(NAMES))
    def unpin(self, name: str) -> None:
        folder = self.folders[name]
        if folder.pinned is not None:
            answer = self.do(self.gateway.client.post(f"/admin/adapters/{name}/unpin"))
            assert answer.status_code == 200, answer.text
            folder.pinned = None

    # what happens to the replicas

    @rule(which=integers(0, 5))
    def restart(self, which: int) -> None:
        self.do(self._restart(self.sims[which % len(self.sims)]))

    async def _restart(self, sim: Sim) -> None:
        self.disturbed = True
        self.kills += 1
        sim.kill()
        await sim.start()

    @precondition(lambda self: len(self.sims) < 3)
    @rule()
    def join(self) -> None:
        self.do(self._join())

    @precondition(lambda self: len(self.sims) > 1)
    @rule(which=integers(0, 5))
    def leave(self, which: int) -> None:
        self.do(self._leave(self.sims.pop(which % len(self.sims))))

    async def _leave(self, sim: Sim) -> None:
        """Out of the list first; the process goes when the gateway has noticed."""
        self._tell()
        stations = self.gateway.gateway.registry.stations
        await until(lambda: len(stations) == len(self.sims), PATIENCE, "the replica has left")
        self._check_loads(sim)
        await sim.stop()

    @rule(which=integers(0, 5), slow=booleans())
    def trouble(self, which: int, slow: bool) -> None:
        sim = self.sims[which % len(self.sims)]
        if slow:
            sim.inject(load_seconds=0.15)
        else:
            self.disturbed = True
            sim.inject(load_status=503, times=2)

    # what clients do

    @rule(name=sampled_from(NAMES), long=booleans(), burst=sampled_from([1, 1, 4]))
    def ask(self, name: str, long: bool, burst: int) -> None:
        self.do(self._ask(name, LONG if long else "hi", burst))

    async def _ask(self, name: str, prompt: str, burst: int) -> None:
        await asyncio.gather(*(self._ask_once(name, prompt) for _ in range(burst)))

    async def _ask_once(self, name: str, prompt: str) -> None:
        folder = self.folders[name]
        nobody = not any(replica.ready for replica in self.gateway.gateway.registry.replicas())
        answer = await self.gateway.client.post("/v1/chat/completions", json=_body(name, prompt))
        if nobody and answer.status_code == 503:
            return
        if answer.status_code == 200:
            self._check_answer(name, answer, prompt)
            assert folder.answering is not None or folder.refused or folder.broken, f"{name} is gone"
        elif not folder.there:
            assert answer.status_code == 404, answer.text
        else:
            allowed = {folder.broken} if folder.answering is None else set()
            if self.kills >= 2 and "adapter_quarantined" in answer.text:
                return
            assert answer.status_code in allowed or (self.disturbed and answer.status_code in (502, 503)), answer.text

    @rule(name=sampled_from(NAMES), which=integers(0, 3))
    def ask_for_a_revision(self, name: str, which: int) -> None:
        folder = self.folders[name]
        if folder.there and folder.answering and folder.past:
            self.do(self._ask_for(name, folder.past[which % len(folder.past)]))

    async def _ask_for(self, name: str, digest: str) -> None:
        answer = await self.gateway.client.post("/v1/chat/completions", json=_body(f"{name}@{digest}", LONG))
        if answer.status_code == 200:
            assert answer.headers["x-lora-gateway-revision"] == digest
            self._check_answer(name, answer, LONG)
        elif self.kills < 2 or "adapter_quarantined" not in answer.text:
            assert self.disturbed and answer.status_code in (502, 503), answer.text

    @precondition(lambda self: len(self.clients) < 3)
    @rule(name=sampled_from(NAMES), long=booleans())
    def begin_to_ask_all_the_time(self, name: str, long: bool) -> None:
        self.clients.append(self.do(self._start_client(name, LONG if long else "hi")))

    async def _start_client(self, name: str, prompt: str) -> "asyncio.Task[None]":
        async def client() -> None:
            while True:
                answer = await self.gateway.client.post("/v1/chat/completions", json=_body(name, prompt))
                if answer.status_code == 200:
                    self._check_answer(name, answer, prompt)
                else:
                    assert answer.status_code in (400, 404, 502, 503), answer.text
                await asyncio.sleep(0.02)

        return asyncio.create_task(client())

    # what must hold

    def _check_answer(self, name: str, answer: httpx.Response, prompt: str) -> None:
        digest, document = answer.headers["x-lora-gateway-revision"], answer.json()
        assert document["model"].partition("@")[0] == name
        text = document["choices"][0]["message"]["content"]
        assert text == self.texts[digest][prompt], f"{name} told {digest}, and answered as another revision"

    def _check_loads(self, sim: Sim) -> None:
        loads = sim.journal.loads()
        for number, load in enumerate(loads):
            name = load.body["lora_name"]
            for other in loads[number + 1 :]:
                overlapping = load.ended_at is None or other.at < load.ended_at
                assert other.body["lora_name"] != name or not overlapping, f"{name} is loaded twice at once"
            if load.status == 200:
                for call in sim.journal.inference(name):
                    runs = call.at < load.at and (call.ended_at is None or call.ended_at > (load.ended_at or load.at))
                    assert not runs or call.cut, f"{name} is loaded while a request with it runs"

    @invariant()
    def no_engine_died(self) -> None:
        for sim in self.sims:
            assert not sim.exited.is_set() and sim.healthy, "an engine died of what files did"

    @invariant()
    def no_client_met_a_wrong_answer(self) -> None:
        for client in self.clients:
            if client.done():
                client.result()

    def teardown(self) -> None:
        try:
            if self.sims:
                self.do(self._come_to_rest())
        finally:
            self.do(self._end())
            self.runner.close()
            shutil.rmtree(self.root, ignore_errors=True)

    async def _end(self) -> None:
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)
        await self.stack.aclose()

    async def _come_to_rest(self) -> None:
        for client in self.clients:
            if not client.done():
                client.cancel()
        for result in await asyncio.gather(*self.clients, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
        self.clients = []
        for sim in self.sims:
            sim.heal()
        wanted = {f"{name}@{f.answering}" for name, f in self.folders.items() if f.answering is not None}
        wanted.add(f"{STAYS}@{self._digest(STAYS)}")

        async def rests() -> bool:
            await self._end_quarantines()
            return all(_held(sim) == wanted for sim in self.sims)

        await until_true(rests, PATIENCE, f"{wanted} everywhere")
        self.disturbed = False
        for name, folder in self.folders.items():
            for prompt in ("hi", LONG):
                await self._rests(name, folder, prompt)
        for sim in self.sims:
            self._check_loads(sim)

    async def _end_quarantines(self) -> None:
        """An operator's word, where replicas that were killed put an adapter under suspicion."""
        quarantined = [row["name"] for row in (await self.gateway.status())["adapters"] if row["state"] == "quarantined"]
        assert not quarantined or self.kills >= 2
        for name in quarantined:
            assert (await self.gateway.client.post(f"/admin/adapters/{name}/retry")).status_code == 200

    async def _rests(self, name: str, folder: Folder, prompt: str) -> None:
        for _ in self.sims:
            answer = await self.gateway.client.post("/v1/chat/completions", json=_body(name, prompt))
            if folder.answering is None:
                assert answer.status_code == (folder.broken if folder.there else 404), answer.text
                continue
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-lora-gateway-revision"] == folder.answering
            self._check_answer(name, answer, prompt)


def _held(sim: Sim) -> set[str]:
    return {path.partition("/.lora-gateway/")[2] for path in sim.loaded.values()}


def _body(model: str, prompt: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 8}


def _good_config() -> bytes:
    return json.dumps(config()).encode()


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=SEQUENCES,
    stateful_step_count=14,
    deadline=None,
    derandomize="LIFECYCLE_SEQUENCES" not in os.environ,
    suppress_health_check=list(HealthCheck),
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink) if "LIFECYCLE_SHRINK" in os.environ else (Phase.generate,),
)
