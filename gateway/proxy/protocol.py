"""The default adapter: a protocol of uvicorn that answers the inference routes itself and lets all else fall through.

On the fast path nothing is awaited and no task is made. One message is looked at at a time: while an answer is under way
further bytes of the client are kept, a bounded number of them, and fed when it has ended; a second message in the bytes
that ended the first is not answered, the connection is closed after the first. A client that closes its sending side after
a whole request has left, as vLLM and nginx take it, too. Where an error is told before the body was read, the rest is read
and dropped for a while, so that the client can read the error.
"""

from enum import IntEnum
from time import monotonic
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.core.errors import GatewayError, InvalidRequest
from gateway.proxy.datapath import DataPath
from gateway.proxy.exchange import Exchange, error_headers
from gateway.proxy.headers import MAX_HEAD_BYTES, MAX_HEADERS, Headers, HeadersTooLarge, RequestHead, too_large
from gateway.proxy.multipart import Form
from gateway.proxy.request import Request
from gateway.proxy.routes import Endpoint, find
from gateway.proxy.template import PATIENCE, Template
from gateway.proxy.upstream import Relay

AHEAD = 65536  # bytes of further requests that are kept while one is answered; then reading stops
LINGER = 5.0  # seconds without a byte for which the rest of a refused body is awaited
UPLOAD_TIMEOUT = 60.0  # seconds without a byte of a request that has begun
FLUSH = 5.0  # seconds in which a client has to take what was written before its connection was closed
_BODYLESS = (204, 304)


class Stage(IntEnum):
    """How far the message of the client is that is looked at."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    WHOLE = 3  # and its answer is not


IDLE, HEAD, BODY, WHOLE = Stage


class InferenceProtocol(HttpToolsProtocol):
    """One connection of a client, and the sink of its exchanges. `datapath` comes with the subclass."""

    datapath: ClassVar[DataPath]
    exchange: Exchange | None = None
    verbatim = True
    _stage = IDLE
    _endpoint: Endpoint | None = None  # of the message, when it is ours
    _refusal: GatewayError | None = None
    _head: RequestHead
    _surplus = _lingering = _chunking = _endless = False
    _keep = True
    _ahead = b""
    _template: Template | None = None  # of the request before, when it was ours
    _patience = PATIENCE
    _head_bytes = _body_bytes = _reads = _seen_reads = 0
    _quiet_since = 0.0
    _parts: list[bytes]
    _form: Form | None = None  # in place of the parts
    _length: bytes | None = None  # the message's Content-Length: the one field that differs between requests of a client
    _read_headers: Headers | None = None  # those that `_head` was read from

    # transport

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._parts = []
        self._quiet_since = monotonic()
        self.datapath.clients.add(self)

    def data_received(self, data: bytes) -> None:
        self._reads += 1
        if self._stage is WHOLE:
            self._keep_ahead(data)
            return
        if self._lingering:
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        began = self._stage is IDLE
        if began and self._template is not None and (at := self._template.body_at(data)):
            self._begin_again(data, at)
            return
        if self._stage <= HEAD:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._malformed()
            return
        except httptools.HttpParserUpgrade:
            pass  # refused where it is ours, ignored where it is not
        if self._refusal is not None:
            self._tell_refusal(self._refusal)
        elif self._stage >= WHOLE:
            if self._endpoint is not None:
                if self._patience:
                    self._learn(data, began)
                self._begin()
        elif self._stage <= HEAD and self._head_bytes > MAX_HEAD_BYTES:
            self._tell_refusal(_head_too_large())

    def eof_received(self) -> None:
        self._client_gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self.datapath.clients.discard(self)
        self._client_gone()
        self._drop_body()
        self._ahead = b""
        super().connection_lost(exc)

    def _client_gone(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_gone()
        elif self._stage is BODY and self._endpoint is not None and not self._lingering:
            self.datapath.recorder.client_left("body")
            self._endpoint = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.exchange is not None:
            self.exchange.resume()

    def shutdown(self) -> None:
        if self._endpoint is not None and (self.exchange is not None or self._stage is BODY):
            self._keep = False
        else:
            super().shutdown()

    def tick(self, now: float) -> None:
        """Called once a second: connections that are idle for too long, or whose request does not come."""
        if self._reads != self._seen_reads or self._stage is WHOLE:
            self._seen_reads, self._quiet_since = self._reads, now
            return
        if self._lingering:
            limit = LINGER
        elif self._stage is IDLE:
            limit = float(self.timeout_keep_alive)
        elif self._endpoint is None and self._stage is BODY:
            return  # the framework's
        else:
            limit = UPLOAD_TIMEOUT
        if now - self._quiet_since >= limit:
            self.transport.abort()

    # parser

    def on_message_begin(self) -> None:
        if self._stage is not IDLE:
            self._surplus, self._keep = True, False
            return
        self._stage = HEAD
        self.url = b""
        self.headers = []
        self._length = None

    def on_url(self, url: bytes) -> None:
        if not self._surplus:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage is not HEAD or self._surplus:  # a trailer
            return
        name = name.lower()
        if name == b"content-length":
            self._length = value
        else:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._surplus:
            return
        self._stage = BODY
        endpoint = self._endpoint = find(self.url) if self.parser.get_method() == b"POST" else None
        version = self.parser.get_http_version()
        self._refusal = self._refused_head(version)
        if self._refusal is not None:
            return
        if endpoint is None:
            self._fall_through()
            return
        head = self._read_head()
        self.verbatim = version == "1.1"
        self._keep = self.verbatim and self.parser.should_keep_alive()
        if self.parser.should_upgrade():
            self._refusal = InvalidRequest("This endpoint speaks plain HTTP/1.1: send the request without Upgrade.")
            return
        self._refusal = head.check(needs_host=self.verbatim, max_body_bytes=self.datapath.limits.max_body_bytes)
        if self._refusal is not None:
            return
        if endpoint.multipart:
            self._form = Form(head.content_type)
        if head.expects_continue and self.verbatim:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_head(self) -> RequestHead:
        """Equal fields are read once for a connection."""
        length = self._length
        if self.headers == self._read_headers:
            self._head.renew(int(length) if length is not None else None)
            return self._head
        fields = self.headers if length is None else [*self.headers, (b"content-length", length)]
        self._read_headers, self._head = self.headers, RequestHead(fields, self.datapath.withheld)
        return self._head

    def _refused_head(self, version: str) -> GatewayError | None:
        if len(self.headers) > MAX_HEADERS or (self._head_bytes > MAX_HEAD_BYTES and self._size_of_head() > MAX_HEAD_BYTES):
            return _head_too_large()
        if not self.url.startswith(b"/"):
            return InvalidRequest("The request target must be a path.")
        if version not in ("1.1", "1.0"):
            return InvalidRequest("The only versions of HTTP understood are 1.1 and 1.0.")
        if self._endpoint is None:
            hosts = sum(name == b"host" for name, _ in self.headers)
            if hosts > 1 or (version == "1.1" and not hosts):
                return InvalidRequest("Exactly one Host header is needed.")
        return None

    def _size_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _fall_through(self) -> None:
        """The message is the framework's."""
        self._template = None
        url, headers = self.url, self.headers
        if self._length is not None:
            headers.append((b"content-length", self._length))
        super().on_message_begin()
        self.url = url
        self.headers += headers
        self.expect_100_continue = any(n == b"expect" and v.lower() == b"100-continue" for n, v in headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._surplus or self._refusal is not None:
            return
        if self._endpoint is None:
            super().on_body(body)
            return
        if self._form is None:
            self._parts.append(body)
        else:
            self._form.feed(body)
        self._body_bytes += len(body)
        limit = self.datapath.limits.max_body_bytes
        if limit and self._body_bytes > limit:
            self._refusal = too_large(limit)

    def on_message_complete(self) -> None:
        if self._surplus or self._refusal is not None:
            return
        self._stage = WHOLE
        if self._endpoint is None:
            super().on_message_complete()
            if self.cycle.response_complete:
                self._stage = IDLE
                self._head_bytes = 0

    # requests

    def _begin(self) -> None:
        assert self._endpoint is not None
        request = Request(self._endpoint, self.url, self._head, self._take_body())
        exchange = self.exchange = Exchange(self.datapath, request, self)
        if self.flow.write_paused:
            exchange.pause()
        exchange.begin()

    def _learn(self, data: bytes, began: bool) -> None:
        """The next request of this client may have the same head. Only one that came whole in one read teaches."""
        head, self._patience = self._head, self._patience - 1
        whole = began and self.verbatim and self._keep and not self._surplus and self._form is None
        if whole and head.content_length is not None and not head.expects_continue:
            self._template = Template.of(data, head.content_length)
        else:
            self._template = None

    def _begin_again(self, data: bytes, at: int) -> None:
        """A request whose head is that of the one before: there is nothing to parse."""
        length, limit = len(data) - at, self.datapath.limits.max_body_bytes
        self._patience = PATIENCE
        self._endpoint = find(self.url)
        if limit and length > limit:
            self._tell_refusal(too_large(limit))
            return
        self._stage = WHOLE
        self._head.renew(length)
        self._parts.append(data[at:])
        self._begin()

    def _take_body(self) -> bytes | Form:
        self._body_bytes = 0
        form, self._form = self._form, None
        if form is not None:
            form.finish()
            return form
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _drop_body(self) -> None:
        self._parts.clear()
        form, self._form = self._form, None
        if form is not None:
            form.close()

    def on_response_complete(self) -> None:
        """The framework has answered."""
        super().on_response_complete()
        if self._stage is WHOLE and not self.transport.is_closing():
            if self._surplus:
                self._linger()
            else:
                self._next()

    def _next(self) -> None:
        """The answer is over: on to what the client has sent meanwhile."""
        self._stage = IDLE
        self._endpoint = None
        self._head_bytes = 0
        self._reads += 1
        if self._ahead:
            data, self._ahead = self._ahead, b""
            self.flow.resume_reading()
            self.data_received(data)

    def _keep_ahead(self, data: bytes) -> None:
        if self._surplus:
            return
        self._ahead += data
        if len(self._ahead) > AHEAD:
            self.flow.pause_reading()

    def _malformed(self) -> None:
        if self._refusal is not None:
            self._tell_refusal(self._refusal)
        elif self._stage is WHOLE:  # a good message, and junk behind it
            self._surplus, self._keep = True, False
            if self._endpoint is not None:
                self._begin()
        elif self._stage is BODY and self._endpoint is None:
            self.transport.close()  # the framework may have begun to answer
        else:
            self._tell_refusal(InvalidRequest("The request is not valid HTTP/1.1."))

    def _linger(self) -> None:
        """The answer is given, and the connection ends: drop what the client sent, or still sends, behind its request."""
        self._lingering, self._stage, self._endpoint, self._ahead = True, IDLE, None, b""
        self.flow.resume_reading()
        self._end_sending()

    def _tell_refusal(self, error: GatewayError) -> None:
        """Answer before the request is whole, then close in a way that lets the client read it."""
        if self._lingering:
            return
        self._lingering, self._keep = True, False
        self._drop_body()
        if self._endpoint is not None:
            self.datapath.recorder.finished("other", self._endpoint.path, error.status, 0.0, None)
        body = error.body()
        cors = self.datapath.cors
        headers = error_headers(error) + (cors.for_fields(self.headers) if cors is not None else [])
        self.start(error.status, headers, len(body), body, True)
        self._end_sending()

    def _end_sending(self) -> None:
        """Closing with bytes of the client unread would reset the connection, and the client could not read its answer."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    # sink

    def start(self, status: int, headers: Headers, length: int | None, body: bytes, end: bool) -> None:
        parts = _head_parts(status, headers)
        self._chunking = self._endless = False
        if status in _BODYLESS:
            body = b""
        elif length is not None or end:
            parts.append(b"content-length: %d\r\n" % (len(body) if length is None else length))
        elif self.verbatim:
            self._chunking = True
            parts.append(b"transfer-encoding: chunked\r\n")
        else:  # HTTP/1.0: the body ends with the connection
            self._keep, self._endless = False, True
        parts.append(b"\r\n" if self._keep else b"connection: close\r\n\r\n")
        parts.append(_framed(body, end) if self._chunking else body)
        self.transport.write(b"".join(parts))

    def start_verbatim(self, status: int, headers: Headers, chunks: bytes) -> Relay:
        parts = _head_parts(status, headers)
        self._chunking, self._endless = True, False
        parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n" if self._keep else b"connection: close\r\n\r\n")
        parts.append(chunks)
        write: Relay = self.transport.write
        write(b"".join(parts))
        return write

    def send(self, body: bytes, end: bool) -> None:
        self.transport.write(_framed(body, end) if self._chunking else body)

    def interrupt(self, event: bytes) -> None:
        self.transport.write(_framed(event, False) if self._chunking else event)
        self._close()

    def cut(self) -> None:
        """Close without an end. Where only the end of the connection would end the answer, a reset tells it was cut."""
        self._close(abort=self._endless)

    def finish(self) -> None:
        self.exchange = None
        self.server_state.total_requests += 1
        if self._keep:
            self._next()
        elif not self.transport.is_closing():
            self._linger()

    def _close(self, abort: bool = False) -> None:
        self.exchange = None
        self._endpoint = None
        if abort:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()
            self.loop.call_later(FLUSH, self.transport.abort)


def _head_parts(status: int, headers: Headers) -> list[bytes]:
    parts = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    return parts


def _framed(body: bytes, end: bool) -> bytes:
    if not body:
        return b"0\r\n\r\n" if end else b""
    return b"%x\r\n%b\r\n%b" % (len(body), body, b"0\r\n\r\n" if end else b"")


def _head_too_large() -> GatewayError:
    return HeadersTooLarge(f"The head of the request is larger than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} fields.")


def protocol_class(path: DataPath) -> type[InferenceProtocol]:
    """A protocol class for uvicorn's `http` setting that is bound to one data path."""

    class BoundProtocol(InferenceProtocol):
        datapath = path

    return BoundProtocol
