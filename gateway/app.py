"""The only wiring of the two planes: settings in, everything that runs out."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from starlette.applications import Starlette

from gateway import __version__
from gateway.admin.endpoints import Access, Endpoints
from gateway.admin.status import About, Status
from gateway.control.budget import LoadBudget
from gateway.control.catalogs import CatalogKeeper, PathMap
from gateway.control.controller import Controller
from gateway.control.directory import Directory
from gateway.control.discovery import DnsSource, FileSource, Source, StaticSource
from gateway.control.replica_client import ReplicaClient
from gateway.control.snapshots import Snapshots
from gateway.control.surroundings import Policy, Surroundings
from gateway.control.validation import Rules
from gateway.core.addresses import Address
from gateway.core.events import Event, EventLog
from gateway.core.placement import Everywhere
from gateway.core.registry import Registry
from gateway.core.replica import Roots
from gateway.metrics import Metrics
from gateway.proxy import access_log
from gateway.proxy.admission import Admission, Bounds
from gateway.proxy.asgi import answers_browsers, inference_routes
from gateway.proxy.cors import Cors
from gateway.proxy.datapath import DataPath, Extras, Limits
from gateway.proxy.protocol import InferenceProtocol, protocol_class
from gateway.settings import Settings
from gateway.settings_kinds import Secret

if TYPE_CHECKING:
    from gateway.tracing import Tracing

log = structlog.get_logger("gateway")
LAG_LOOK = 0.5  # seconds between looks at how late the event loop is
_LOOPBACK = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that is ready to run: the two planes, and how the outside reaches them."""

    settings: Settings
    asgi: Starlette
    protocol: type[InferenceProtocol]
    datapath: DataPath
    controller: Controller
    registry: Registry
    metrics: Metrics
    closing: asyncio.Event
    tracing: "Tracing | None" = None

    async def run(self) -> None:
        """The control loop and what belongs to it; ends only when cancelled or broken."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run(), name="controller")
            group.create_task(self.datapath.run(), name="data path")
            group.create_task(self._watch_lag(), name="event loop lag")

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_LOOK
            await asyncio.sleep(LAG_LOOK)
            self.metrics.loop_lag.set(max(0.0, loop.time() - due))

    async def close(self) -> None:
        """Spans that were not sent yet go out; a few seconds at most."""
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def begin_shutdown(self) -> None:
        """Not ready from now on, and no load starts any more."""
        self.closing.set()

    def tell_start(self, host: str, port: int) -> None:
        settings = self.settings
        log.info(
            "the gateway listens",
            url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
            version=__version__,
            adapter_dir=str(settings.adapter_dir),
            replicas_see_it_at=str(settings.replica_adapter_dir),
            snapshots=settings.snapshots,
        )


def build(settings: Settings) -> Gateway:
    """Make everything and connect it; nothing runs yet. Must be called inside the event loop."""
    registry = Registry(strict_base_model=settings.strict_base_model)
    metrics = Metrics(__version__)
    tracing = _tracing(settings)
    events = EventLog(time.time, _tell(tracing))
    closing = asyncio.Event()
    keeper = _keeper(settings, registry, metrics, events)
    controller = Controller(
        _surroundings(settings, registry, metrics, events, keeper, closing),
        keeper,
        _sources(settings),
        lambda address: _client(settings, address),
        metrics,
    )
    bounds = Bounds(settings.load_wait, settings.max_waiting, settings.max_inflight_per_replica)
    admission = Admission(registry, controller, metrics, bounds, time.monotonic)
    datapath = DataPath(admission, metrics, _limits(settings), extras=_extras(settings, tracing))
    metrics.watch(registry, keeper.watch_mode, time.time)
    asgi = _operations(settings, registry, metrics, events, keeper, controller, closing)
    asgi.router.routes[:0] = inference_routes(datapath)
    return Gateway(settings, asgi, protocol_class(datapath), datapath, controller, registry, metrics, closing, tracing)


def _keeper(settings: Settings, registry: Registry, metrics: Metrics, events: EventLog) -> CatalogKeeper:
    rules = Rules(allow_pickle=settings.allow_pickle, max_lora_rank=settings.max_lora_rank)
    snapshots = None
    if settings.snapshots != "off":
        where = settings.snapshot_dir
        snapshots = Snapshots(settings.adapter_dir, where, settings.snapshots, settings.snapshot_grace)

    def note_scan(seconds: float) -> None:
        metrics.scanned(seconds)
        registry.scans += 1

    directory = Directory(
        settings.adapter_dir,
        depth=settings.adapter_depth,
        rules=rules,
        snapshots=snapshots,
        scan_interval=settings.scan_interval,
        on_scan=note_scan,
    )
    return CatalogKeeper(
        registry, directory, settings.guard_interval, snapshots, _paths(settings), events, metrics, time.monotonic
    )


def _paths(settings: Settings) -> PathMap:
    return PathMap(settings.adapter_dir, str(settings.replica_adapter_dir))


def _surroundings(
    settings: Settings,
    registry: Registry,
    metrics: Metrics,
    events: EventLog,
    keeper: CatalogKeeper,
    closing: asyncio.Event,
) -> Surroundings:
    return Surroundings(
        registry=registry,
        roots=Roots(str(settings.replica_adapter_dir), _paths(settings).replica_path(str(settings.snapshot_dir))),
        files=keeper,
        placement=Everywhere(settings.preload),
        budget=LoadBudget(),
        events=events,
        counters=metrics,
        policy=Policy(
            probe_interval=settings.probe_interval,
            drift_interval=settings.drift_interval,
            unload_linger=settings.unload_linger,
            unhealthy_after=settings.unhealthy_after,
            healthy_after=settings.healthy_after,
            load_concurrency=settings.load_concurrency,
        ),
        clock=time.monotonic,
        wall=time.time,
        closing=closing.is_set,
    )


def _sources(settings: Settings) -> list[Source]:
    sources: list[Source] = []
    if settings.replica:
        sources.append(StaticSource(settings.replica))
    if settings.replicas_file is not None:
        sources.append(FileSource(settings.replicas_file, settings.discovery_interval))
    if settings.replica_dns is not None:
        host, _, port = settings.replica_dns.rpartition(":")
        sources.append(DnsSource(host, int(port), settings.discovery_interval))
    return sources


def _client(settings: Settings, address: Address) -> ReplicaClient:
    there, snapshots = str(settings.replica_adapter_dir), _paths(settings).replica_path(str(settings.snapshot_dir))
    return ReplicaClient(
        address.url,
        api_key=_revealed(settings.replica_api_key),
        connect_timeout=settings.connect_timeout,
        probe_timeout=settings.probe_timeout,
        load_timeout=settings.load_timeout,
        shown={f"{snapshots}/": "", f"{there}/": ""},
    )


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_body_bytes=settings.max_body_bytes,
        connect_timeout=settings.connect_timeout,
        first_byte_timeout=settings.first_byte_timeout,
        stream_idle_timeout=settings.stream_idle_timeout,
        dead_stream_grace=settings.dead_stream_grace,
        retry_reused=settings.retry_reused,
        replica_api_key=_revealed(settings.replica_api_key),
    )


def _extras(settings: Settings, tracing: "Tracing | None") -> Extras:
    return Extras(
        cors=Cors(settings.cors_origin) if settings.cors_origin else None,
        access_log=access_log.write if settings.access_log else None,
        tracing=tracing,
    )


def _tracing(settings: Settings) -> "Tracing | None":
    """Imported only when it is wanted: OpenTelemetry is an extra. Raises ModuleNotFoundError where it is missing."""
    if settings.otlp_endpoint is None:
        return None
    from gateway.tracing import Tracing

    return Tracing(settings.otlp_endpoint)


def _tell(tracing: "Tracing | None") -> Callable[[Event], None]:
    if tracing is None:
        return _log_event

    def tell(event: Event) -> None:
        _log_event(event)
        tracing.event(event)

    return tell


def _operations(
    settings: Settings,
    registry: Registry,
    metrics: Metrics,
    events: EventLog,
    keeper: CatalogKeeper,
    controller: Controller,
    closing: asyncio.Event,
) -> Starlette:
    about = About(
        version=__version__,
        started_at=time.time(),
        placement=settings.placement,
        snapshots=settings.snapshots,
        watch_mode=keeper.watch_mode,
        snapshots_reason=keeper.snapshots_reason,
        shutting_down=closing.is_set,
    )
    access = Access(_revealed(settings.admin_api_key), settings.host.startswith(_LOOPBACK))
    status = Status(registry, about)
    limit = settings.max_inflight_per_replica
    browsers = answers_browsers(settings.cors_origin, "GET") if settings.cors_origin else None
    return Endpoints(registry, status, metrics, events, controller, access, __version__, limit, browsers).app()


def _revealed(key: Secret | None) -> str | None:
    return key.reveal() if key is not None else None


def _log_event(event: Event) -> None:
    facts = {name: value for name, value in event.document().items() if name not in ("number", "at", "kind")}
    tell = log.warning if event.kind in _TROUBLES else log.info
    tell(event.kind, **facts)


_TROUBLES = (
    "load_failed",
    "drift",
    "adapter_invalid",
    "adapter_lost",
    "quarantine",
    "directory_trouble",
    "aliases_trouble",
    "pins_trouble",
)
