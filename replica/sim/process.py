"""What one start of a simulated replica consists of, and which path gets which answer. A restart makes a new one."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from replica.sim.desk import Desk
from replica.sim.engine import Engine
from replica.sim.errors import Refused, detail, internal, json_reply
from replica.sim.http import Cut, Reply, Request, Stream
from replica.sim.journal import CONTROL_PATHS, Call, Journal
from replica.sim.metrics import ReplicaMetrics
from replica.sim.names import Names
from replica.sim.options import Faults, Options
from replica.sim.routes import InferenceRoutes, authorised, spoilt, unauthorised

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Process:
    """`faults` gives those of the moment, `spoil` is told when one hit a call, `die` how the process is to end."""

    def __init__(
        self,
        options: Options,
        journal: Journal,
        *,
        faults: Callable[[], Faults],
        spoil: Callable[[], None],
        die: Callable[[str], None],
        engine_died: Callable[[], None],
    ) -> None:
        self.options = options
        self.started_at = round(time.time(), 2)
        self.healthy = False
        self.engine = Engine(options, faults=faults, died=engine_died)
        self.names = Names(options, self.engine)
        self.desk = Desk(options, self.engine, self.names, faults=faults)
        self.loads: set[asyncio.Task[Reply]] = set()
        self._journal = journal
        self._faults = faults
        self._spoil = spoil
        self._die = die
        self._metrics = ReplicaMetrics(options, self.engine, started_at=self.started_at)
        self._inference = InferenceRoutes(self.desk, faults=faults, spoil=spoil, die=die, note=self._metrics.note)

    def __repr__(self) -> str:
        return f"<Process healthy={self.healthy} {self.desk!r}>"

    async def answer(self, request: Request) -> Reply | Stream:
        """Raises Cut."""
        call = self._journal.open(request)
        try:
            answer = await self._route(request, call)
        except Refused as refused:
            answer = refused.reply
        except Cut:
            call.end(cut=True)
            raise
        except asyncio.CancelledError:
            call.end(left=True)
            raise
        if isinstance(answer, Reply):
            call.end(status=answer.status)
            return answer
        call.status = 200
        return Stream(_followed(answer.chunks, call), answer.content_type, answer.headers)

    async def _route(self, request: Request, call: Call) -> Reply | Stream:
        if not authorised(request, self.options.api_key):
            raise unauthorised()
        if self._inference.known(request.path):
            return await self._inference.answer(request, call)
        if request.path in CONTROL_PATHS and self.options.runtime_lora:
            if request.method != "POST":
                raise detail(405, "Method Not Allowed")
            # its own task: a load whose client gave up still takes effect
            task = asyncio.get_running_loop().create_task(self._lora(request, call))
            self.loads.add(task)
            task.add_done_callback(self.loads.discard)
            return await asyncio.shield(task)
        return self._plain(request)

    def _plain(self, request: Request) -> Reply:
        pages: dict[str, Callable[[], Reply]] = {
            "/health": self._health,
            "/ping": self._health,
            "/version": lambda: json_reply({"version": "0.32.0"}),
            "/load": lambda: json_reply({"server_load": 0}),
            "/metrics": lambda: Reply(200, self._metrics.text(), _METRICS),
            "/v1/models": self._models,
        }
        if request.path not in pages:
            raise detail(404, "Not Found")
        if request.method != "GET" and request.path != "/ping":
            raise detail(405, "Method Not Allowed")
        return pages[request.path]()

    async def _lora(self, request: Request, call: Call) -> Reply:
        name = call.body.get("lora_name") if isinstance(call.body, dict) else None
        faults = self._faults() if self._faults().concerns(str(name)) else Faults()
        try:
            if request.path == CONTROL_PATHS[0]:
                self._before_load(faults)
                return await self.names.load(request)
            if faults.unload_status is not None:
                self._spoil()
                raise spoilt(faults.unload_status, None)
            return await self.names.unload(request)
        except Refused as refused:
            return refused.reply

    def _before_load(self, faults: Faults) -> None:
        if faults.die_on_load is not None:
            self._spoil()
            self._die(faults.die_on_load)
        if faults.load_status is not None:
            self._spoil()
            raise spoilt(faults.load_status, faults.load_body)
        if not self.healthy and not self.engine.dead:
            raise spoilt(503, None)  # still starting
        if self.desk.draining:
            raise internal("Server shutting down")

    def _health(self) -> Reply:
        alive = self.healthy and not self.engine.dead
        return Reply(self._faults().health_status or (200 if alive else 503), b"", None)

    def _models(self) -> Reply:
        status = self._faults().models_status
        if status is not None:
            self._spoil()
            raise spoilt(status, None)
        return json_reply(self.names.cards(self._faults().hide_models))


async def _followed(chunks: AsyncGenerator[bytes, None], call: Call) -> AsyncGenerator[bytes, None]:
    """Books how the stream ended."""
    left = True
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
        left = False
    except Cut:
        left = False
        call.cut = True
        raise
    finally:
        call.end(left=left)
