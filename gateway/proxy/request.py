"""A whole request of a client, and how it is written to a replica."""

import re
from collections.abc import Iterator

from gateway.core.openai import read_model, read_user
from gateway.proxy.headers import RequestHead
from gateway.proxy.multipart import Form
from gateway.proxy.rewrite import replace_model
from gateway.proxy.routes import Endpoint
from gateway.proxy.upstream import Pool

_TRACE = re.compile(rb"(?:(?<=\n)|^)trace(?:parent|state):[^\n]*\n")
_SESSION = re.compile(rb"(?:^|\n)x-session-id:([^\r\n]*)")


class Request:
    """Kept until the answer begins: it may have to be written to another replica. The body is JSON, or a finished form."""

    __slots__ = ("_body", "_form", "endpoint", "head", "target")

    def __init__(self, endpoint: Endpoint, target: bytes, head: RequestHead, body: bytes | Form) -> None:
        self.endpoint, self.target, self.head = endpoint, target, head
        self._form = None if isinstance(body, bytes) else body
        self._body = body if isinstance(body, bytes) else b""

    def read_model(self) -> str | None:
        """The model that the body names; raises InvalidRequest."""
        return read_model(self._body) if self._form is None else self._form.read_model()

    def session(self) -> bytes:
        """What the client says its session is: `x-session-id`, else `user` in the body; empty when it says nothing."""
        match = _SESSION.search(self.head.lines)
        if match:
            return match[1].strip()
        return b"" if self._form is not None else read_user(self._body).encode(errors="replace")

    def compose(
        self, pool: Pool, served_name: str, model: str | None, own: bytes, *, traced: bool = False
    ) -> tuple[bytes, bytes | Iterator[bytes]]:
        """Head and body for the replica; a large form's is in pieces.

        `model` is the client's name for what is served as `served_name`.
        `own` are header lines of the gateway; `traced`: the trace's are among them, in place of the client's.
        """
        head = self.head
        renamed = model is not None and model != served_name
        body: bytes | Iterator[bytes]
        if self._form is not None:
            length, body = self._form.body(served_name if renamed else None)
        else:
            body = replace_model(self._body, served_name) if renamed else self._body
            length = len(body)
        parts = [
            b"POST ",
            pool.prefix,
            self.target,
            b" HTTP/1.1\r\nhost: ",
            pool.authority,
            b"\r\ncontent-length: %d\r\nx-request-id: " % length,
            head.request_id,
            b"\r\n",
            _TRACE.sub(b"", head.lines) if traced else head.lines,
        ]
        if own:
            parts.append(own)
        if head.accept_encoding and not renamed:  # else the name in the answer could not be found
            parts += (b"accept-encoding: ", head.accept_encoding, b"\r\n")
        parts.append(b"\r\n")
        return b"".join(parts), body
