"""A data path behind a real server in this process, a table in place of the admission, and clients on raw sockets."""

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette

from gateway.core.errors import ModelNotFound, NoReplica
from gateway.proxy.asgi import inference_routes
from gateway.proxy.datapath import DataPath, Limits
from gateway.proxy.protocol import protocol_class
from tests.proxy.conftest import Setup
from tests.waiting import until


class TableLease:
    """A lease of the table's."""

    def __init__(self, table: "Table", seat: "Seat", model: str) -> None:
        self._table, self._held = table, True
        self.replica, self.url = seat.replica, seat.url
        self.model, self.label = model, model.partition("@")[0]
        self.served_name = seat.served_name
        self.revision = seat.revision
        self.trial = self.exact = None
        table.open += 1

    def answered(self, now: float) -> None: ...

    def release(self) -> None:
        if self._held:
            self._held = False
            self._table.open -= 1


@dataclass
class Seat:
    replica: str
    url: str
    served_name: str
    revision: str | None = None


@dataclass
class Table:
    """Who has what, in order of preference. While `gate` is set, everybody waits for it."""

    seats: dict[str, list[Seat]]
    open: int = 0
    told: list[tuple[str, str]] = field(default_factory=list)
    waiting: int = 0
    gate: asyncio.Event | None = None
    down: set[str] = field(default_factory=set)
    fault: Exception | None = None
    fast: bool = True

    def _lease(self, model: str | None, avoid: frozenset[str] = frozenset()) -> TableLease:
        if self.fault is not None:
            raise self.fault
        name = model or next(iter(self.seats))
        if name not in self.seats:
            raise ModelNotFound(name)
        for seat in self.seats[name]:
            if seat.replica not in avoid:
                return TableLease(self, seat, name)
        raise NoReplica("No replica is left.")

    def try_enter(self, model: str | None, session: Any = bytes) -> Any:
        return self._lease(model) if self.fast and self.gate is None else None

    async def enter(self, model: str | None, session: Any = bytes, avoid: frozenset[str] = frozenset()) -> Any:
        if self.gate is not None:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
        return self._lease(model, avoid)

    def refused(self, lease: Any) -> None:
        self.told.append(("refused", lease.replica))

    def draining(self, lease: Any) -> None:
        self.told.append(("draining", lease.replica))

    def forgotten(self, lease: Any) -> None:
        self.told.append(("forgotten", lease.served_name))

    def missing_files(self, lease: Any) -> None:
        self.told.append(("missing_files", lease.served_name))

    def credentials(self, lease: Any) -> None:
        self.told.append(("credentials", lease.replica))

    def failed(self, lease: Any, sent_at: float) -> None:
        self.told.append(("failed", lease.replica))

    def acquitted(self, lease: Any) -> None:
        self.told.append(("acquitted", lease.replica))

    def heard(self, latest: Any) -> None: ...

    def label(self, model: str | None) -> str:
        return model if model in self.seats else "other"

    def is_down(self, replica: str) -> bool:
        return replica in self.down


def table(*replicas: Any, model: str = "alpha", served: str | None = None, revision: str | None = None) -> Table:
    """All `replicas` serve `model`."""
    return Table({model: [Seat(r.id, r.url, served or model, revision) for r in replicas]})


@dataclass
class Tally:
    """What the data path counted."""

    codes: list[tuple[str, str, int]] = field(default_factory=list)
    first_bytes: list[float | None] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def finished(self, model: str, endpoint: str, code: int, seconds: float, first_byte: float | None) -> None:
        self.codes.append((model, endpoint, code))
        self.first_bytes.append(first_byte)

    def upstream_error(self, replica: str, kind: str) -> None:
        self.errors[kind] += 1

    def retry(self, reason: str) -> None:
        self.retries[reason] += 1

    def client_left(self, phase: str) -> None:
        self.left[phase] += 1


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Rig:
    """A running gateway."""

    path: DataPath
    table: Table
    tally: Tally
    port: int
    server: Server

    async def quiet(self, seconds: float = 3.0) -> None:
        """No exchange is open, no lease is held, no connection to a replica is busy."""

        def still() -> bool:
            pools = self.path.pools
            return not self.path.in_flight and not self.table.open and all(len(p.open) == len(p.idle) for p in pools)

        try:
            await until(still, seconds)
        except AssertionError:
            raise AssertionError(f"{self.path} {self.path.exchanges} {self.table.open}") from None

    async def client(self) -> "Client":
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, body: Any = None, **more: Any) -> "Answer":
        """One request on its own connection."""
        client = await self.client()
        try:
            client.post({"model": "alpha"} if body is None else body, **more)
            return await client.answer()
        finally:
            client.close()


@asynccontextmanager
async def gateway(setup: Setup, admission: Table, limits: Limits | None = None, **more: Any) -> AsyncIterator[Rig]:
    tally = Tally()
    path = DataPath(admission, tally, limits, **more)
    app = Starlette(routes=inference_routes(path))
    http: Any = protocol_class(path) if setup.adapter == "protocol" else "httptools"
    config = uvicorn.Config(
        app, http=http, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False
    )
    server = Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        tasks = [asyncio.create_task(server.serve([listening])), asyncio.create_task(path.run())]
        try:
            await until(lambda: server.started)
            yield Rig(path, admission, tally, listening.getsockname()[1], server)
        finally:
            for exchange in list(path.exchanges):
                exchange.client_gone()
            server.should_exit = server.force_exit = True
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for connection in list(server.server_state.connections):
                connection.transport.abort()


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code


class Client:
    """A client that says exactly what it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: Any = None, target: str = "/v1/chat/completions", version: str = "1.1", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"host": "gateway", "content-type": "application/json", "content-length": str(len(data))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        self.write(f"POST {target} HTTP/{version}\r\n{lines}\r\n".encode("latin-1") + data)

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        text = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
        first, *fields = text.rstrip("\r\n").split("\r\n")
        pairs = [tuple(line.split(": ", 1)) for line in fields]
        return int(first.split(" ")[1]), [(name.lower(), value) for name, value in pairs]

    async def answer(self) -> Answer:
        """The next answer, as far as it comes."""
        status, headers = await self.head()
        fields = dict(headers)
        if status == 100:
            return await self.answer()
        if "transfer-encoding" in fields:
            assert "content-length" not in fields
            return Answer(status, headers, *await self._chunks())
        if status in (204, 304):
            return Answer(status, headers, b"", True)
        if "content-length" in fields:
            length = int(fields["content-length"])
            try:
                return Answer(status, headers, await asyncio.wait_for(self.reader.readexactly(length), 10), True)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                return Answer(status, headers, getattr(error, "partial", b""), False)
        try:
            return Answer(status, headers, await asyncio.wait_for(self.reader.read(-1), 10), True)
        except ConnectionError:
            return Answer(status, headers, b"", False)

    async def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        try:
            while True:
                data = await self.chunk()
                if not data:
                    return body, True
                body += data
        except (asyncio.IncompleteReadError, ConnectionError):
            return body, False

    async def chunk(self) -> bytes:
        """One chunk; empty for the last."""
        line = await asyncio.wait_for(self.reader.readuntil(b"\r\n"), 10)
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            while (line := await asyncio.wait_for(self.reader.readuntil(b"\r\n"), 10)) != b"\r\n":
                assert not line.startswith((b"event", b"data")), "what is behind the last chunk are trailers"
            return b""
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), 10)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def ended(self) -> bytes:
        """What still comes until the gateway closes."""
        try:
            return await asyncio.wait_for(self.reader.read(-1), 10)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Leave with an RST."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()
