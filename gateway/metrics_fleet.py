"""The state of the gateway and its replicas, read from the registry whenever somebody scrapes: never out of date.

Who is gone has no series any more. What there is for each adapter is another module's, since it is much.
"""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.registry import Registry
from gateway.core.replica import Phase


class FleetCollector(Collector):
    """See the module."""

    def __init__(self, prefix: str, registry: Registry, watch_mode: Callable[[], str]) -> None:
        self._prefix, self._registry, self._watch_mode = prefix, registry, watch_mode

    def collect(self) -> Iterable[Metric]:
        registry = self._registry
        ready = registry.scanned and any(replica.ready for replica in registry.replicas())
        yield self._gauge("ready", "1 once the directory was read and while a replica is ready.", float(ready))
        readable = float(not registry.catalog.trouble)
        yield self._gauge("directory_readable", "1 while the adapter directory can be read.", readable)
        yield self._gauge("waiting_requests", "Requests that wait for a replica.", registry.waiting)
        mode = self._family("watch_events", "How changes of the directory are noticed.", "mode")
        for name in ("events", "polling"):
            mode.add_metric([name], float(self._watch_mode() == name))
        yield mode
        yield from self._replicas()

    def _replicas(self) -> Iterable[Metric]:
        inflight = self._family("inflight_requests", "Requests in flight.", "replica")
        up = self._family("replica_up", "1 while the replica is ready.", "replica")
        phases = self._family("replica_phase", "1 for the phase the replica is in.", "replica", "phase")
        held = self._family("replica_held_adapters", "Adapters of ours that it holds.", "replica")
        text = "Requests given to the replica, those sent again too."
        taken = CounterMetricFamily(self._prefix + "replica_requests", text, labels=["replica"])
        for station in self._registry.stations.values():
            replica = station.replica
            taken.add_metric([replica.id], station.taken)
            inflight.add_metric([replica.id], station.inflight)
            up.add_metric([replica.id], float(replica.ready))
            held.add_metric([replica.id], len(replica.held))
            for phase in Phase:
                phases.add_metric([replica.id, phase.value], float(replica.phase is phase))
        return inflight, taken, up, phases, held

    def _family(self, name: str, help: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._prefix + name, help, labels=labels)

    def _gauge(self, name: str, help: str, value: float) -> GaugeMetricFamily:
        family = self._family(name, help)
        family.add_metric([], value)
        return family
