"""The operations endpoints: liveness, readiness, metrics, status, events, and the actions of an operator.

Everything that is no inference request ends here, so this is also where an unknown path gets its 404. Actions are
closed on a gateway that listens on more than loopback unless a key is set; with a key every `/admin` call needs it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.admin.access import Access as Access
from gateway.admin.cells import in_full, in_letters
from gateway.admin.console import console_route
from gateway.admin.event_stream import event_stream
from gateway.admin.explain import explained
from gateway.admin.status import Status
from gateway.core.adapters import Revision
from gateway.core.errors import BodyTooLarge, GatewayError, InvalidRequest, MethodNotAllowed, ModelNotFound, NoReplica, NotFound
from gateway.core.events import EventLog
from gateway.core.listing import model_list
from gateway.core.registry import Registry
from gateway.metrics import Metrics

MAX_ACTION_BODY = 4096  # bytes
SLICE = 25  # rows told at a stretch, before other work of the event loop gets its turn


class Actions(Protocol):
    """What an operator may tell the control loop; the names are known ones, False means that there is none such."""

    async def scan(self) -> None: ...
    async def refresh(self, name: str) -> None: ...  # look at the directory for a name, at most twice a second
    def load(self, adapter: str) -> bool: ...
    def retry(self, adapter: str) -> bool: ...
    async def pin(self, adapter: str, digest: str | None) -> str | None: ...  # the digest; None: no such adapter
    async def unpin(self, adapter: str) -> bool: ...
    def drain(self, replica: str, on: bool) -> bool: ...


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
    max_inflight_per_replica: int = 0  # 0: no limit
    browsers: Middleware | None = None  # lets pages of other origins read the model list

    @property
    def model_methods(self) -> list[str]:
        return ["GET", "OPTIONS"] if self.browsers is not None else ["GET"]

    @property
    def model_middleware(self) -> list[Middleware]:
        return [self.browsers] if self.browsers is not None else []

    def app(self) -> Starlette:
        routes = [
            Route("/livez", _plain(b"ok")),
            Route("/healthz", _plain(b"ok")),
            Route("/readyz", self.readyz),
            Route("/health", self.readyz),
            Route("/version", self.get_version),
            Route("/metrics", self.get_metrics),
            Route("/v1/models", self.models, methods=self.model_methods, middleware=self.model_middleware),
            Route("/v1/models/{name:path}", self.model, methods=self.model_methods, middleware=self.model_middleware),
            Route("/admin/status", self._guarded(self.get_status)),
            Route("/admin/matrix", self._guarded(self.matrix)),
            Route("/admin/adapters", self._guarded(self.adapters)),
            Route("/admin/adapters/{name:path}/load", self._guarded(self.load, action=True), methods=["POST"]),
            Route("/admin/adapters/{name:path}/retry", self._guarded(self.retry, action=True), methods=["POST"]),
            Route("/admin/adapters/{name:path}/pin", self._guarded(self.pin, action=True), methods=["POST"]),
            Route("/admin/adapters/{name:path}/unpin", self._guarded(self.unpin, action=True), methods=["POST"]),
            Route("/admin/adapters/{name:path}", self._guarded(self.adapter)),
            Route("/admin/replicas", self._guarded(self.replicas)),
            Route("/admin/replicas/{id}/drain", self._guarded(self.drain, action=True), methods=["POST"]),
            Route("/admin/replicas/{id}/undrain", self._guarded(self.undrain, action=True), methods=["POST"]),
            Route("/admin/scan", self._guarded(self.scan, action=True), methods=["POST"]),
            Route("/admin/explain", self._guarded(self.explain)),
            Route("/admin/events", self._guarded(self.event_stream)),
            console_route(),
        ]
        errors = {GatewayError: _gateway_error, HTTPException: _http_error, Exception: _unforeseen}
        app = Starlette(routes=routes, exception_handlers=errors)  # type: ignore[arg-type]
        app.router.redirect_slashes = False  # another spelling of a path is another path
        return app

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
        return Response(await self.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def models(self, request: Request) -> Response:
        _refuse_options(request)
        return _json({"object": "list", "data": self._models()})

    async def model(self, request: Request) -> Response:
        _refuse_options(request)
        name = request.path_params["name"]
        for row in self._models():
            if row["id"] == name:
                return _json(row)
        raise ModelNotFound(name)

    def _models(self) -> list[dict[str, Any]]:
        if not self.registry.observed:
            raise NoReplica("No replica has told its models yet.")
        return model_list(self.registry)

    async def get_status(self, request: Request) -> Response:
        adapters = await _gathered(self.status.adapters(in_full))
        document = {"gateway": self.status.gateway(), "adapters": adapters, "replicas": self.status.replicas()}
        return _json(document)

    async def matrix(self, request: Request) -> Response:
        """The status in a form that stays small: letters for the cells, numbers for what the replicas hold."""
        rows, replicas = self.status.adapters(in_letters), self.status.replica_counts()
        first = next(rows, None)  # the rows look at the registry now, in the same step as the replicas' order
        adapters = [] if first is None else [first, *await _gathered(rows)]
        return _json({"gateway": self.status.gateway(), "adapters": adapters, "replicas": replicas})

    async def adapters(self, request: Request) -> Response:
        return _json({"adapters": await _gathered(self.status.adapters(in_full))})

    async def adapter(self, request: Request) -> Response:
        name = request.path_params["name"]
        row = self.status.adapter(name)
        if row is None:
            raise NotFound(f"There is no adapter '{name[:200]}'.")
        return _json(row)

    async def replicas(self, request: Request) -> Response:
        return _json({"replicas": self.status.replicas()})

    async def load(self, request: Request) -> Response:
        return _done(self.actions.load(request.path_params["name"]), "adapter", request.path_params["name"])

    async def retry(self, request: Request) -> Response:
        return _done(self.actions.retry(request.path_params["name"]), "adapter", request.path_params["name"])

    async def pin(self, request: Request) -> Response:
        """The body may name the revision: `{"revision": "12 hex digits"}`; by default the current one."""
        name = request.path_params["name"]
        digest = await self.actions.pin(name, await _wanted_revision(request, name))
        if digest is None:
            raise NotFound(f"There is no adapter '{name[:200]}'.")
        return _json({"ok": True, "revision": digest})

    async def unpin(self, request: Request) -> Response:
        return _done(await self.actions.unpin(request.path_params["name"]), "adapter", request.path_params["name"])

    async def drain(self, request: Request) -> Response:
        return _done(self.actions.drain(request.path_params["id"], True), "replica", request.path_params["id"])

    async def undrain(self, request: Request) -> Response:
        return _done(self.actions.drain(request.path_params["id"], False), "replica", request.path_params["id"])

    async def scan(self, request: Request) -> Response:
        await self.actions.scan()
        return _json({"ok": True})

    async def explain(self, request: Request) -> Response:
        limit = self.max_inflight_per_replica
        return _json(await explained(self.registry, self.actions.refresh, request.query_params, limit))

    async def event_stream(self, request: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":  # a stream without a body would never end
            return Response(headers=headers, media_type="text/event-stream")
        last_id = request.headers.get("last-event-id", "")
        events = event_stream(self.events, last_id, lambda: self.status.shutting_down)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)


Handler = Callable[[Request], Awaitable[Response]]


async def _gathered(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows; the event loop gets its turn in between."""
    gathered = []
    for row in rows:
        gathered.append(row)
        if len(gathered) % SLICE == 0:
            await asyncio.sleep(0)
    return gathered


async def _wanted_revision(request: Request, name: str) -> str | None:
    """The digest that the body names, None for an empty body; also `NAME@DIGEST` is understood."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_ACTION_BODY:
            raise BodyTooLarge(f"The body may have {MAX_ACTION_BODY} bytes.")
    if not body.strip():
        return None
    try:
        digest = msgspec.json.decode(body, type=_Pin).revision
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        digest = ""
    if digest is None:
        return None
    digest = digest.removeprefix(f"{name}@")
    if Revision.parse(f"{name}@{digest}") != Revision(name, digest):
        raise InvalidRequest('The body must be empty or {"revision": "12 hex digits"}.', param="revision")
    return digest


class _Pin(msgspec.Struct):
    revision: str | None = None


def _refuse_options(request: Request) -> None:
    """OPTIONS that is no question of a browser; those are answered before."""
    if request.method == "OPTIONS":
        raise HTTPException(405, headers={"Allow": "GET, HEAD"})


def _json(document: Any, status: int = 200) -> Response:
    try:
        body = msgspec.json.encode(document)
    except UnicodeEncodeError:  # half of a surrogate pair in the words of a replica
        body = json.dumps(document).encode()
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(body, status, headers, media_type="application/json")


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
    path = request.scope["path"][:200]
    if error.status_code != 405:
        return await _gateway_error(request, NotFound(f"There is no endpoint {path}."))
    response = await _gateway_error(request, MethodNotAllowed(f"{request.method} is not allowed for {path}."))
    response.headers.update(error.headers or {})  # Allow
    return response


async def _unforeseen(request: Request, error: Exception) -> Response:
    return await _gateway_error(request, GatewayError("An unforeseen error; the gateway's log has it."))
