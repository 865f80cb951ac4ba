"""The portable adapter: the inference endpoints as a raw ASGI app, for any server; slower, with the same code behind it.

The answer comes in through a sink that is called synchronously and goes out through `send`, which may wait: in between
lies a bounded queue. A second task waits for the client to leave. ASGI has no way to cut an answer: returning before its
end makes the server close the connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gateway.core.errors import GatewayError, InvalidRequest, NotFound
from gateway.proxy.cors import EXPOSED, MAX_AGE
from gateway.proxy.datapath import DataPath
from gateway.proxy.exchange import Exchange, error_headers
from gateway.proxy.headers import MAX_HEADERS, Headers, HeadersTooLarge, RequestHead, too_large
from gateway.proxy.multipart import Form
from gateway.proxy.request import Request
from gateway.proxy.routes import ENDPOINTS, Endpoint, find
from gateway.proxy.upstream import Relay

HIGH_WATER = 65536  # bytes of an answer that wait for the client


class ClientGoneError(Exception):
    """The client left before its request was whole."""


def inference_routes(path: DataPath) -> list[Route]:
    """One route for each endpoint of the allow-list."""
    app = InferenceEndpoint(path)
    routes = [Route(endpoint.path, app, methods=["POST"]) for endpoint in ENDPOINTS]
    if path.cors is not None:  # the question of a browser before it posts
        asked = [answers_browsers(path.cors.origins, "POST")]
        routes += [Route(endpoint.path, _no_question, methods=["OPTIONS"], middleware=asked) for endpoint in ENDPOINTS]
    return routes


def answers_browsers(origins: Sequence[str], method: str) -> Middleware:
    """Starlette's answer to OPTIONS, and the headers of other answers below it."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=[method],
        allow_headers=["*"],
        expose_headers=EXPOSED,
        max_age=MAX_AGE,
    )


async def _no_question(request: StarletteRequest) -> Response:
    raise HTTPException(405)


class InferenceEndpoint:
    """Answers every path of the allow-list."""

    def __init__(self, path: DataPath) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope.get("query_string", b"")
        target = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
        endpoint = find(target)
        if endpoint is None:  # another spelling of a known path
            await _refuse(send, NotFound("There is no such endpoint."))
            return
        try:
            request = await self._read(endpoint, target, scope, receive)
        except ClientGoneError:
            self._path.recorder.client_left("body")
            return
        except GatewayError as error:
            self._path.recorder.finished("other", endpoint.path, error.status, 0.0, None)
            cors = self._path.cors
            await _refuse(send, error, cors.for_fields(scope["headers"]) if cors is not None else [])
            return
        sink = AsgiSink(whole_only=scope["http_version"] == "1.0")
        exchange = sink.exchange = Exchange(self._path, request, sink)
        watcher = asyncio.create_task(_watch(receive, exchange, sink))
        try:
            exchange.begin()
            await sink.pump(send)
        finally:
            watcher.cancel()
            exchange.client_gone()  # nothing, when the answer was given

    async def _read(self, endpoint: Endpoint, target: bytes, scope: Scope, receive: Receive) -> Request:
        headers: Headers = list(scope["headers"])
        if len(headers) > MAX_HEADERS:
            raise HeadersTooLarge(f"The request has more than {MAX_HEADERS} header fields.")
        if scope["http_version"] in ("0.9", "2.0"):  # on a text connection: of HTTP/2 proper, ASGI says "2"
            raise InvalidRequest("The only versions of HTTP understood are 1.1 and 1.0.")
        head = RequestHead(headers, self._path.withheld)
        limit = self._path.limits.max_body_bytes
        if (error := head.check(needs_host=scope["http_version"] == "1.1", max_body_bytes=limit)) is not None:
            raise error
        if not endpoint.multipart:
            parts = [part async for part in _parts(receive, limit)]
            return Request(endpoint, target, head, parts[0] if len(parts) == 1 else b"".join(parts))
        form = Form(head.content_type)
        try:
            async for part in _parts(receive, limit):
                form.feed(part)
        except (ClientGoneError, GatewayError):
            form.close()
            raise
        form.finish()
        return Request(endpoint, target, head, form)


async def _parts(receive: Receive, limit: int) -> AsyncIterator[bytes]:
    """The body as it comes; raises BodyTooLarge above `limit` bytes, ClientGoneError when the client leaves."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        size += len(part)
        if limit and size > limit:
            raise too_large(limit)
        more = message.get("more_body", False)
        yield part


class AsgiSink:
    """The queue between an exchange and `send`. `whole_only`: the server cannot frame a stream for this client."""

    verbatim = False

    def __init__(self, *, whole_only: bool = False) -> None:
        self.exchange: Exchange | None = None
        self._messages: deque[Message] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._over = False
        self._whole_only = whole_only

    async def pump(self, send: Send) -> None:
        """Send what comes until the answer is over or cut."""
        while True:
            while self._messages and (self._over or not self._whole_only):
                message = self._messages.popleft()
                await send(message)
                self._size -= len(message.get("body", b""))
                if self._size <= HIGH_WATER // 4 and self.exchange is not None:
                    self.exchange.resume()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()

    def leave(self) -> None:
        """Nobody reads any more."""
        self._messages.clear()
        self.cut()

    def start(self, status: int, headers: Headers, length: int | None, body: bytes, end: bool) -> None:
        fields = list(headers)
        if status not in (204, 304) and (length is not None or end):
            fields.append((b"content-length", b"%d" % (len(body) if length is None else length)))
        self._put({"type": "http.response.start", "status": status, "headers": fields})
        if body or end:
            self.send(body, end)

    def start_verbatim(self, status: int, headers: Headers, chunks: bytes) -> Relay:
        raise NotImplementedError("ASGI servers frame the body themselves")

    def send(self, body: bytes, end: bool) -> None:
        self._put({"type": "http.response.body", "body": body, "more_body": not end})

    def interrupt(self, event: bytes) -> None:
        self.send(event, False)
        self.cut()

    def cut(self) -> None:
        self._over = True
        self._news.set()

    def finish(self) -> None:
        if self._whole_only:
            self._make_whole()
        self.cut()

    def _make_whole(self) -> None:
        """One message with its length: HTTP/1.0 knows no chunks."""
        start, *rest = self._messages
        body = b"".join(message["body"] for message in rest)
        if not any(name == b"content-length" for name, _ in start["headers"]) and start["status"] not in (204, 304):
            start["headers"].append((b"content-length", b"%d" % len(body)))
        self._messages = deque((start, {"type": "http.response.body", "body": body, "more_body": False}))

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._size += len(message.get("body", b""))
        if self._size > HIGH_WATER and not self._whole_only and self.exchange is not None:
            self.exchange.pause()
        self._news.set()


async def _watch(receive: Receive, exchange: Exchange, sink: AsgiSink) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.client_gone()
    sink.leave()


async def _refuse(send: Send, error: GatewayError, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = error.body()
    headers = [*error_headers(error), *more, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
