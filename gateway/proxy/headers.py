"""Which header fields cross the gateway, both ways.

What belongs to one connection ends at it (RFC 9110, 7.6.1): the hop-by-hop fields and whatever `Connection` names. Framing
is made anew on each side. Never sent to a replica: what chooses an adapter past the body (vLLM obeys
`x-amzn-sagemaker-adapter-identifier`), the gateway's own fields, and the client's credentials where it keeps keys itself.
"""

import re
from random import getrandbits

from gateway.core.errors import BodyTooLarge, GatewayError, InvalidRequest, UnsupportedEncoding

MAX_HEAD_BYTES = 65536
MAX_HEADERS = 200
Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
    )
)
CREDENTIALS = frozenset((b"authorization", b"x-api-key"))
_OWN = b"x-lora-gateway-"
_NOTED = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"content-type",
    b"content-encoding",
    b"expect",
    b"accept-encoding",
    b"x-request-id",
    b"x-amzn-sagemaker-adapter-identifier",
}
_NOT_PASSED = (_OWN, b"access-control-")  # what a replica says about origins is not for the gateway's clients
_sane_id = re.compile(rb"[!-~]{1,128}").fullmatch
_ANSWER_DROPPED = (HOP_BY_HOP - {b"connection"}) | {b"content-length", b"x-request-id"}


class HeadersTooLarge(GatewayError):
    status, type, code = 431, "invalid_request_error", "headers_too_large"


class RequestHead:
    """A client's header fields, read once: the lines to send on, and what else counts."""

    __slots__ = (
        "_named_id",
        "accept_encoding",
        "chunked",
        "content_encoding",
        "content_length",
        "content_type",
        "expects_continue",
        "hosts",
        "lines",
        "request_id",
        "transfer_encodings",
    )

    def __init__(self, headers: Headers, withheld: frozenset[bytes]) -> None:
        """`withheld` are further names that are not sent on."""
        lines: list[bytes] = []  # name, colon, value, line end; four items a field
        self.hosts = self.transfer_encodings = 0
        self.content_length: int | None = None
        self.content_type = self.accept_encoding = self.request_id = b""
        self.content_encoding = b""
        self.expects_continue = self.chunked = False
        connection = b""
        for name, value in headers:
            if name in _NOTED:
                if name == b"connection":
                    connection += b"," + value
                else:
                    self._note(name, value, lines)
            elif name not in withheld and not name.startswith(_OWN):
                lines += (name, b": ", value, b"\r\n")
        if connection and connection not in (b",keep-alive", b",close"):
            lines = self._without_named(connection, lines)
        self.lines = b"".join(lines)
        self._named_id = _sane_id(self.request_id) is not None
        if not self._named_id:
            self.request_id = b"%032x" % getrandbits(128)

    def renew(self, content_length: int | None) -> None:
        """Take it for the next request of the connection, whose fields are the same but for the length of its body."""
        self.content_length = content_length
        if not self._named_id:
            self.request_id = b"%032x" % getrandbits(128)

    def _note(self, name: bytes, value: bytes, lines: list[bytes]) -> None:
        if name == b"host":
            self.hosts += 1
        elif name == b"content-length":
            self.content_length = int(value)
        elif name == b"content-type":
            self.content_type = self.content_type or value  # replicas take the first, too
            lines += (name, b": ", value, b"\r\n")
        elif name == b"accept-encoding":
            self.accept_encoding += b", " + value if self.accept_encoding else value
        elif name == b"x-request-id":
            self.request_id = value
        elif name == b"content-encoding":
            if value.strip().lower() not in (b"", b"identity"):
                self.content_encoding = value
        elif name == b"expect":
            self.expects_continue = value.lower() == b"100-continue"
        elif name == b"transfer-encoding":
            self.transfer_encodings += 1
            self.chunked = value.lower() == b"chunked"

    def _without_named(self, connection: bytes, lines: list[bytes]) -> list[bytes]:
        """The lines without the fields that `Connection` names."""
        named = {token.strip().lower() for token in connection.split(b",")}
        if b"accept-encoding" in named:
            self.accept_encoding = b""
        kept = (lines[i : i + 4] for i in range(0, len(lines), 4) if lines[i] not in named)
        return [part for field in kept for part in field]

    def check(self, *, needs_host: bool, max_body_bytes: int) -> GatewayError | None:
        """Why such a request is refused before its body is read."""
        if self.hosts > 1 or (needs_host and not self.hosts):
            return InvalidRequest("Exactly one Host header is needed.")
        if self.transfer_encodings and (not self.chunked or self.transfer_encodings > 1):
            return InvalidRequest("The only transfer coding understood is chunked.")
        if self.transfer_encodings and self.content_length is not None:
            return InvalidRequest("Content-Length and Transfer-Encoding exclude each other.")
        if self.content_encoding:
            return UnsupportedEncoding("A compressed body is not understood: send it without Content-Encoding.")
        if max_body_bytes and (self.content_length or 0) > max_body_bytes:
            return too_large(max_body_bytes)
        return None


def too_large(limit: int) -> GatewayError:
    return BodyTooLarge(f"The body is larger than the limit of {limit} bytes (--max-body-bytes).")


class AnswerHead:
    """A replica's header fields, read once: those to pass on, and how its body ends."""

    __slots__ = ("chunked", "content_length", "encoded", "headers", "json", "sse", "strange")

    def __init__(self, headers: Headers) -> None:
        self.headers: Headers = []
        self.content_length: int | None = None
        self.chunked = self.encoded = self.sse = self.json = self.strange = False
        connection = b""
        for field in headers:
            name, value = field
            if name in _ANSWER_DROPPED:
                if name == b"content-length":
                    self.content_length = int(value)
                elif name == b"transfer-encoding":
                    self.chunked = value.lower() == b"chunked"
                    self.strange |= not self.chunked
            elif name == b"connection":
                connection += b"," + value
            elif not name.startswith(_NOT_PASSED):
                self.headers.append(field)
                if name == b"content-type":
                    kind = value.lower()
                    self.sse, self.json = kind.startswith(b"text/event-stream"), b"json" in kind
                elif name == b"content-encoding":
                    self.encoded = value.strip().lower() != b"identity"
        if connection and connection not in (b",keep-alive", b",close"):
            self._drop_named(connection)

    def _drop_named(self, connection: bytes) -> None:
        named = {token.strip().lower() for token in connection.split(b",")}
        self.headers = [field for field in self.headers if field[0] not in named]
