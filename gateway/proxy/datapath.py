"""What all exchanges share: admission, the pools, limits, the recorder, and the list of those that are open.

Both adapters of the data path (ASGI and the server's protocol) reach it; nothing here knows either of them.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import Protocol

from gateway.core.errors import ShuttingDown
from gateway.core.registry import Lease
from gateway.proxy.access_log import Entry
from gateway.proxy.cors import Cors
from gateway.proxy.exchange import Exchange
from gateway.proxy.headers import CREDENTIALS, Headers
from gateway.proxy.rewrite import Names
from gateway.proxy.upstream import Pool

SWEEP = 1.0  # seconds between two looks at timeouts and idle connections
KNOWN_NAMES = 1024  # pairs of names that are kept prepared


Session = Callable[[], bytes]  # what identifies the client's session; empty when nothing does


class Admission(Protocol):
    """Who may use which replica now, and what becomes of what an exchange saw of a replica."""

    def try_enter(self, model: str | None, session: Session) -> Lease | None: ...  # None: it has to wait; raises GatewayError
    async def enter(self, model: str | None, session: Session, avoid: frozenset[str] = frozenset()) -> Lease: ...
    def refused(self, lease: Lease) -> None: ...  # could not connect
    def draining(self, lease: Lease) -> None: ...
    def forgotten(self, lease: Lease) -> None: ...  # it does not have the name that it was believed to hold
    def missing_files(self, lease: Lease) -> None: ...
    def credentials(self, lease: Lease) -> None: ...  # 401 or 403
    def failed(self, lease: Lease, sent_at: float) -> None: ...  # it broke off, or answered 500, before a first byte
    def acquitted(self, lease: Lease) -> None: ...  # a trial request went well
    def heard(self, latest: Mapping[str, float]) -> None: ...  # replica -> when the last byte that it owed us came
    def label(self, model: str | None) -> str: ...  # of a request without a lease: a known name, or "other"
    def is_down(self, replica: str) -> bool: ...  # it refuses its probe now


class Recorder(Protocol):
    """Where the data path counts. Labels are known names."""

    def finished(self, model: str, endpoint: str, code: int, seconds: float, first_byte: float | None) -> None: ...
    def upstream_error(self, replica: str, kind: str) -> None: ...
    def retry(self, reason: str) -> None: ...
    def client_left(self, phase: str) -> None: ...


class Trace(Protocol):
    """The spans of one request."""

    def sent(self, replica: str, model: str, revision: str | None) -> Mapping[str, str]: ...  # fields for the replica
    def first_byte(self) -> None: ...
    def ended(self, status: int) -> None: ...


class Tracing(Protocol):
    def request(self, endpoint: str, lines: bytes) -> Trace: ...


@dataclass(frozen=True, slots=True)
class Extras:
    """What costs nothing while it is None."""

    cors: Cors | None = None
    access_log: Callable[[Entry], None] | None = None
    tracing: Tracing | None = None


class Client(Protocol):
    """A client's connection that wants to be looked at once a second."""

    def tick(self, now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and seconds; 0 is no limit, except that idle connections are always dropped."""

    max_body_bytes: int = 64 * 1024 * 1024
    connect_timeout: float = 2.0
    first_byte_timeout: float = 600.0
    stream_idle_timeout: float = 600.0
    dead_stream_grace: float = 10.0
    retry_reused: int = 1
    replica_api_key: str | None = None
    strip_authorization: bool = False  # the clients' keys are the gateway's own
    idle_timeout: float = 4.5  # vLLM closes an idle connection after 5 s
    max_connection_age: float = 300.0


def _told(replica: str, revision: str | None) -> Headers:
    """The header fields that tell the client who answered."""
    fields = [(b"x-lora-gateway-replica", replica.encode())]
    return fields if revision is None else [*fields, (b"x-lora-gateway-revision", revision.encode())]


class DataPath:
    """See the module. `run` does what time asks for; `drain` ends the exchanges before the process does."""

    def __init__(
        self,
        admission: Admission,
        recorder: Recorder,
        limits: Limits | None = None,
        *,
        extras: Extras | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        extras = extras or Extras()
        self.cors, self.access_log, self.tracing = extras.cors, extras.access_log, extras.tracing
        self.admission, self.recorder = admission, recorder
        self.limits = limits = limits or Limits()
        self.exchanges: set[Exchange] = set()
        self.clients: set[Client] = set()
        self.names = lru_cache(KNOWN_NAMES)(Names)
        self.told = lru_cache(KNOWN_NAMES)(_told)
        key = limits.replica_api_key
        self.authorization = b"authorization: Bearer %b\r\n" % key.encode() if key else b""
        self.withheld = CREDENTIALS if key or limits.strip_authorization else frozenset()
        self._ssl_context = ssl_context
        self._pools: dict[str, Pool] = {}
        self._idle = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self.exchanges)

    @property
    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    def pool(self, lease: Lease) -> Pool:
        pool = self._pools.get(lease.url)
        if pool is None:
            limits = self.limits
            pool = self._pools[lease.url] = Pool(
                lease.url,
                idle_timeout=limits.idle_timeout,
                max_age=limits.max_connection_age,
                ssl_context=self._ssl_context,
            )
        return pool

    def ended(self, exchange: Exchange) -> None:
        self.exchanges.discard(exchange)
        if not self.exchanges:
            self._idle.set()

    async def run(self) -> None:
        """Timeouts and idle connections, until cancelled."""
        try:
            while True:
                await asyncio.sleep(SWEEP)
                self.sweep(monotonic())
        finally:
            self.close()

    def sweep(self, now: float) -> None:
        latest: dict[str, float] = {}
        for exchange in list(self.exchanges):
            exchange.tick(now)
            if (owed := exchange.owed) is not None:
                replica, since = owed
                latest[replica] = max(latest.get(replica, 0.0), since)
        self.admission.heard(latest)
        for client in list(self.clients):
            client.tick(now)
        for url, pool in list(self._pools.items()):
            pool.sweep(now, SWEEP)
            if pool.unused:
                del self._pools[url]

    async def drain(self, timeout: float) -> None:
        """Wait for the open exchanges; after `timeout` seconds tell the rest that it is over."""
        deadline = monotonic() + timeout
        while self.exchanges and (left := deadline - monotonic()) > 0:
            self._idle.clear()
            try:
                async with asyncio.timeout(left):
                    await self._idle.wait()
            except TimeoutError:
                break
        for exchange in list(self.exchanges):
            exchange.stop(ShuttingDown("The gateway is shutting down."))

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def __repr__(self) -> str:
        return f"<DataPath in_flight={self.in_flight} {self.pools}>"
