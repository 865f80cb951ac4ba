"""`/metrics` of one simulated replica: what a router of vLLM replicas and its dashboards read."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from replica.sim.engine import Engine
from replica.sim.options import Options

_FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)


class ReplicaMetrics(Collector):
    """`vllm:lora_requests_info` keeps one series per combination seen, its value the time it was last true."""

    def __init__(self, options: Options, engine: Engine, *, started_at: float) -> None:
        self._options = options
        self._engine = engine
        self._started_at = started_at
        self._seen: dict[tuple[str, str], float] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        name, labels = "vllm:time_to_first_token_seconds", ["engine", "model_name"]
        times = Histogram(name, "Time to first token.", labels, buckets=_FIRST_TOKEN, registry=self._registry)
        engine.first_token = times.labels("0", options.model_names[0]).observe

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def note(self) -> None:
        """Called when an adapter's request starts or ends; the real one writes both labels alike."""
        running = {sequence.lora.name for sequence in self._engine.running if sequence.lora}
        waiting = {lora.name for lora in self._engine.waiting if lora}
        names = ",".join(sorted(running | waiting))
        if names or self._seen:
            self._seen[names, names] = time.time()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = {"engine": "0", "model_name": self._options.model_names[0]}
        deferred = self._deferred()
        waiting = len(self._engine.waiting)
        yield _gauge("process_start_time_seconds", "Start time of the process.", {}, self._started_at)
        yield _gauge("vllm:num_requests_running", "Requests in execution.", labels, len(self._engine.running))
        yield _gauge("vllm:num_requests_waiting", "Requests waiting.", labels, waiting)
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", labels=[*labels, "reason"]
        )
        by_reason.add_metric([*labels.values(), "capacity"], waiting - deferred)
        by_reason.add_metric([*labels.values(), "deferred"], deferred)
        yield by_reason
        usage = min(1.0, len(self._engine.running) / self._options.max_num_seqs)
        yield _gauge("vllm:kv_cache_usage_perc", "KV-cache usage.", labels, usage)
        loras = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        for (running, queued), at in self._seen.items():
            loras.add_metric([str(self._options.max_loras), running, queued], at)
        yield loras

    def _deferred(self) -> int:
        """Waiting for a LoRA slot; others wait for room in the batch."""
        full = len(self._engine.running) >= self._options.max_num_seqs
        return 0 if full else sum(lora is not None for lora in self._engine.waiting)


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[*labels])
    family.add_metric([*labels.values()], value)
    return family
