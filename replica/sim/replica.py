"""One simulated replica: a port, and the life of the processes that serve it one after another.

`Sim` is what tests use: `async with Sim(max_loras=4) as sim:` listens on a port of the system's choice, `sim.kill()`
ends it as SIGKILL does (every connection reset, port closed), `await sim.start()` brings it back on the same port with
nothing loaded. When the simulated process dies only its port closes; the Python process stays.
"""

import asyncio
import dataclasses
import socket
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from replica.sim.http import HttpServer, Reply, Request, Stream
from replica.sim.journal import Journal
from replica.sim.options import Faults, Options
from replica.sim.process import Process
from replica.sim.steering import steer


class Sim:
    """`settings` are fields of Options. `exited`: the process is gone. Faults and journal outlive restarts."""

    def __init__(self, options: Options | None = None, *, port: int = 0, faults: Faults | None = None, **settings: Any) -> None:
        self.options = dataclasses.replace(options or Options(), **settings)
        self.port = port
        self.faults = faults or Faults()
        self.journal = Journal()
        self.exited = asyncio.Event()
        self._http = HttpServer(self._answer, keep_alive=self.options.keep_alive)
        self._tasks: set[asyncio.Task[None]] = set()
        self._process = self._new_process()

    def __repr__(self) -> str:
        return f"<Sim {self.url} {self._process!r} {self._http!r}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # what tests look at

    @property
    def url(self) -> str:
        return f"http://{self.options.host}:{self.port}"

    @property
    def healthy(self) -> bool:
        return self._process.healthy and not self._process.engine.dead

    @property
    def started_at(self) -> float:
        """As `process_start_time_seconds` in its metrics."""
        return self._process.started_at

    @property
    def loaded(self) -> dict[str, str]:
        """Served names and the paths they were loaded from, in load order."""
        return {name: lora.path for name, lora in self._process.names.loaded.items()}

    @property
    def running(self) -> int:
        """Requests in the engine's batch."""
        return len(self._process.engine.running)

    @property
    def waiting(self) -> int:
        return len(self._process.engine.waiting)

    @property
    def connections(self) -> int:
        """Open connections, idle ones too."""
        return len(self._http.connections)

    # what goes wrong

    def inject(self, **changes: Any) -> None:
        """Change faults; raises ValueError for one that does not exist."""
        self.faults = self.faults.changed(changes)
        self._process.engine.notify()

    def heal(self) -> None:
        self.faults = Faults()
        self._process.engine.notify()

    def forget(self) -> None:
        """Drop every adapter's name, as a restart does."""
        self._process.names.loaded.clear()

    def die(self) -> None:
        """The engine fails: streams end with an error event, the process exits a moment later."""
        self._process.engine.die()

    def kill(self) -> None:
        """The whole process is gone at once: connections reset, port closed, nothing kept."""
        self._process.healthy = False
        self._http.close_listener()
        self._http.reset_all()
        for task in [*self._tasks, *self._process.loads]:
            task.cancel()
        self._exit()

    def end_by(self, how: str) -> None:
        """`engine` or `kill`, after the call that asked for it has gone on."""
        asyncio.get_running_loop().call_soon(self.die if how == "engine" else self.kill)

    # life

    async def start(self) -> None:
        """Listen, empty, on the port used before or a new one; a `start_seconds` passes in the background."""
        self._process = self._new_process()
        self.exited.clear()
        sock = self._bind()
        seconds = self.options.start_seconds
        if seconds and not self.options.start_open:
            self._spawn(self._listen_after(seconds, sock))
            return
        await self._http.listen(sock)
        if seconds:
            self._spawn(self._healthy_after(seconds))
        else:
            self._process.healthy = True

    async def stop(self) -> None:
        loads = [*self._process.loads]
        tasks = [*self._tasks]
        self.kill()
        after = [task for task in self._tasks if task not in tasks]
        for task in after:
            task.cancel()
        await asyncio.gather(*tasks, *after, *loads, return_exceptions=True)
        await self._http.closed()

    async def terminate(self) -> None:
        """SIGTERM: without a shutdown timeout the port closes and what runs hangs until its clients leave (vLLM's way);
        with one, new work is refused, old work finishes, then the process exits."""
        self._process.desk.draining = True
        if self.options.shutdown_timeout:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.shutdown_timeout):
                    await self._http.idle()
                    await self._http.finish()
        else:
            self._process.healthy = False
            self._process.engine.frozen = True
            await self._http.finish()
        self.kill()

    def _new_process(self) -> Process:
        return Process(
            self.options,
            self.journal,
            faults=lambda: self.faults,
            spoil=self._spoil,
            die=self.end_by,
            engine_died=lambda: self._spawn(self._exit_after_death()),
        )

    def _bind(self) -> socket.socket:
        """Bound, but connections are refused until somebody listens: the port is ours while the replica starts."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((self.options.host, self.port))
        self.port = sock.getsockname()[1]
        return sock

    async def _listen_after(self, seconds: float, sock: socket.socket) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            sock.close()
            raise
        await self._http.listen(sock)
        self._process.healthy = True

    async def _healthy_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._process.healthy = True

    async def _exit_after_death(self) -> None:
        await asyncio.sleep(self.options.exit_seconds)
        await self._http.finish()
        self._exit()

    def _exit(self) -> None:
        if self.exited.is_set():
            return
        self.exited.set()
        if self.options.restart_seconds is not None:
            self._spawn(self._restart_after(self.options.restart_seconds))

    async def _restart_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.start()

    def _spoil(self) -> None:
        self.faults = self.faults.used()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request) -> Reply | Stream:
        if self.options.control and request.path.startswith("/sim/"):
            return steer(self, request)
        return await self._process.answer(request)
