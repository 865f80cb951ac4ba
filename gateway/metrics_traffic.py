"""Requests as the data path counts them: plain numbers in plain dictionaries, made into metrics only when somebody scrapes.

Whole distributions are kept by endpoint; by model only the sum and the count of the times to the first byte, since a
directory may hold thousands of adapters. One event loop writes and reads them, so they need no locks; this is called for
every request.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)  # seconds
OTHER = "other"  # the model of a request that names nothing known
# Every fleet is asked these: their distributions are there from the start, so that not even a first made-up name adds them.
_USUAL = ("/v1/chat/completions", "/v1/completions")


class Spread:
    """How many observations fell below each bound, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        below, rows = 0, []
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            below += count
            rows.append(("+Inf" if bound == float("inf") else str(float(bound)), float(below)))
        return rows


def _spreads() -> defaultdict[str, Spread]:
    return defaultdict(Spread, {endpoint: Spread() for endpoint in _USUAL})


class Traffic(Collector):
    """Labels are known names: `model` is a base model, an adapter, a static LoRA or `other`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._durations = _spreads()
        self._first_bytes = _spreads()
        self._by_model: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])  # first bytes: how many, seconds

    def finished(self, model: str, endpoint: str, code: int, seconds: float, first_byte: float | None) -> None:
        self._requests[model, endpoint, code] += 1
        self._durations[endpoint].note(seconds)
        if first_byte is not None:
            self._first_bytes[endpoint].note(first_byte)
            sums = self._by_model[model]
            sums[0] += 1
            sums[1] += first_byte

    def keep(self, known: Callable[[str], bool]) -> None:
        """Drop the series of the models that are not known any more."""
        for model in {key[0] for key in self._requests if not known(key[0])}:
            self._by_model.pop(model, None)
            for key in [key for key in self._requests if key[0] == model]:
                del self._requests[key]

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(f"{self._prefix}requests", "Answered requests.", labels=["model", "endpoint", "code"])
        for (model, endpoint, code), count in self._requests.items():
            requests.add_metric([model, endpoint, str(code)], count)
        yield requests
        yield self._histogram("request_duration_seconds", "Whole requests.", self._durations)
        yield self._histogram("time_to_first_byte_seconds", "Until the answer began.", self._first_bytes)
        name = f"{self._prefix}model_time_to_first_byte_seconds"
        by_model = SummaryMetricFamily(name, "Until the answer began, by model.", labels=["model"])
        for model, (answers, seconds) in self._by_model.items():
            by_model.add_metric([model], int(answers), seconds)
        yield by_model

    def _histogram(self, name: str, help: str, spreads: dict[str, Spread]) -> Metric:
        family = HistogramMetricFamily(self._prefix + name, help, labels=["endpoint"])
        for endpoint, spread in spreads.items():
            family.add_metric([endpoint], spread.buckets(), spread.total)
        return family
