"""Connections to the replicas: one pool for each replica's URL, an asyncio protocol with a parser for each connection.

A connection serves one exchange at a time. It goes back to the pool only when the answer was whole, nothing of the request
is unsent, and both sides keep it alive; bytes that come while it is idle, or a second answer in the bytes of the first, end
it. vLLM closes idle connections after exactly 5.00 s, so they are dropped here before. What was read is parsed first and
relayed after, so nothing malformed gets through.
"""

import asyncio
import ssl
from collections.abc import Iterator
from time import monotonic
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from gateway.proxy.headers import MAX_HEAD_BYTES, AnswerHead, Headers
from gateway.proxy.template import PATIENCE, Template

HEAD_END = b"\r\n\r\n"
BIG_BODY = 65536  # from here on a body is written by itself, not copied behind its head


class Relay(Protocol):
    """Where the chunks of an answer go, framing and all."""

    def __call__(self, data: bytes, /) -> None: ...


BODYLESS = (204, 304)


class Owner(Protocol):
    """The exchange that has a connection now."""

    def received(self, connection: "Connection") -> None: ...  # bytes came and were parsed
    def relayed_all(self, connection: "Connection") -> None: ...  # the answer is whole and was relayed verbatim
    def lost(self, connection: "Connection", kind: str) -> None: ...  # it is closed, or sent what is no HTTP


class MalformedAnswerError(Exception):
    """Raised inside the parser's callbacks."""


class Connection(asyncio.Protocol):
    """One connection to a replica. `owner` is the exchange that has it; None while it is idle."""

    __slots__ = (
        "_answer_head",
        "_feed",
        "_parser",
        "_patience",
        "_read_headers",
        "_reading",
        "_template",
        "_template_headers",
        "_template_status",
        "_unsent",
        "_writable",
        "done",
        "headed",
        "headers",
        "idle_since",
        "interim",
        "keep",
        "last",
        "length",
        "made_at",
        "owner",
        "parts",
        "pool",
        "relay",
        "seen",
        "status",
        "transport",
        "unwanted",
    )

    transport: asyncio.Transport

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.owner: Owner | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._reading = self._writable = True
        self._answer_head: AnswerHead | None = None
        self._read_headers: Headers | None = None  # those that `_answer_head` was read from
        self._template: Template | None = None  # of an answer before
        self._template_status, self._patience = 0, PATIENCE
        self._template_headers: Headers = []
        self.made_at = self.idle_since = 0.0
        self.unwanted = False  # nobody waits for it any more; uvloop may make it even after a cancellation
        self._reset()

    def _reset(self) -> None:
        self.headers: Headers = []  # without Content-Length
        self.length: bytes | None = None  # the value of Content-Length
        self.parts: list[bytes] = []  # of the body, as far as not taken; unused while relayed verbatim
        self.seen = b""  # all bytes up to and with those that completed the head
        self.last = b""  # the newest bytes: another object after each read
        self.relay: Relay | None = None
        self.status = self.interim = 0
        self.headed = self.done = self.keep = False
        self._unsent: Iterator[bytes] | None = None  # pieces of the request's body

    # exchange

    def send(self, owner: Owner, head: bytes, body: bytes | Iterator[bytes]) -> None:
        """Begin an exchange: write the request, pieces as fast as they are taken; tell `owner` about the answer."""
        self._reset()
        self.owner = owner
        if not isinstance(body, bytes):
            self.transport.write(head)
            self._unsent = body
            self._write_on(body)
        elif len(body) < BIG_BODY:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    def _write_on(self, unsent: Iterator[bytes]) -> None:
        transport = self.transport
        while self._writable and not transport.is_closing():
            piece = next(unsent, None)
            if piece is None:
                self._unsent = None
                return
            transport.write(piece)

    def take(self) -> bytes:
        """The parts of the body that have come."""
        parts = self.parts
        if len(parts) == 1:
            body = parts[0]
            parts.clear()
            return body
        self.parts = []
        return b"".join(parts)

    def read_head(self) -> AnswerHead:
        """The fields of the answer; equal ones are read once for a connection."""
        head = self._answer_head
        if head is None or (self.headers is not self._read_headers and self.headers != self._read_headers):
            self._read_headers = self.headers
            head = self._answer_head = AnswerHead(self.headers)
        head.content_length = int(self.length) if self.length is not None else None
        return head

    def rest(self) -> bytes:
        """What was read behind the head, with the framing of the chunks."""
        seen, at = self.seen, 0
        for _ in range(self.interim + 1):
            while seen[at] in HEAD_END:  # empty lines before an answer, which parsers let pass
                at += 1
            at = seen.index(HEAD_END, at) + 4
        return self._without_surplus(seen[at:]) if self.done else seen[at:]

    def _without_surplus(self, data: bytes, before: bytes = b"") -> bytes:
        """The end of chunks without the empty lines that a parser lets pass behind it; the connection ends then, too.

        `before` are the bytes read before these: the line ends that end the chunks may have begun there.
        """
        bare = data.rstrip(b"\r\n")
        begun = b"" if bare else before[len(before.rstrip(b"\r\n")) :][-3:]
        at = (begun + data[len(bare) :]).find(HEAD_END)
        end = len(bare) + at + len(HEAD_END) - len(begun)
        if at < 0 or end >= len(data):
            return data
        self.keep = False
        return data[:end]

    def at_chunk_boundary(self) -> bool:
        """Whether the bytes so far end between two chunks. Feeds the parser a last chunk: the connection is over."""
        if self.done or not self.last.endswith(b"\r\n"):  # the end of a line: else it may lie in a size, or in a trailer
            return False
        try:
            self._feed(b"0\r\n\r\n")
        except httptools.HttpParserError:
            return False
        return self.done

    def release(self, now: float) -> None:
        """The exchange is over: back to the pool, or closed."""
        self.owner = self.relay = None
        self.resume_reading()
        transport = self.transport
        sent = self._unsent is None and not transport.get_write_buffer_size()
        if self.done and self.keep and sent and not transport.is_closing():
            self.seen = self.last = b""  # an idle connection holds no answer; the rest is for the next `send` to reset
            self.parts.clear()
            self.pool.put(self, now)
        else:
            self.abort()

    def abort(self) -> None:
        """Close it now: that is how vLLM learns that it need not go on generating."""
        self.owner = self.relay = self._unsent = None
        self.transport.abort()

    def pause_reading(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if self.unwanted:
            self.transport.abort()
            return
        self.made_at = monotonic()
        self.pool.open.add(self)

    def data_received(self, data: bytes) -> None:
        owner = self.owner
        if owner is None:
            self.abort()
            return
        before, self.last = self.last, data
        template = self._template
        if template is not None and not self.seen and (at := template.body_at(data)):
            self._take_again(data, at)
            owner.received(self)
            return
        if not self.headed:
            self.seen = self.seen + data if self.seen else data
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._lose("malformed")
            return
        relay = self.relay
        if relay is not None:
            if self.done:
                relay(self._without_surplus(data, before))
                owner.relayed_all(self)
            else:
                relay(data)
        elif self.headed:
            if self._patience and self.done and self.length is not None and self.seen is data:
                self._learn(data)
            owner.received(self)
        elif len(self.seen) > MAX_HEAD_BYTES:
            self._lose("malformed")

    def _learn(self, data: bytes) -> None:
        """The next answer may have the same head. Only one that came whole in one read teaches."""
        self._patience -= 1
        self._template = None
        if not self.interim and self.status not in BODYLESS and self.keep and self.length is not None:
            self._template = Template.of(data, int(self.length))
            self._template_status, self._template_headers = self.status, self.headers

    def _take_again(self, data: bytes, at: int) -> None:
        """An answer whose head is that of one before: there is nothing to parse."""
        self._patience = PATIENCE
        self.seen = data
        self.status, self.headers = self._template_status, self._template_headers
        self.length = b"%d" % (len(data) - at)
        self.headed = self.done = self.keep = True
        if len(data) > at:
            self.parts.append(data[at:])

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._unsent is not None:
            try:
                self._write_on(self._unsent)
            except OSError:  # of the file that holds the body
                self._lose("closed")

    def eof_received(self) -> None:
        owner = self.owner
        if owner is None:
            return
        if self.headed and not self.done and self._ends_with_connection():
            self.done = True
            owner.received(self)
        elif not self.done:
            self._lose("closed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.forget(self)
        if self.owner is not None:
            self._lose("closed")

    def _lose(self, kind: str) -> None:
        owner, self.owner, self._unsent = self.owner, None, None
        self.transport.abort()
        if owner is not None:
            owner.lost(self, kind)

    def _ends_with_connection(self) -> bool:
        return self.length is None and not any(name == b"transfer-encoding" for name, _ in self.headers)

    # parser

    def on_message_begin(self) -> None:
        if self.done:
            raise MalformedAnswerError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.headed:  # a trailer
            return
        name = name.lower()
        if name == b"content-length":
            self.length = value
        else:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status, self.headed = status, True
            return
        if status == 101:
            raise MalformedAnswerError("an upgrade")
        self.interim += 1
        self.headers, self.length = [], None

    def on_body(self, body: bytes) -> None:
        if self.relay is None:
            self.parts.append(body)

    def on_message_complete(self) -> None:
        if self.headed:
            self.done, self.keep = True, self._parser.should_keep_alive()


class Pool:
    """All connections to one replica; the newest idle one is used first."""

    def __init__(self, url: str, *, idle_timeout: float, max_age: float, ssl_context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._ssl = (ssl_context or ssl.create_default_context()) if secure else None
        self._idle_timeout, self._max_age = idle_timeout, max_age
        self.prefix = parts.path.rstrip("/").encode()
        self.authority = parts.netloc.rpartition("@")[2].encode()
        self.open: set[Connection] = set()
        self.idle: list[Connection] = []
        self._connecting = 0

    @property
    def unused(self) -> bool:
        return not self.open and not self._connecting

    def take(self, now: float) -> Connection | None:
        """An idle connection, if there is one that the replica surely keeps open."""
        idle = self.idle
        while idle:
            connection = idle.pop()
            if now - connection.idle_since < self._idle_timeout and not connection.transport.is_closing():
                return connection
            connection.abort()
        return None

    def put(self, connection: Connection, now: float) -> None:
        if now - connection.made_at > self._max_age:  # the name may have another address by now
            connection.abort()
        else:
            connection.idle_since = now
            self.idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.open.discard(connection)
        if connection.owner is None and connection in self.idle:
            self.idle.remove(connection)

    async def connect(self, seconds: float) -> Connection:
        """A new connection; OSError or TimeoutError when there is none within `seconds` (0: no limit)."""
        loop = asyncio.get_running_loop()
        connection = Connection(self)
        made = False
        self._connecting += 1
        try:
            async with asyncio.timeout(seconds or None):
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._ssl)
            made = True
        finally:
            self._connecting -= 1
            if not made:
                connection.unwanted = True
                if connection in self.open:
                    connection.abort()
                    self.open.discard(connection)  # uvloop closes it on cancellation and tells nobody
        return connection

    def sweep(self, now: float, period: float) -> None:
        """Drop what would be too old before the next sweep."""
        for connection in [c for c in self.idle if now - c.idle_since + period >= self._idle_timeout]:
            self.idle.remove(connection)
            connection.abort()

    def close(self) -> None:
        for connection in list(self.open):
            connection.abort()

    def __repr__(self) -> str:
        open_, idle = len(self.open), len(self.idle)
        return f"<Pool {self.authority.decode()} open={open_} idle={idle} busy={open_ - idle}>"
