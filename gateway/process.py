"""The process: one task group with the server and the control loop as siblings, and what signals mean.

When the control loop ends, the process ends: a task group inside the web framework's lifespan would not give that. On
SIGTERM the gateway is not ready at once, serves on for the lame-duck time, lets streams finish within the drain timeout,
tells the rest with an error event, and exits 0. A second SIGTERM ends it at once.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

import structlog
import uvicorn

from gateway.app import Gateway, build
from gateway.logs import configure
from gateway.proxy.listener import Listener
from gateway.settings import Settings

log = structlog.get_logger("gateway")
BACKLOG = 4096
KEEP_ALIVE = 75  # seconds that an idle client connection stays open
THREADS_WAIT = 3.0  # seconds for threads that look at files to come back, once all else has ended
GRACE = 5.0  # seconds after the drain until connections are cut


class Server(uvicorn.Server):
    """uvicorn's, but signals are ours (it would raise them again after it has ended), and so is accepting clients."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket) -> None:
        super().__init__(config)
        self._listening = listening
        self._listener = Listener(listening, self._connection, BACKLOG)

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # it opens none of its own
        self._listener.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._listener.close()
        self._listening.close()
        await super().shutdown(sockets=[])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings) -> int:
    """Run the gateway until it is told to stop; the exit code."""
    configure(settings.log_format, settings.log_level)
    if settings.otlp_endpoint is not None and not _can_trace():
        remedy = "pip install 'lora-gateway[otel]'"
        print(f"lora-gateway: --otlp-endpoint needs OpenTelemetry, which is not installed: {remedy}", file=sys.stderr)
        return 2
    try:
        listening = listen(settings.host, settings.port)
    except OSError as error:
        print(f"lora-gateway: cannot listen on {settings.host}:{settings.port}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        with ExitStack() as last, asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(_serve(settings, listening))
            listening.close()
            last.enter_context(ending_within(THREADS_WAIT, code))
            return code
    finally:
        listening.close()


@contextmanager
def ending_within(seconds: float, code: int) -> Iterator[None]:
    """End the process with `code` when the block takes longer: Python waits for threads, and one may hang in a share."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _can_trace() -> bool:
    try:
        return all(find_spec(f"opentelemetry.{part}") for part in ("sdk", "exporter.otlp.proto.http"))
    except ModuleNotFoundError:  # one of the parents
        return False


def listen(host: str, port: int) -> socket.socket:
    """Bound, but connections are refused until the server starts. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop where it exists."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


async def _serve(settings: Settings, listening: socket.socket) -> int:
    gateway = build(settings)
    config = uvicorn.Config(
        gateway.asgi,
        http=gateway.protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.drain_timeout + GRACE),
    )
    server = Server(config, listening)
    stopping = _stop_on_signals()
    gateway.tell_start(*listening.getsockname()[:2])
    try:
        async with asyncio.TaskGroup() as group:
            control = group.create_task(gateway.run(), name="control loop")
            served = group.create_task(server.serve(), name="server")
            group.create_task(_stop(gateway, server, stopping, settings), name="stop")
            await served
            control.cancel()
            stopping.set()
    except Exception as error:
        log.error("the gateway ends: a part of it has failed", exc_info=error)
        return 1
    finally:
        await gateway.close()
    log.info("stopped")
    return 0


def _stop_on_signals() -> asyncio.Event:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopping


async def _stop(gateway: Gateway, server: Server, stopping: asyncio.Event, settings: Settings) -> None:
    await stopping.wait()
    if server.should_exit:
        return
    log.info("stopping", lame_duck=settings.lame_duck, drain_timeout=settings.drain_timeout)
    gateway.begin_shutdown()
    await asyncio.sleep(settings.lame_duck)
    server.should_exit = True
    await gateway.datapath.drain(settings.drain_timeout)
