"""One request and its relayed answer. Lease, upstream connection and client belong to it and to nothing else.

What can be done at once is done without a task: read the envelope, take a lease, take an idle connection, write. Else one
task waits or connects. Whatever way the client leaves, the task is cancelled and the connection to the replica closed,
which makes vLLM stop generating. A request is sent again only when the replica surely has not run it: it could not be
reached, said that it is shutting down or does not have the model, or had closed an idle connection as it was reused.
"""

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway.core.errors import (
    GatewayError,
    NoReplica,
    ReplicaCredentials,
    ReplicaFailed,
    ReplicaTimeout,
    ReplicaUnreachable,
)
from gateway.core.registry import Lease
from gateway.proxy.access_log import Counted, Entry
from gateway.proxy.answer import Answer, Sink
from gateway.proxy.request import Request
from gateway.proxy.rewrite import NameRestorer
from gateway.proxy.upstream import Connection
from gateway.proxy.verdict import JUDGED, LIMIT, Verdict, judge

if TYPE_CHECKING:
    from gateway.proxy.datapath import DataPath

ERROR_EVENT = b'data: {"error"'  # how vLLM ends a stream whose request failed
AT_ONCE = 0.05  # seconds: a reused connection that closes so soon was closed before the request came


class Phase(StrEnum):
    """How far an exchange is; the label of a client that leaves then."""

    QUEUE = "queue"
    CONNECT = "connect"
    HEADERS = "headers"
    STREAM = "stream"
    OVER = "over"


class Exchange:
    """See the module. The adapter calls `begin`, `client_gone`, `pause`, `resume`; the connection the rest."""

    __slots__ = (
        "_answer",
        "_avoid",
        "_begun",
        "_connection",
        "_denied",
        "_first_byte",
        "_fresh",
        "_headed",
        "_id",
        "_lease",
        "_model",
        "_path",
        "_paused_since",
        "_quiet_since",
        "_reason",
        "_replays",
        "_request",
        "_reused",
        "_seen",
        "_sent_at",
        "_sink",
        "_task",
        "_trace",
        "_trouble",
        "endpoint",
        "phase",
    )

    def __init__(self, path: "DataPath", request: Request, sink: Sink) -> None:
        self._path = path
        self._sink = sink if path.access_log is None else Counted(sink)
        self._request: Request | None = request
        self.endpoint = request.endpoint
        self._id = request.head.request_id
        self._trace = path.tracing.request(request.endpoint.path, request.head.lines) if path.tracing is not None else None
        self.phase = Phase.QUEUE
        self._begun = self._sent_at = self._quiet_since = monotonic()
        self._model: str | None = None
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._answer: Answer | None = None
        self._avoid: frozenset[str] = frozenset()
        self._trouble: GatewayError | None = None  # why the replicas to avoid are avoided
        self._reason = ""  # why the request is about to be sent again
        self._replays = 0
        self._reused = self._fresh = False
        self._denied: frozenset[str] = frozenset()  # replicas that said they do not have the model
        self._seen = b""  # the newest bytes at the last tick
        self._headed = b""  # those that brought the head
        self._first_byte: float | None = None
        self._paused_since: float | None = None

    def begin(self) -> None:
        """Send the request, or start waiting; the exception table of the data path."""
        self._path.exchanges.add(self)
        try:
            self._enter_at_once()
        except GatewayError as error:
            self.refuse(error)
        except Exception as error:
            self.refuse(self._crashed(error))

    def _enter_at_once(self) -> None:
        path = self._path
        assert self._request is not None
        self._model = self._request.read_model()
        lease = self._lease = path.admission.try_enter(self._model, self._request.session)
        if lease is not None:
            connection = path.pool(lease).take(self._begun)
            if connection is not None:
                self._reused = True
                self._send(connection, self._begun)
                return
        self._run(self._pursue())

    # waiting and connecting

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is task:
            self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GatewayError):
            self.refuse(error)
        elif error is not None:
            self.refuse(self._crashed(error))

    def _crashed(self, error: BaseException) -> GatewayError:
        context = {"message": f"{self.endpoint.path} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        return GatewayError("The gateway failed.")

    async def _pursue(self) -> None:
        """Get a lease if there is none, connect to its replica, send; on to the next replica when that one is away."""
        connection = None
        while connection is None:
            if self._lease is None:
                self.phase = Phase.QUEUE
                self._lease = await self._enter()
            self.phase = Phase.CONNECT
            connection = None if self._fresh else self._path.pool(self._lease).take(monotonic())
            self._reused = connection is not None
            if connection is None:
                connection = await self._connect(self._lease)
        self._send(connection, monotonic())

    async def _enter(self) -> Lease:
        assert self._request is not None
        try:
            lease = await self._path.admission.enter(self._model, self._request.session, self._avoid)
        except GatewayError as error:
            if self._trouble is not None and error.status >= 500:
                raise self._trouble from error
            raise
        if self._trouble is not None and lease.replica in self._avoid:
            lease.release()
            raise self._trouble
        if self._reason:
            self._path.recorder.retry(self._reason)
            self._reason = ""
        return lease

    async def _connect(self, lease: Lease) -> Connection | None:
        path = self._path
        try:
            return await path.pool(lease).connect(path.limits.connect_timeout)
        except OSError:
            path.admission.refused(lease)
            path.recorder.upstream_error(lease.replica, "connect")
        if self._fresh:  # the request was sent once before
            path.admission.failed(lease, self._sent_at)
            raise ReplicaFailed(f"The replica {lease.replica} closed the connection and cannot be reached any more.")
        self._avoid_replica("refused", ReplicaUnreachable(f"The replica {lease.replica} cannot be reached."))
        return None

    def _avoid_replica(self, reason: str, trouble: GatewayError) -> None:
        assert self._lease is not None
        self._avoid |= {self._lease.replica}
        self._trouble = trouble
        self._give_back_lease(reason)

    def _give_back_lease(self, reason: str) -> None:
        """Another lease is needed, and the request will be sent again."""
        assert self._lease is not None
        self._lease.release()
        self._lease = None
        self._reason = reason
        self._fresh = False

    def _send(self, connection: Connection, now: float) -> None:
        assert self._request is not None
        assert self._lease is not None
        self._connection = connection
        self.phase = Phase.HEADERS
        self._sent_at = self._quiet_since = now
        self._seen = b""
        path, lease = self._path, self._lease
        own = path.authorization
        if self._trace is not None:
            fields = self._trace.sent(lease.replica, lease.label, lease.revision)
            own += b"".join(f"{name}: {value}\r\n".encode() for name, value in fields.items())
        traced = self._trace is not None
        head, body = self._request.compose(connection.pool, lease.served_name, self._model, own, traced=traced)
        connection.send(self, head, body)
        if self._paused_since is not None:
            connection.pause_reading()

    # the replica's connection

    def received(self, connection: Connection) -> None:
        answer = self._answer
        if answer is None:
            if connection.status in JUDGED and not self._judged(connection):
                return
            answer = self._begin_answer(connection)
            if answer.malformed:
                self._fail(ReplicaFailed(f"The replica {self._replica} sent a malformed answer."), "malformed")
                return
        if answer.relay():
            self.relayed_all(connection)

    def relayed_all(self, connection: Connection) -> None:
        self._connection = None
        status, now = connection.status, monotonic()
        self._note_end(connection, now)
        connection.release(now)
        self._end(status)
        self._sink.finish()

    def _note_end(self, connection: Connection, now: float) -> None:
        """Whether the model did well: a stream's status goes out before its request is run, so it proves nothing."""
        lease = self._lease
        if lease is None or lease.exact is None or connection.status >= 500:
            return
        if ERROR_EVENT in connection.last:
            self._note_failure(lease)
            return
        lease.answered(now)
        if lease.trial is not None:
            self._path.admission.acquitted(lease)

    def _note_failure(self, lease: Lease) -> None:
        """The replica may be dying: of this request, when it has given nothing yet."""
        if not self._seen or self._seen is self._headed:
            self._path.admission.failed(lease, self._sent_at)

    def lost(self, connection: Connection, kind: str) -> None:
        self._connection = None
        if (
            kind == "closed"
            and self._reused
            and not connection.last
            and self._replays < self._path.limits.retry_reused
            and monotonic() - self._sent_at < AT_ONCE
        ):
            self._replays += 1
            self._fresh = True
            self._path.recorder.retry("reused")
            self._run(self._pursue())
            return
        self._connection = connection  # for what it has read
        self._fail(ReplicaFailed(f"The replica {self._replica} broke off the connection."), kind)

    def _judged(self, connection: Connection) -> bool:
        """Whether the error is the client's to read; else it was acted upon, or its body is not whole."""
        if not connection.done and sum(map(len, connection.parts)) < LIMIT:
            return False
        assert self._lease is not None
        lease, admission = self._lease, self._path.admission
        verdict = judge(connection.status, b"".join(connection.parts), lease.served_name)
        if verdict is Verdict.MISSING_FILES and lease.revision is not None:
            admission.missing_files(lease)
        if verdict is Verdict.DYING:
            admission.failed(lease, self._sent_at)
        if verdict in (Verdict.PASS, Verdict.DYING, Verdict.MISSING_FILES):
            return True
        self._connection = None
        connection.release(monotonic())
        if verdict is Verdict.CREDENTIALS:
            admission.credentials(lease)
            self._path.recorder.upstream_error(lease.replica, "credentials")
            reason = f"The replica {lease.replica} refused the gateway's credentials: see --replica-api-key."
            self.refuse(ReplicaCredentials(reason))
        elif verdict is Verdict.DRAINING:
            admission.draining(lease)
            self._avoid_replica("draining", NoReplica("Every replica that could take the request is shutting down."))
            self._run(self._pursue())
        else:
            self._replay_forgotten(lease)
        return False

    def _replay_forgotten(self, lease: Lease) -> None:
        self._path.admission.forgotten(lease)
        if lease.replica in self._denied:
            self._path.recorder.upstream_error(lease.replica, "inconsistent")
            self.refuse(ReplicaFailed(f"The replica {lease.replica} says again that it does not have '{lease.label}'."))
            return
        self._denied |= {lease.replica}
        self._give_back_lease("forgotten")
        self._run(self._pursue())

    def _begin_answer(self, connection: Connection) -> Answer:
        assert self._request is not None
        assert self._lease is not None
        lease, request = self._lease, self._request
        own = [(b"x-request-id", request.head.request_id), *self._path.told(lease.replica, lease.revision)]
        if self._path.cors is not None:
            own += self._path.cors.for_lines(request.head.lines)
        if self._trace is not None:
            self._trace.first_byte()
        restorer = None
        if self._model is not None and lease.served_name != self._model:
            restorer = NameRestorer(self._path.names(lease.served_name, self._model))
        self._answer = answer = Answer(connection, self._sink, own, restorer)
        self._first_byte = monotonic() - self._begun
        self._headed = connection.last
        self.phase = Phase.STREAM
        self._request = None  # it is never sent again: free its body
        return answer

    @property
    def _replica(self) -> str:
        return self._lease.replica if self._lease is not None else ""

    @property
    def owed(self) -> tuple[str, float] | None:
        """The replica that owes the rest of an answer, and when it last gave a byte (or the client did not keep up)."""
        return (self._replica, self._quiet_since) if self._connection is not None else None

    # the client

    def client_gone(self) -> None:
        if self.phase is not Phase.OVER:
            self._path.recorder.client_left(self.phase.value)
            self._end(499)

    def pause(self) -> None:
        """The client does not keep up."""
        if self._paused_since is None:
            self._paused_since = monotonic()
            if self._connection is not None:
                self._connection.pause_reading()

    def resume(self) -> None:
        if self._paused_since is not None:
            self._paused_since = None
            if self._connection is not None:
                self._connection.resume_reading()

    # time, and the end

    def tick(self, now: float) -> None:
        """Called once a second: the timeouts, without work for each chunk."""
        connection, limits = self._connection, self._path.limits
        if connection is None:
            return
        if self._paused_since is not None:
            self._quiet_since = now
            if limits.stream_idle_timeout and now - self._paused_since > limits.stream_idle_timeout:
                self._path.recorder.client_left("stalled")
                self._end(499)
                self._sink.cut()
            return
        if connection.last is not self._seen:
            self._seen, self._quiet_since = connection.last, now
            return
        quiet = now - self._quiet_since
        limit = limits.first_byte_timeout if self._answer is None else limits.stream_idle_timeout
        if limit and quiet >= limit:
            self._fail(ReplicaTimeout(f"The replica {self._replica} sent nothing for {limit:g} s."), "timeout")
        elif quiet >= limits.dead_stream_grace > 0 and self._path.admission.is_down(self._replica):
            self._fail(ReplicaFailed(f"The replica {self._replica} is down."), "dead")

    def stop(self, error: GatewayError) -> None:
        """The process ends: tell the client."""
        self._fail(error, "")

    def _fail(self, error: GatewayError, kind: str) -> None:
        answer = self._answer
        begun = answer is not None and answer.started
        if kind:
            self._path.recorder.upstream_error(self._replica, "midstream" if begun and kind == "closed" else kind)
        if kind and self._lease is not None:
            self._note_failure(self._lease)
        if answer is None or not begun:
            self.refuse(error)
            return
        answer.break_off(error, named=self.endpoint.named_events)
        self._end(error.status)

    def refuse(self, error: GatewayError) -> None:
        """Answer with an error of the gateway's own; nothing has been sent to the client yet."""
        if self.phase is Phase.OVER:
            return
        headers = error_headers(error)
        if self._request is not None:
            headers.append((b"x-request-id", self._id))
            if self._path.cors is not None:
                headers += self._path.cors.for_lines(self._request.head.lines)
        self._end(error.status)
        body = error.body()
        self._sink.start(error.status, headers, len(body), body, True)
        self._sink.finish()

    def _end(self, code: int) -> None:
        """Give everything back. Idempotent."""
        if self.phase is Phase.OVER:
            return
        self.phase = Phase.OVER
        self._request = None
        path, lease = self._path, self._lease
        if self._task is not None:
            self._task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        if lease is not None:
            label = lease.label
            lease.release()
        else:
            label = path.admission.label(self._model)
        seconds = monotonic() - self._begun
        path.recorder.finished(label, self.endpoint.path, code, seconds, self._first_byte)
        if path.access_log is not None:
            sent = self._sink.sent if isinstance(self._sink, Counted) else 0
            replica, revision = (lease.replica, lease.revision) if lease is not None else (None, None)
            entry = (self._id, self.endpoint.path, label, revision, replica, code, sent, self._first_byte, seconds)
            path.access_log(Entry(*entry))
        if self._trace is not None:
            self._trace.ended(code)
        path.ended(self)

    def __repr__(self) -> str:
        return f"<Exchange {self.endpoint.path} {self.phase} {self._replica}>"


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    return headers
