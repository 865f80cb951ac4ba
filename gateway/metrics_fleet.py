"""The state of adapters and replicas, read from the registry whenever somebody scrapes: nothing here can be out of date.

Who is gone has no series any more. Sparse families (a state, what is missing, what fails) hold what is the case only, so
they cost little in a fleet that is well.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.adapters import Adapter, RejectedState, Revision
from gateway.core.registry import Registry
from gateway.core.replica import Phase
from gateway.core.standing import State, standing, unconverged


class FleetCollector(Collector):
    """See the module. `wall` tells seconds as `Adapter.seen_at` does."""

    def __init__(self, prefix: str, registry: Registry, watch_mode: Callable[[], str], wall: Callable[[], float]) -> None:
        self._prefix, self._registry, self._watch_mode, self._wall = prefix, registry, watch_mode, wall
        self._whole: dict[Revision, float] = {}  # when a scrape last found it wherever it should be

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
        yield from self._states()
        yield from self._held()
        yield from self._behind()

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

    def _states(self) -> Iterable[Metric]:
        states = self._state_of_each()
        each = self._family("adapter_state", "1 for the state the adapter is in.", "adapter", "state")
        for name, state in states.items():
            each.add_metric([name, state.value], 1.0)
        tally = Tally(states.values())
        total = self._family("adapters", "Adapters by state.", "state")
        for state in State:
            total.add_metric([state.value], tally[state])
        revisions = self._family("adapter_info", "The revision that the adapter's name means now.", "adapter", "revision")
        for name, adapter in self._registry.catalog.adapters.items():
            revisions.add_metric([name, adapter.digest], 1.0)
        return each, total, revisions

    def _state_of_each(self) -> Mapping[str, State]:
        """By name: what lies in the directory, and what some replica holds still though its folder is gone."""
        catalog = self._registry.catalog
        states = {
            revision.name: State.REMOVING
            for replica in self._registry.replicas()
            for revision in replica.held
            if revision in self._registry.unwanted
        }
        for name, rejected in catalog.rejected.items():
            states[name] = State.INCOMPLETE if rejected.state is RejectedState.INCOMPLETE else State.INVALID
        for name, adapter in catalog.adapters.items():
            states[name] = standing(adapter, self._registry).state
        return states

    def _held(self) -> Iterable[Metric]:
        loaded = self._family("adapter_loaded", "1 while the current revision is held.", "adapter", "replica")
        text = "1 while the last try to load the current revision has failed."
        failing = self._family("adapter_load_failing", text, "adapter", "replica", "kind")
        replicas = list(self._registry.replicas())
        for name, adapter in self._registry.catalog.adapters.items():
            for replica in replicas:
                loaded.add_metric([name, replica.id], float(adapter.revision in replica.held))
                failure = replica.failures.get(adapter.revision)
                if failure is not None:
                    failing.add_metric([name, replica.id, failure.kind.value], 1.0)
        return loaded, failing

    def _behind(self) -> Iterable[Metric]:
        behind, now = unconverged(self._registry), self._wall()
        waits = self._waits(behind, now)
        each = self._family("adapter_unconverged_seconds", "How long some replica still has to get it.", "adapter")
        for name, seconds in waits.items():
            each.add_metric([name], seconds)
        oldest = max(waits.values(), default=0.0)
        return (
            each,
            self._gauge("adapters_unconverged", "Adapters that some replica still has to get.", len(behind)),
            self._gauge("oldest_unconverged_seconds", "How long the oldest of them waits.", oldest),
        )

    def _waits(self, behind: Mapping[Revision, Adapter], now: float) -> Mapping[str, float]:
        """Seconds since it was seen in the directory, or since it was last everywhere: a replica may have restarted."""
        current = {adapter.revision for adapter in self._registry.catalog.adapters.values()}
        self._whole = {revision: at for revision, at in self._whole.items() if revision in current}
        self._whole.update(dict.fromkeys(current - behind.keys(), now))
        return {
            revision.name: max(0.0, now - max(adapter.seen_at, self._whole.get(revision, 0.0)))
            for revision, adapter in behind.items()
        }

    def _family(self, name: str, help: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._prefix + name, help, labels=labels)

    def _gauge(self, name: str, help: str, value: float) -> GaugeMetricFamily:
        family = self._family(name, help)
        family.add_metric([], value)
        return family
