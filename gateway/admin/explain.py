"""GET /admin/explain?model=NAME: what would happen to a request for NAME, and why, as one JSON document.

As a request for an unknown name does, it first has the directory looked at (shared, at most twice a second).
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.explain import explain
from gateway.core.registry import Registry

MAX_NAME = 1024  # characters
Refresh = Callable[[str], Awaitable[None]]


async def explained(registry: Registry, refresh: Refresh, model: str, limit: int) -> dict[str, Any]:
    """The document; `limit` as in `core.explain`. Raises InvalidRequest for a name that nothing could have."""
    if len(model) > MAX_NAME:
        raise InvalidRequest(f"A model's name may have {MAX_NAME} characters.", param="model")
    told = explain(registry, model, now=time.monotonic(), limit=limit)
    if told.error is not None and told.error.code == "model_not_found":
        await refresh(model)
        told = explain(registry, model, now=time.monotonic(), limit=limit)
    document: dict[str, Any] = msgspec.to_builtins(told)
    return document
