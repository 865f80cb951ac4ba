"""Counters and histograms that others tell; gauges are read from the registry at scrape time.

Label values come from known names only: what a client made up is `other`. Before each scrape, the series of adapters and
replicas that are gone are dropped, also those that a last request made after its replica or adapter had left. One
process, one `Metrics` object with a collector registry of its own.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gateway.core.registry import Registry
from gateway.metrics_adapters import AdapterLines
from gateway.metrics_fleet import FleetCollector
from gateway.metrics_traffic import BOUNDS, OTHER, Traffic

PREFIX = "lora_gateway_"
_LOADS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 120)
_LONG = (0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
# What may be counted: shown as 0 from the start, since an increase from nothing is none to Prometheus.
_OUTCOMES = ("ok", "already", "rejected", "missing", "error", "timeout", "unsupported", "credentials", "draining")
_KINDS = ("connect", "closed", "midstream", "malformed", "timeout", "dead", "credentials", "inconsistent")
_REASONS = ("refused", "draining", "forgotten", "reused")
_PHASES = ("body", "queue", "connect", "headers", "stream", "stalled")


class Metrics:
    """Everything that the gateway counts. Durations in seconds."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._fleet: Registry | None = None
        self._adapters: AdapterLines | None = None
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._traffic = Traffic(PREFIX)
        self.registry.register(self._traffic)
        self.finished = self._traffic.finished  # told for every request
        self._adapter_wait = self._histogram("adapter_wait_seconds", "Requests that waited for a load.", _LOADS, "outcome")
        self._loads = self._counter("adapter_loads", "Load calls.", "replica", "outcome")
        self._load_duration = self._histogram("adapter_load_duration_seconds", "Load calls.", _LOADS)
        self._unloads = self._counter("adapter_unloads", "Unload calls.", "replica", "outcome")
        self._convergence = self._histogram(
            "adapter_convergence_seconds", "From seen in the directory until held everywhere.", _LONG
        )
        self._drift = self._counter("drift_repairs", "Adapters that a replica had lost.", "replica")
        self._quarantines = self._counter("quarantines", "Revisions taken out because replicas died with them.")
        self._invalid = self._counter("validation_failures", "Folders that turned out to be no adapter.", "reason")
        self._upstream_errors = self._counter("upstream_errors", "What went wrong with a replica.", "replica", "kind")
        self._retries = self._counter("retries", "Requests that were sent again.", "reason")
        self._left = self._counter("client_disconnects", "Clients that left before the end.", "phase")
        last = PREFIX + "replica_last_load_timestamp_seconds"
        self._last_load = Gauge(last, "When a load last went well.", ["replica"], registry=self.registry)
        self._by_replica = (self._loads, self._unloads, self._drift, self._upstream_errors, self._last_load)
        self._adapter_wait.labels("ok")
        for reason in _REASONS:
            self._retries.labels(reason)
        for phase in _PHASES:
            self._left.labels(phase)
        self._scan = self._histogram("scan_duration_seconds", "Scans of the directory.", BOUNDS)
        self.loop_lag = Gauge(PREFIX + "event_loop_lag_seconds", "How late the loop ran a timer.", registry=self.registry)
        build = Gauge(PREFIX + "build_info", "The version that runs.", ["version"], registry=self.registry)
        build.labels(version).set(1)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(PREFIX + name, help, labels, buckets=buckets, registry=self.registry)

    def watch(self, registry: Registry, watch_mode: Callable[[], str], wall: Callable[[], float]) -> None:
        """Read the gauges from here at each scrape."""
        self._fleet = registry
        self.registry.register(FleetCollector(PREFIX, registry, watch_mode))
        self._adapters = AdapterLines(PREFIX, registry, wall)

    async def exposition(self) -> bytes:
        """In the Prometheus text format; the event loop runs in between where there is much to tell."""
        self._sweep()
        text = generate_latest(self.registry)
        return text if self._adapters is None else text + await self._adapters.exposition()

    def _sweep(self) -> None:
        fleet = self._fleet
        if fleet is None or not fleet.scanned:
            return
        self._traffic.keep(lambda model: model == OTHER or fleet.label(model) is not None)
        gone = {replica for counter in self._by_replica for replica in _replicas(counter)} - fleet.stations.keys()
        for replica in gone:
            self.forget_replica(replica)
        for replica in fleet.stations:
            self._begin_at_zero(replica)

    def _begin_at_zero(self, replica: str) -> None:
        self._drift.labels(replica)
        for outcome in _OUTCOMES:
            self._loads.labels(replica, outcome)
            self._unloads.labels(replica, outcome)
        for kind in _KINDS:
            self._upstream_errors.labels(replica, kind)

    # told by the data path

    def upstream_error(self, replica: str, kind: str) -> None:
        self._upstream_errors.labels(replica, kind).inc()

    def retry(self, reason: str) -> None:
        self._retries.labels(reason).inc()

    def client_left(self, phase: str) -> None:
        self._left.labels(phase).inc()

    def waited_for_adapter(self, outcome: str, seconds: float) -> None:
        self._adapter_wait.labels(outcome).observe(seconds)

    # told by the control loop

    def loaded(self, replica: str, outcome: str, seconds: float) -> None:
        self._loads.labels(replica, outcome).inc()
        self._load_duration.observe(seconds)
        if outcome == "ok":
            self._last_load.labels(replica).set_to_current_time()

    def unloaded(self, replica: str, outcome: str) -> None:
        self._unloads.labels(replica, outcome).inc()

    def quarantined(self, count: int) -> None:
        self._quarantines.inc(count)

    def drifted(self, replica: str, count: int) -> None:
        self._drift.labels(replica).inc(count)

    def converged(self, seconds: float) -> None:
        self._convergence.observe(seconds)

    def scanned(self, seconds: float) -> None:
        self._scan.observe(seconds)

    def found_invalid(self, code: str) -> None:
        self._invalid.labels(code).inc()

    def forget_replica(self, replica: str) -> None:
        """It has left: its series go with it."""
        for counter in self._by_replica:
            counter.remove_by_labels({"replica": replica})

    def forget_adapter(self, name: str) -> None:
        self._traffic.keep(lambda model: model != name)


def _replicas(counter: Counter | Gauge) -> set[str]:
    return {sample.labels["replica"] for family in counter.collect() for sample in family.samples}
