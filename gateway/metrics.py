"""Counters and histograms that others tell, and gauges read from the registry at scrape time.

Label values come from known names only: what a client made up is `other`, and the series of adapters and replicas that
are gone are not kept. One process, one `Metrics` object with a collector registry of its own.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.core.adapters import RejectedState
from gateway.core.registry import Registry
from gateway.core.replica import Phase
from gateway.core.standing import State, standing, unconverged
from gateway.metrics_traffic import BOUNDS, Traffic

PREFIX = "lora_gateway_"
_LOADS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 120)
_LONG = (0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    """Everything that the gateway counts. Durations in seconds."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
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
        self.registry.register(FleetCollector(registry, watch_mode, wall))

    def exposition(self) -> bytes:
        """In the Prometheus text format."""
        return generate_latest(self.registry)

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
        for counter in (self._loads, self._unloads, self._drift, self._upstream_errors):
            counter.remove_by_labels({"replica": replica})

    def forget_adapter(self, name: str) -> None:
        self._traffic.forget(name)


class FleetCollector(Collector):
    """The state of adapters and replicas, as it is when somebody asks."""

    def __init__(self, registry: Registry, watch_mode: Callable[[], str], wall: Callable[[], float]) -> None:
        self._registry, self._watch_mode, self._wall = registry, watch_mode, wall

    def collect(self) -> Iterable[Metric]:
        yield from self._replicas()
        yield from self._adapters()
        yield _gauge("waiting_requests", "Requests that wait for a replica.", self._registry.waiting)
        mode = _family("watch_events", "How changes of the directory are noticed.", "mode")
        for name in ("events", "polling"):
            mode.add_metric([name], float(self._watch_mode() == name))
        yield mode

    def _replicas(self) -> Iterable[Metric]:
        inflight = _family("inflight_requests", "Requests in flight.", "replica")
        up = _family("replica_up", "1 while the replica is ready.", "replica")
        phases = _family("replica_phase", "1 for the phase the replica is in.", "replica", "phase")
        held = _family("replica_held_adapters", "Adapters of ours that it holds.", "replica")
        for station in self._registry.stations.values():
            replica = station.replica
            inflight.add_metric([replica.id], station.inflight)
            up.add_metric([replica.id], float(replica.ready))
            held.add_metric([replica.id], len(replica.held))
            for phase in Phase:
                phases.add_metric([replica.id, phase.value], float(replica.phase is phase))
        return inflight, up, phases, held

    def _adapters(self) -> Iterable[Metric]:
        registry = self._registry
        loaded = _family("adapter_loaded", "1 while the current revision is held.", "adapter", "replica")
        states: Tally[str] = Tally()
        replicas = list(registry.replicas())
        for name, adapter in registry.catalog.adapters.items():
            states[standing(adapter, registry).state.value] += 1
            for replica in replicas:
                loaded.add_metric([name, replica.id], float(adapter.revision in replica.held))
        for name, rejected in registry.catalog.rejected.items():
            if name not in registry.catalog.adapters:
                states[State.INCOMPLETE if rejected.state is RejectedState.INCOMPLETE else State.INVALID] += 1
        states[State.REMOVING.value] += len({r.name for r in registry.unwanted} - registry.catalog.adapters.keys())
        by_state = _family("adapters", "Adapters by state.", "state")
        for state in State:
            by_state.add_metric([state.value], states[state.value])
        behind = unconverged(registry).values()
        oldest = max((self._wall() - adapter.seen_at for adapter in behind), default=0.0)
        return (
            loaded,
            by_state,
            _gauge("adapters_unconverged", "Adapters that some replica still has to get.", len(behind)),
            _gauge("oldest_unconverged_seconds", "How long the oldest of them waits.", oldest),
        )


def _family(name: str, help: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, help, labels=labels)


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    family = _family(name, help)
    family.add_metric([], value)
    return family
