"""What was asked of one simulated replica, so that a test can count it and see how each call ended."""

import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from replica.sim.http import Request

CONTROL_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_COUNTED_ONLY = ("/health", "/ping", "/metrics", "/v1/models", "/version", "/load")
_KEPT = 20_000


@dataclass(eq=False, slots=True)
class Call:
    """One request. Times are wall clock; `ended_at` is None while it runs, `left` when the client went first."""

    method: str
    path: str
    headers: dict[str, str]
    body_sha256: str
    body_bytes: int
    at: float = field(default_factory=time.time)
    body: Any = None  # of JSON bodies up to a megabyte
    model: str | None = None
    status: int | None = None
    chunks: int = 0
    ended_at: float | None = None
    left: bool = False
    cut: bool = False

    def end(self, *, status: int | None = None, left: bool = False, cut: bool = False) -> None:
        self.status = status if status is not None else self.status
        self.left, self.cut = self.left or left, self.cut or cut
        self.ended_at = time.time()


class Journal:
    """Health probes, model lists and metrics are counted; everything else is kept, the oldest forgotten first."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque(maxlen=_KEPT)
        self.counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Journal calls={len(self.calls)} counts={dict(self.counts)}>"

    def open(self, request: Request) -> Call:
        self.counts[f"{request.method} {request.path}"] += 1
        digest = hashlib.sha256(request.body).hexdigest()
        call = Call(request.method, request.path, dict(request.headers), digest, len(request.body))
        if len(request.body) <= 1 << 20:
            call.body = _parsed(request.body)
        if request.path not in _COUNTED_ONLY:
            self.calls.append(call)
        return call

    def control(self, path: str) -> Iterator[Call]:
        return (call for call in self.calls if call.path == path)

    def loads(self, name: str | None = None) -> list[Call]:
        """Load calls, of one served name if given."""
        return _of_name(self.control(CONTROL_PATHS[0]), name)

    def unloads(self, name: str | None = None) -> list[Call]:
        return _of_name(self.control(CONTROL_PATHS[1]), name)

    def inference(self, model: str | None = None) -> list[Call]:
        calls = (call for call in self.calls if call.path not in CONTROL_PATHS and call.method == "POST")
        return [call for call in calls if model is None or call.model == model]

    def clear(self) -> None:
        self.calls.clear()
        self.counts.clear()

    def document(self) -> dict[str, Any]:
        fields = Call.__dataclass_fields__
        calls = [{name: getattr(call, name) for name in fields} for call in self.calls]
        for entry in calls:
            if entry["path"] not in CONTROL_PATHS:
                del entry["body"]
        return {"counts": self.counts, "calls": calls}


def _of_name(calls: Iterator[Call], name: str | None) -> list[Call]:
    named = (call for call in calls if isinstance(call.body, dict))
    return [call for call in named if name is None or call.body.get("lora_name") == name]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
