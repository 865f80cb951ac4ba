"""GET /admin/explain?model=NAME[&session=ID]: what would happen to a request for NAME, and why, as one JSON document.

As a request for an unknown name does, it first has the directory looked at (shared, at most twice a second).
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.explain import Explanation, explain
from gateway.core.registry import Registry

MAX_NAME = 1024  # characters
Refresh = Callable[[str], Awaitable[None]]


async def explained(registry: Registry, refresh: Refresh, asked: Mapping[str, str], limit: int) -> dict[str, Any]:
    """The document for the query `asked`; `limit` as in `core.explain`. Raises InvalidRequest for what is too long."""
    model, session = asked.get("model", ""), asked.get("session", "")
    for name, text in (("model", model), ("session", session)):
        if len(text) > MAX_NAME:
            raise InvalidRequest(f"'{name}' may have {MAX_NAME} characters.", param=name)

    def now() -> Explanation:
        return explain(registry, model, now=time.monotonic(), limit=limit, session=session.encode("utf-8", "replace"))

    told = now()
    if told.error is not None and told.error.code == "model_not_found":
        await refresh(model)
        told = now()
    document: dict[str, Any] = msgspec.to_builtins(told)
    return document
