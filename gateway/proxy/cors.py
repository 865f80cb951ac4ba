"""Cross-origin answers for browsers: which headers an answer gets for the Origin that asked.

The answer to the question beforehand (OPTIONS) is Starlette's; these headers are for the data path, whose answers never
pass a middleware. What replicas say about origins is dropped in any case: they stand behind the gateway.
"""

import re
from collections.abc import Collection

from gateway.proxy.headers import Headers

EXPOSED = ("x-request-id", "x-lora-gateway-replica", "x-lora-gateway-revision", "retry-after")
MAX_AGE = 600  # seconds for which a browser keeps the answer to OPTIONS
_ORIGIN = re.compile(rb"(?:^|\n)origin: ?([^\r\n]*)")


class Cors:
    """For the chosen origins; `*` is all."""

    def __init__(self, origins: Collection[str]) -> None:
        self.origins = tuple(origins)
        self._known = frozenset(origin.encode() for origin in origins)
        self._exposed = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())

    def __repr__(self) -> str:
        return f"<Cors {', '.join(self.origins)}>"

    def headers(self, origin: bytes) -> Headers:
        """What an answer to this origin carries; empty when there is none or it is not a chosen one."""
        if b"*" in self._known:
            return [(b"access-control-allow-origin", b"*"), self._exposed] if origin else []
        varies = (b"vary", b"Origin")
        if origin not in self._known:
            return [varies]
        return [(b"access-control-allow-origin", origin), self._exposed, varies]

    def for_lines(self, lines: bytes) -> Headers:
        """The same for the header lines of a request."""
        match = _ORIGIN.search(lines)
        return self.headers(match[1].strip() if match else b"")

    def for_fields(self, fields: Headers) -> Headers:
        """The same for header fields that were not made into lines."""
        return self.headers(next((value for name, value in fields if name == b"origin"), b""))
