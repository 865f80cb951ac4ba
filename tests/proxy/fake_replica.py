"""A replica as a raw socket server: each test says with which bytes, and when, it answers."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext

from tests.waiting import until


class Line(asyncio.Protocol):
    """One connection to the replica. `closed` is set as soon as the other side has closed or reset it."""

    def __init__(self, replica: "FakeReplica") -> None:
        self._replica = replica
        self._buffer = bytearray()
        self._news = asyncio.Event()
        self.closed = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._replica.lines.append(self)
        task = asyncio.ensure_future(self._replica.serve(self))
        self._replica.tasks.add(task)
        task.add_done_callback(self._replica.tasks.discard)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    def eof_received(self) -> None:
        self.closed.set()
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._news.set()

    async def read_until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            await self._more()
        return self._cut(self._buffer.index(end) + len(end))

    async def read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        return self._cut(count)

    async def _more(self) -> None:
        if self.closed.is_set():
            raise EOFError
        self._news.clear()
        await self._news.wait()

    def _cut(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data


@dataclass
class Call:
    """One request that the replica got."""

    line: Line
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        values = [v for n, v in self.headers if n == name]
        return values[0] if values else None

    @property
    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.body)
        return found

    def write(self, data: bytes) -> None:
        if not self.line.transport.is_closing():
            self.line.transport.write(data)

    def close(self) -> None:
        self.line.transport.close()

    def reset(self) -> None:
        """Close with an RST."""
        transport = self.line.transport
        if not transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def open_stream(self) -> None:
        self.write(STREAM_HEAD)

    def answer(self, body: bytes, status: str = "200 OK", kind: str = "application/json", more: bytes = b"") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n".encode()
        self.write(head + more + b"\r\n" + body)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
Script = Callable[[Call], Awaitable[None]]


async def echo(call: Call) -> None:
    """Tell the client what came: a JSON answer under the name that was asked for."""
    model = call.json.get("model") if call.header("content-type") == "application/json" else None
    call.answer(json.dumps({"model": model, "replica": call.line.transport.get_extra_info("sockname")[1]}).encode())


@dataclass
class FakeReplica:
    script: Script = echo
    calls: list[Call] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    tasks: set["asyncio.Future[None]"] = field(default_factory=set)
    port: int = 0

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.id}"

    @property
    def open_lines(self) -> int:
        return sum(not line.closed.is_set() for line in self.lines)

    async def serve(self, line: Line) -> None:
        try:
            while True:
                call = await self._read(line)
                self.calls.append(call)
                await self.script(call)
        except EOFError:
            line.transport.close()

    async def _read(self, line: Line) -> Call:
        head = (await line.read_until(b"\r\n\r\n")).decode("latin-1")
        first, *fields = head.rstrip("\r\n").split("\r\n")
        headers = [(name.lower(), value) for name, value in (f.split(": ", 1) for f in fields)]
        call = Call(line, first.split(" ")[1], headers)
        call.body = await line.read(int(call.header("content-length") or 0))
        return call

    async def called(self, times: int = 1) -> Call:
        """The request number `times`, when it has come."""
        await until(lambda: len(self.calls) >= times, what=f"{times} calls")
        return self.calls[times - 1]


@asynccontextmanager
async def replica(script: Script = echo, ssl: SSLContext | None = None) -> AsyncIterator[FakeReplica]:
    fake = FakeReplica(script)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Line(fake), "127.0.0.1", 0, ssl=ssl)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
        for task in list(fake.tasks):
            task.cancel()
        for line in fake.lines:
            line.transport.abort()
        await asyncio.gather(*fake.tasks, return_exceptions=True)
