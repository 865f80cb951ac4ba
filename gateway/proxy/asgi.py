"""The portable adapter: the inference endpoints as a raw ASGI app. Slower than the protocol, same code behind it.

It is the oracle in tests, and what answers when the gateway's app runs under another server. ASGI has no way to cut an
answer: returning before its end makes the server close the connection.
"""

import asyncio
from collections import deque
from typing import Any

from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gateway.core.errors import GatewayError, NotFound
from gateway.proxy.datapath import DataPath
from gateway.proxy.exchange import Exchange
from gateway.proxy.headers import Headers, RequestHead, too_large
from gateway.proxy.request import Request
from gateway.proxy.routes import ENDPOINTS, find
from gateway.proxy.upstream import Relay

QUEUED = 65536  # bytes of an answer that wait for the client


def inference_routes(path: DataPath) -> list[Route]:
    """One route for each endpoint of the allow-list."""
    app = InferenceEndpoint(path)
    return [Route(endpoint.path, app, methods=["POST"]) for endpoint in ENDPOINTS]


class InferenceEndpoint:
    """Raises GatewayError for what is refused before an exchange begins: the app's exception table answers."""

    def __init__(self, path: DataPath) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = find(scope.get("raw_path") or scope["path"].encode())
        if endpoint is None:  # another spelling of a known path
            raise NotFound("There is no such endpoint.")
        head = RequestHead(scope["headers"], self._path.withheld)
        error = head.check(needs_host=False, max_body_bytes=self._path.limits.max_body_bytes)
        if error is not None:
            raise error
        body = await self._read(receive)
        if body is None:
            return
        target = endpoint.path.encode() + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        sink = AsgiSink()
        exchange = sink.exchange = Exchange(self._path, Request(endpoint, target, head, body), sink)
        exchange.begin()
        leaving = asyncio.create_task(_watch(receive, exchange, sink))
        try:
            await sink.write_to(send)
        finally:
            leaving.cancel()
            exchange.client_gone()  # nothing, when the answer was given

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None when the client has left."""
        parts, size, limit = [], 0, self._path.limits.max_body_bytes
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if limit and size > limit:
                raise too_large(limit)
            if not message.get("more_body"):
                return b"".join(parts)


async def _watch(receive: Receive, exchange: Exchange, sink: "AsgiSink") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.client_gone()
    sink.cut()


class AsgiSink:
    """Messages in line for the client."""

    verbatim = False
    exchange: Exchange

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._news = asyncio.Event()
        self._queued = 0
        self._over = False

    async def write_to(self, send: Send) -> None:
        """Send what comes until the answer ends or is cut."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                self._queued -= len(message.get("body", b""))
                await send(message)
                if self._queued <= QUEUED:
                    self.exchange.resume()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()

    def _put(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self._queued += len(message.get("body", b""))
        if self._queued > QUEUED:
            self.exchange.pause()
        self._news.set()

    def start(self, status: int, headers: Headers, length: int | None, body: bytes, end: bool) -> None:
        if length is None and end:
            length = len(body)
        framing = [] if length is None else [(b"content-length", b"%d" % length)]
        self._put({"type": "http.response.start", "status": status, "headers": [*headers, *framing]})
        if body or end:
            self.send(body, end)

    def start_verbatim(self, status: int, headers: Headers, chunks: bytes) -> Relay:
        raise GatewayError("An ASGI answer has no framing of its own.")

    def send(self, body: bytes, end: bool) -> None:
        self._put({"type": "http.response.body", "body": body, "more_body": not end})

    def interrupt(self, event: bytes) -> None:
        self.send(event, False)
        self.cut()

    def cut(self) -> None:
        self._over = True
        self._news.set()

    def finish(self) -> None:
        self._over = True
        self._news.set()
