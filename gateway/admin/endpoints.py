"""The operations endpoints: liveness, readiness, metrics, status, events, and the actions of an operator.

Everything that is no inference request ends here, so this is also where an unknown path gets its 404. Actions are
closed on a gateway that listens on more than loopback unless a key is set; with a key every `/admin` call needs it.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.admin.status import Status
from gateway.core.errors import AdminForbidden, GatewayError, InvalidApiKey, MethodNotAllowed, NoReplica, NotFound
from gateway.core.events import EventLog
from gateway.core.listing import model_list
from gateway.core.registry import Registry
from gateway.metrics import Metrics

KEEP_ALIVE = 15.0  # seconds between comments on a quiet event stream


class Actions(Protocol):
    """What an operator may tell the control loop; the names are known ones, False means that there is none such."""

    async def scan(self) -> None: ...
    def load(self, adapter: str) -> bool: ...
    def retry(self, adapter: str) -> bool: ...
    def drain(self, replica: str, on: bool) -> bool: ...


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use `/admin`."""

    key: str | None
    loopback_only: bool

    def check(self, request: Request, *, action: bool) -> None:
        """Raises what keeps the caller out."""
        if self.key is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            given = given or request.headers.get("x-api-key", "")
            if not hmac.compare_digest(given.encode(), self.key.encode()):
                raise InvalidApiKey("This needs the admin key: Authorization: Bearer KEY.")
        elif action and not self.loopback_only:
            raise AdminForbidden(
                "Actions are closed: the gateway listens on more than loopback and has no --admin-api-key."
            )
        origin = request.headers.get("origin")
        if action and origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise AdminForbidden("Actions are closed to pages of another origin.")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The handlers, and what they read and tell."""

    registry: Registry
    status: Status
    metrics: Metrics
    events: EventLog
    actions: Actions
    access: Access
    version: str

    def app(self) -> Starlette:
        routes = [
            Route("/livez", _plain(b"ok")),
            Route("/healthz", _plain(b"ok")),
            Route("/readyz", self.readyz),
            Route("/health", self.readyz),
            Route("/version", self.get_version),
            Route("/metrics", self.get_metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/admin/status", self._guarded(self.get_status)),
            Route("/admin/adapters", self._guarded(self.adapters)),
            Route("/admin/adapters/{name:path}/load", self._guarded(self.load, action=True), methods=["POST"]),
            Route("/admin/adapters/{name:path}/retry", self._guarded(self.retry, action=True), methods=["POST"]),
            Route("/admin/adapters/{name:path}", self._guarded(self.adapter)),
            Route("/admin/replicas", self._guarded(self.replicas)),
            Route("/admin/replicas/{id}/drain", self._guarded(self.drain, action=True), methods=["POST"]),
            Route("/admin/replicas/{id}/undrain", self._guarded(self.undrain, action=True), methods=["POST"]),
            Route("/admin/scan", self._guarded(self.scan, action=True), methods=["POST"]),
            Route("/admin/events", self._guarded(self.event_stream)),
        ]
        errors = {GatewayError: _gateway_error, HTTPException: _http_error, Exception: _unforeseen}
        return Starlette(routes=routes, exception_handlers=errors)  # type: ignore[arg-type]

    def _guarded(self, handler: "Handler", *, action: bool = False) -> "Handler":
        async def guarded(request: Request) -> Response:
            self.access.check(request, action=action)
            return await handler(request)

        return guarded

    async def readyz(self, request: Request) -> Response:
        readiness = self.status.readiness()
        return _json({"ready": readiness.ready, "reason": readiness.reason}, 200 if readiness.ready else 503)

    async def get_version(self, request: Request) -> Response:
        return _json({"version": self.version})

    async def get_metrics(self, request: Request) -> Response:
        return Response(self.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": self._models()})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for row in self._models():
            if row["id"] == name:
                return _json(row)
        raise NotFound(f"The model '{name[:200]}' does not exist.", param="model")

    def _models(self) -> list[dict[str, Any]]:
        if not self.registry.observed:
            raise NoReplica("No replica has told its models yet.")
        return model_list(self.registry)

    async def get_status(self, request: Request) -> Response:
        return _json(self.status.document())

    async def adapters(self, request: Request) -> Response:
        return _json({"adapters": self.status.adapters()})

    async def adapter(self, request: Request) -> Response:
        name = request.path_params["name"]
        for row in self.status.adapters():
            if row["name"] == name:
                return _json(row)
        raise NotFound(f"There is no adapter '{name[:200]}'.")

    async def replicas(self, request: Request) -> Response:
        return _json({"replicas": self.status.replicas()})

    async def load(self, request: Request) -> Response:
        return _done(self.actions.load(request.path_params["name"]), "adapter", request.path_params["name"])

    async def retry(self, request: Request) -> Response:
        return _done(self.actions.retry(request.path_params["name"]), "adapter", request.path_params["name"])

    async def drain(self, request: Request) -> Response:
        return _done(self.actions.drain(request.path_params["id"], True), "replica", request.path_params["id"])

    async def undrain(self, request: Request) -> Response:
        return _done(self.actions.drain(request.path_params["id"], False), "replica", request.path_params["id"])

    async def scan(self, request: Request) -> Response:
        await self.actions.scan()
        return _json({"ok": True})

    async def event_stream(self, request: Request) -> Response:
        try:
            after = int(request.headers.get("last-event-id", "0"))
        except ValueError:
            after = 0
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events_after(after), media_type="text/event-stream", headers=headers)

    async def _events_after(self, number: int) -> AsyncIterator[bytes]:
        yield b": events of the gateway\n\n"
        while True:
            news = self.events.since(number)
            for event in news:
                number = event.number
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                    number,
                    event.kind.encode(),
                    msgspec.json.encode(event.document()),
                )
            if not news:
                yield b": still here\n\n"
            await self.events.added.wait(KEEP_ALIVE)


Handler = Callable[[Request], Awaitable[Response]]


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def _plain(text: bytes) -> Handler:
    async def answer(request: Request) -> Response:
        return Response(text, media_type="text/plain")

    return answer


def _done(known: bool, kind: str, name: str) -> Response:
    if not known:
        raise NotFound(f"There is no {kind} '{name[:200]}'.")
    return _json({"ok": True})


async def _gateway_error(request: Request, error: GatewayError) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return Response(error.body(), error.status, headers, media_type="application/json")


async def _http_error(request: Request, error: HTTPException) -> Response:
    path = request.url.path[:200]
    if error.status_code == 405:
        return await _gateway_error(request, MethodNotAllowed(f"{request.method} is not allowed for {path}."))
    return await _gateway_error(request, NotFound(f"There is no endpoint {path}."))


async def _unforeseen(request: Request, error: Exception) -> Response:
    return await _gateway_error(request, GatewayError("An unforeseen error; the gateway's log has it."))
