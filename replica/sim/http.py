"""A small HTTP/1.1 server whose connections can be reset, which no framework offers.

One asyncio.Protocol per connection, httptools for parsing, one task per request, bodies held whole. A handler returns a
Reply or a Stream; raising Cut ends the connection the way it says. When the client leaves, the handler's task is
cancelled. Idle connections are closed five seconds after an answer, as uvicorn does under vLLM.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from email.utils import formatdate
from enum import StrEnum
from http import HTTPStatus
from urllib.parse import unquote

import httptools

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # unquoted, without the query
    headers: Mapping[str, str]  # names in lower case, the last of equal names
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    content_type: str | None = JSON
    headers: tuple[tuple[str, str], ...] = ()
    then_close: bool = False  # close the connection after it without having said so


@dataclass(frozen=True, slots=True)
class Stream:
    chunks: AsyncGenerator[bytes, None]
    content_type: str = EVENT_STREAM
    headers: tuple[tuple[str, str], ...] = ()


class How(StrEnum):
    RST = "rst"
    FIN = "fin"


class Cut(Exception):
    """Raised by a handler or by its chunks: end this connection now."""

    def __init__(self, how: How) -> None:
        super().__init__(how.value)
        self.how = how


Handler = Callable[[Request], Awaitable[Reply | Stream]]


class HttpServer:
    """Listens on one port at a time. `tasks` are the requests being answered."""

    def __init__(self, handler: Handler, *, keep_alive: float = 5.0) -> None:
        self.handler = handler
        self.keep_alive = keep_alive
        self.connections: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __repr__(self) -> str:
        return f"<HttpServer listening={self._server is not None} connections={len(self.connections)}>"

    async def listen(self, sock: socket.socket) -> None:
        """Start listening on a socket that is bound already."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=sock, backlog=4096)

    async def idle(self) -> None:
        """Wait until no request is being answered."""
        while self.tasks:
            await asyncio.wait(set(self.tasks))

    async def finish(self) -> None:
        """Let what runs end, close every connection once its last bytes are out, and the listener with them."""
        self.close_listener()
        self.close_idle()
        await self.idle()
        self.close_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._empty.wait()

    def opened(self, connection: "_Connection") -> None:
        self.connections.add(connection)
        self._empty.clear()

    def lost(self, connection: "_Connection") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    async def closed(self) -> None:
        """Wait for what still answers, after `reset_all`."""
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close_idle(self) -> None:
        for connection in list(self.connections):
            if not connection.busy:
                connection.finish()

    def reset_all(self) -> None:
        """Every peer gets a reset, as when the process is killed."""
        for connection in list(self.connections):
            connection.cut(How.RST)


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lost(self)
        self._writable.set()
        self._stop_idle_timer()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._stop_idle_timer()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.finish()
        except httptools.HttpParserError:
            self._write_head(Reply(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8"), close=True)
            self.finish()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = unquote(self._url.decode("latin-1").partition("?")[0])
        method = self._parser.get_method().decode("latin-1")
        request = Request(method, path, self._headers, b"".join(self._body))
        self._waiting.append((request, self._parser.should_keep_alive()))
        self._next()

    # answering

    @property
    def busy(self) -> bool:
        return self._task is not None

    def finish(self) -> None:
        """Close once what was written is out."""
        self._transport.close()

    def cut(self, how: How) -> None:
        if how is How.FIN:
            self._transport.close()
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            # lingering for zero seconds makes the kernel send a reset instead of a FIN
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _next(self) -> None:
        if self._task is None and self._waiting and not self._transport.is_closing():
            request, keep = self._waiting.popleft()
            self._task = asyncio.get_running_loop().create_task(self._answer(request, keep))
            self._server.tasks.add(self._task)
            self._task.add_done_callback(self._server.tasks.discard)

    async def _answer(self, request: Request, keep: bool) -> None:
        complete = closes = False
        try:
            answer = await self._server.handler(request)
            if isinstance(answer, Reply):
                self._write_head(answer, close=not keep)
                closes = answer.then_close
            else:
                await self._relay(answer, close=not keep)
            complete = True
        except Cut as cut:
            self.cut(cut.how)
        finally:
            self._task = None
            if not complete and not self._transport.is_closing():
                self._transport.abort()
        if complete:
            self._after(keep and not closes)

    def _after(self, keep: bool) -> None:
        if not keep:
            self.finish()
        elif self._waiting:
            self._next()
        elif not self._transport.is_closing():
            self._idle = asyncio.get_running_loop().call_later(self._server.keep_alive, self.finish)

    async def _relay(self, stream: Stream, *, close: bool) -> None:
        self._transport.write(_head(200, stream.content_type, stream.headers, "transfer-encoding: chunked", close))
        async with aclosing(stream.chunks) as chunks:
            async for chunk in chunks:
                self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await self._writable.wait()
        self._transport.write(b"0\r\n\r\n")

    def _write_head(self, reply: Reply, *, close: bool) -> None:
        length = f"content-length: {len(reply.body)}"
        self._transport.write(_head(reply.status, reply.content_type, reply.headers, length, close) + reply.body)

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def _head(status: int, content_type: str | None, headers: tuple[tuple[str, str], ...], framing: str, close: bool) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}", f"date: {formatdate(usegmt=True)}", "server: uvicorn"]
    if content_type is not None:
        lines.append(f"content-type: {content_type}")
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append("vary: Origin")
    if close:
        lines.append("connection: close")
    lines.append(framing)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
