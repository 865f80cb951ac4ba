"""The default adapter of the data path: uvicorn's HTTP protocol, which answers the inference endpoints itself.

On the fast path nothing is awaited and no task is made: parse, begin an exchange, and the replica's bytes go straight to
this transport. Everything that is no inference request falls through to uvicorn and the ASGI app. While an answer runs,
bytes that the client sends ahead are kept, a little of them; two requests in one read are answered one, then closed. A
client that closes its sending side counts as gone, as it does for vLLM: closing is how one cancels.
"""

from time import monotonic
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.core.errors import GatewayError, InvalidRequest
from gateway.proxy.datapath import DataPath
from gateway.proxy.exchange import Exchange, error_headers
from gateway.proxy.headers import MAX_HEAD_BYTES, MAX_HEADERS, Headers, HeadersTooLarge, RequestHead, too_large
from gateway.proxy.request import Request
from gateway.proxy.routes import Endpoint, find
from gateway.proxy.upstream import Relay

AHEAD = 65536  # bytes that a client may send before it has its answer
LINGER = 2.0  # seconds that a refused client has to read the answer before it is cut
BODYLESS = frozenset((204, 304))


class InferenceProtocol(HttpToolsProtocol):
    """One client connection; also the sink of its exchanges."""

    datapath: ClassVar[DataPath]
    verbatim = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._exchange: Exchange | None = None
        self._endpoint: Endpoint | None = None  # of the request that is being read
        self._head: RequestHead | None = None
        self._parts: list[bytes] = []
        self._size = 0  # of the parts
        self._in_head = True
        self._head_bytes = 0
        self._ahead = b""
        self._feeding = self._ignoring = self._chunked = self._endless = False
        self._keep = True
        self._heard = monotonic()

    # transport

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.datapath.clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.datapath.clients.discard(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
            self.transport.abort()

    def pause_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()
        super().resume_writing()

    def shutdown(self) -> None:
        if self._exchange is not None:
            self._keep = False
        else:
            super().shutdown()

    def tick(self, now: float) -> None:
        """Once a second: close a connection on which nothing has happened for long."""
        busy = self._exchange is not None or (self.cycle is not None and not self.cycle.response_complete)
        if not busy and now - self._heard > self.timeout_keep_alive:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._ignoring:
            return
        if self._exchange is not None:
            self._ahead += data
            if len(self._ahead) > AHEAD:
                self.transport.pause_reading()
            return
        self._unset_keepalive_if_required()
        self._heard = monotonic()
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        self._feeding = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # not spoken here; a request that offers it is answered as it is
            self._keep = False
        except httptools.HttpParserError as error:
            self._refuse_malformed(error)
        finally:
            self._feeding = False
        if self._in_head and not self._ignoring:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_request(_too_large_head())

    # parser

    def on_message_begin(self) -> None:
        if self._exchange is not None or not self._keep or (self.cycle and not self.cycle.response_complete):
            self._overrun()
            return
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._endpoint, self._in_head, self._head_bytes = None, True, 0

    def _overrun(self) -> None:
        """A request behind one that has no answer yet, in one read: it is not taken, and the connection ends."""
        self._keep, self._ignoring = False, True
        if self._exchange is None and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_url(self, url: bytes) -> None:
        if not self._ignoring:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ignoring or not self._in_head:
            return
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refuse_request(_too_large_head())

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._ignoring:
            return
        parser = self.parser
        if parser.get_method() != b"POST" or (endpoint := find(self.url)) is None:
            self._fall_through()
            return
        head = self._head = RequestHead(self.headers, self.datapath.withheld)
        self._endpoint, self._parts, self._size = endpoint, [], 0
        modern = parser.get_http_version() == "1.1"
        self.verbatim, self._keep = modern, modern and parser.should_keep_alive()
        error = head.check(needs_host=modern, max_body_bytes=self.datapath.limits.max_body_bytes)
        if error is not None:
            self._refuse_request(error)
        elif head.expects_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _fall_through(self) -> None:
        """No inference request: uvicorn's own way."""
        if not self.url.startswith(b"/"):
            self._refuse_request(InvalidRequest("The request target must be a path."))
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._ignoring:
            return
        if self._endpoint is None:
            super().on_body(body)
            return
        self._parts.append(body)
        self._size += len(body)
        limit = self.datapath.limits.max_body_bytes
        if limit and self._size > limit:
            self._refuse_request(too_large(limit))

    def on_message_complete(self) -> None:
        if self._ignoring:
            return
        endpoint, head = self._endpoint, self._head
        if endpoint is None or head is None:
            super().on_message_complete()
            return
        parts, self._parts = self._parts, []
        self._endpoint = self._head = None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        exchange = self._exchange = Exchange(self.datapath, Request(endpoint, self.url, head, body), self)
        exchange.begin()

    # refusals before there is an exchange

    def _refuse_malformed(self, error: httptools.HttpParserError) -> None:
        if self._exchange is not None:
            self._keep, self._ignoring = False, True
        elif not self._ignoring:
            self._refuse_request(InvalidRequest(f"The request is no valid HTTP: {error}."))

    def _refuse_request(self, error: GatewayError) -> None:
        """Answer at once and take nothing more; the client has a moment to read the answer before it is cut."""
        self._keep, self._ignoring = False, True
        headers = error_headers(error)
        if self._head is not None:
            headers.append((b"x-request-id", self._head.request_id))
        body = error.body()
        self._parts = []
        self.start(error.status, headers, len(body), body, True)
        endpoint = self._endpoint.path if self._endpoint is not None else "other"
        self.datapath.recorder.finished("other", endpoint, error.status, 0.0, None)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.abort)

    # sink

    def start(self, status: int, headers: Headers, length: int | None, body: bytes, end: bool) -> None:
        if length is None and end:
            length = len(body)
        parts = _head_lines(status, headers)
        self._chunked = self._endless = False
        if length is not None:
            if status not in BODYLESS:
                parts.append(b"content-length: %d\r\n" % length)
        elif self.verbatim:
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        else:  # HTTP/1.0: the body ends with the connection
            self._keep, self._endless = False, True
        parts.append(b"\r\n" if self._keep else b"connection: close\r\n\r\n")
        if self._chunked:
            if body:
                parts += (b"%x\r\n" % len(body), body, b"\r\n")
        else:
            parts.append(body)
        self.transport.write(b"".join(parts))

    def start_verbatim(self, status: int, headers: Headers, chunks: bytes) -> Relay:
        parts = _head_lines(status, headers)
        self._chunked, self._endless = True, False
        parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n" if self._keep else b"connection: close\r\n\r\n")
        parts.append(chunks)
        self.transport.write(b"".join(parts))
        return self.transport.write

    def send(self, body: bytes, end: bool) -> None:
        if not self._chunked:
            self.transport.write(body)
        elif end:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
            self.transport.write(last)
        else:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def interrupt(self, event: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)
        self.cut()

    def cut(self) -> None:
        """What was written still goes out, but no end: the client can tell that this is not the whole answer."""
        self._exchange, self._ignoring = None, True
        if self._endless:
            self.transport.abort()
        else:
            self.transport.close()

    def finish(self) -> None:
        self._exchange = None
        self.server_state.total_requests += 1
        if not self._keep or self.transport.is_closing():
            self._ignoring = True
            self.transport.close()
            return
        self._heard = monotonic()
        if self._ahead:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """The bytes that came before the last answer was given."""
        if self._exchange is None and not self.transport.is_closing():
            ahead, self._ahead = self._ahead, b""
            self.transport.resume_reading()
            self.data_received(ahead)


def _head_lines(status: int, headers: Headers) -> list[bytes]:
    parts = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    return parts


def _too_large_head() -> GatewayError:
    return HeadersTooLarge(f"The request's head is larger than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} fields.")


def protocol_class(path: DataPath) -> type[InferenceProtocol]:
    """A protocol class for uvicorn's `http` setting that is bound to one data path."""

    class BoundProtocol(InferenceProtocol):
        datapath = path

    return BoundProtocol
