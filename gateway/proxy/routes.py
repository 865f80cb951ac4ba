"""The inference endpoints: an allow-list of exact paths.

Replicas have doors that clients must never reach (load, unload, sleep, `/invocations`, which takes an adapter from a
header). So a path is taken as the bytes that came: an escape, a doubled slash, a dot segment or another case is another
path, and what is not listed is not forwarded.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path that replicas answer. `named_events`: its streams carry event names, so an error is `event: error`."""

    path: str
    multipart: bool = False
    named_events: bool = False


ENDPOINTS = (
    Endpoint("/v1/chat/completions"),
    Endpoint("/v1/completions"),
    Endpoint("/v1/embeddings"),
    Endpoint("/v1/responses", named_events=True),
    Endpoint("/v1/messages", named_events=True),
    Endpoint("/v1/score"),
    Endpoint("/score"),
    Endpoint("/v1/rerank"),
    Endpoint("/v2/rerank"),
    Endpoint("/rerank"),
    Endpoint("/pooling"),
    Endpoint("/classify"),
    Endpoint("/tokenize"),
    Endpoint("/detokenize"),
    Endpoint("/v1/audio/transcriptions", multipart=True),
    Endpoint("/v1/audio/translations", multipart=True),
)

_BY_PATH = {endpoint.path.encode(): endpoint for endpoint in ENDPOINTS}


def find(target: bytes) -> Endpoint | None:
    """The endpoint of a raw request target; its query string does not matter."""
    return _BY_PATH.get(target) or (_BY_PATH.get(target.partition(b"?")[0]) if b"?" in target else None)
