"""An answer on its way from a replica's connection to a sink: how it is framed, whose name it carries, how it breaks off.

Chunks go on verbatim, framing and all, where the sink takes them so and no name has to be put back; else the body is
framed anew. An answer that breaks off never gets an end that the replica did not send: a stream of events gets an
error event where the bytes so far end between two chunks, and in any case the connection is closed without the last chunk.
"""

from typing import Protocol

from gateway.core.errors import GatewayError
from gateway.proxy.headers import Headers
from gateway.proxy.rewrite import NameRestorer
from gateway.proxy.upstream import Connection, Relay
from gateway.proxy.verdict import JUDGED

WHOLE_LIMIT = 1 << 20  # a body up to this many bytes is held until it is whole when its length changes with the name
_EVENT_ENDS = (b"\n\n\r\n", b"\n\n", b"\r\n\r\n\r\n")


class Sink(Protocol):
    """Where an answer goes. All is synchronous; back-pressure comes through `Exchange.pause`."""

    verbatim: bool  # takes chunked framing as it is

    def start(self, status: int, headers: Headers, length: int | None, body: bytes, end: bool) -> None: ...
    def start_verbatim(self, status: int, headers: Headers, chunks: bytes) -> Relay: ...
    def send(self, body: bytes, end: bool) -> None: ...
    def interrupt(self, event: bytes) -> None: ...  # a last piece of body, then closed without an end
    def cut(self) -> None: ...  # closed without an end
    def finish(self) -> None: ...  # the whole answer was given; the exchange is over


class Answer:
    """One answer, from its head on. `own` are the gateway's header fields."""

    __slots__ = ("_connection", "_head", "_headers", "_restorer", "_sink", "_verbatim", "started")

    def __init__(self, connection: Connection, sink: Sink, own: Headers, restorer: NameRestorer | None) -> None:
        self._connection, self._sink = connection, sink
        self._head = head = connection.read_head()
        self._headers = [*head.headers, *own]
        self._restorer = restorer if (head.json or head.sse) and not head.encoded else None
        self._verbatim = self.started = False

    @property
    def malformed(self) -> bool:
        return self._head.strange

    def relay(self) -> bool:
        """Pass on what has come; True when that was the end."""
        if not self.started:
            return self._start()
        connection, restorer = self._connection, self._restorer
        body, done = connection.take(), connection.done
        if restorer is not None:
            body = restorer.feed(body)
            if done:
                body += restorer.flush()
        if body or done:
            self._sink.send(body, done)
        return done

    def _start(self) -> bool:
        connection, head = self._connection, self._head
        status, done = connection.status, connection.done
        if self._restorer is not None:
            return self._start_restored(self._restorer)
        self.started = True
        if head.chunked and self._sink.verbatim and status not in JUDGED:
            self._verbatim = True
            relay = self._sink.start_verbatim(status, self._headers, connection.rest())
            connection.parts.clear()
            connection.relay = relay
        else:
            self._sink.start(status, self._headers, head.content_length, connection.take(), done)
        return done

    def _start_restored(self, restorer: NameRestorer) -> bool:
        connection, head = self._connection, self._head
        done, length = connection.done, head.content_length
        if not done and length is not None and length <= WHOLE_LIMIT:
            return False
        self.started = True
        body = restorer.feed(connection.take())
        if done:
            body += restorer.flush()
        self._sink.start(connection.status, self._headers, len(body) if done else None, body, done)
        return done

    def break_off(self, error: GatewayError, *, named: bool) -> None:
        """The end will not come: say so as far as the framing allows it, and close."""
        head, connection = self._head, self._connection
        if (
            not head.sse
            or (self._verbatim and not connection.at_chunk_boundary())
            or (self._restorer is None and head.content_length is not None)
        ):
            self._sink.cut()
        else:
            held = self._restorer.flush() if self._restorer is not None else b""
            gap = b"" if connection.last.endswith(_EVENT_ENDS) else b"\n\n"
            self._sink.interrupt(held + gap + error.event(named=named))
