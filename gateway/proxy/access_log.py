"""One line for each request, when it is asked for. Names in it are known ones; what a client sent is never written."""

from typing import NamedTuple

import structlog

from gateway.proxy.answer import Sink
from gateway.proxy.headers import Headers
from gateway.proxy.upstream import Relay

log = structlog.get_logger("gateway.access")


class Entry(NamedTuple):
    """One request that is over. Times in seconds; `sent` are bytes of the answer's body."""

    request_id: bytes
    endpoint: str
    model: str
    revision: str | None
    replica: str | None
    status: int
    sent: int
    first_byte: float | None
    seconds: float


def write(entry: Entry) -> None:
    log.info(
        "request",
        request_id=entry.request_id.decode("ascii", "replace"),
        client="-",
        endpoint=entry.endpoint,
        model=entry.model,
        revision=entry.revision,
        replica=entry.replica,
        status=entry.status,
        bytes=entry.sent,
        first_byte_ms=None if entry.first_byte is None else round(entry.first_byte * 1000, 2),
        duration_ms=round(entry.seconds * 1000, 2),
    )


class Counted:
    """A sink that counts the bytes of the answer's body, framing included where that is relayed as it came."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.verbatim = sink.verbatim
        self.sent = 0
        self.cut, self.finish = sink.cut, sink.finish

    def start(self, status: int, headers: Headers, length: int | None, body: bytes, end: bool) -> None:
        self.sent += len(body)
        self._sink.start(status, headers, length, body, end)

    def start_verbatim(self, status: int, headers: Headers, chunks: bytes) -> Relay:
        relay = self._sink.start_verbatim(status, headers, chunks)
        self.sent += len(chunks)

        def counted(data: bytes) -> None:
            self.sent += len(data)
            relay(data)

        return counted

    def send(self, body: bytes, end: bool) -> None:
        self.sent += len(body)
        self._sink.send(body, end)

    def interrupt(self, event: bytes) -> None:
        self.sent += len(event)
        self._sink.interrupt(event)
