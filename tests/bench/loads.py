"""The loads that every proxy gets: what the generator is told, for how long, and which figures count."""

from collections.abc import Callable
from dataclasses import dataclass

Sample = dict  # one line of JSON from bench.c, and the noise seen meanwhile


def field(name: str) -> Callable[[Sample], float | None]:
    """A field of the sample; -1 is the generator's "none"."""
    return lambda s: s[name] if s[name] >= 0 else None


def per_cpu(count: str) -> Callable[[Sample], float | None]:
    return lambda s: s[count] / s["proxy_cpu"] if s["proxy_cpu"] and s[count] else None


def cpu_per(count: str, scale: float) -> Callable[[Sample], float | None]:
    return lambda s: s["proxy_cpu"] / s[count] * scale if s["proxy_cpu"] and s[count] else None


def added(name: str) -> Callable[[Sample], float | None]:
    """What the proxy adds to the direct way, measured in the same round."""
    return lambda s: s[name] - s["direct"][name] if "direct" in s else None


CPU = ("proxy cpu", lambda s: s["proxy_cpu"] / s["seconds"])
REQUESTS = (
    ("rps", field("rps")),
    ("req/cpu-s", per_cpu("requests")),
    ("p50 us", field("lat50")),
    ("p99 us", field("lat99")),
    CPU,
)
CHUNKS = (
    ("chunks/s", field("cps")),
    ("chunks/cpu-s", per_cpu("chunks")),
    ("cpu s/1M", cpu_per("chunks", 1e6)),
    ("lat p50 us", field("lat50")),
    ("lat p99 us", field("lat99")),
    CPU,
)
PACED = (
    ("cpu s/1M", cpu_per("chunks", 1e6)),
    ("chunks/s", field("cps")),
    ("lat p50 us", field("lat50")),
    ("lat p99 us", field("lat99")),
    ("gap p99 us", field("gap99")),
    ("ttft p50 us", field("ttft50")),
    ("ttft p99 us", field("ttft99")),
    CPU,
)


@dataclass(frozen=True)
class Load:
    title: str
    command: str
    seconds: float
    warm: float
    short_warm: float
    figures: tuple  # (name, function of a sample); the first one is shown as a ratio to the peers

    def line(self, short: bool) -> str:
        seconds, warm = (1, self.short_warm) if short else (self.seconds, self.warm)
        return f"{self.command} --dur {seconds} --warm {warm}"


LOADS = {
    "r1": Load(
        "non-stream, 1 client",
        "req --conc 1",
        1.5,
        0.5,
        0.5,
        (*REQUESTS[:4], ("added p50 us", added("lat50")), ("added p99 us", added("lat99")), CPU),
    ),
    "r32": Load("non-stream, 32 clients", "req --conc 32", 2, 0.7, 0.5, REQUESTS),
    "r256": Load("non-stream, 256 clients", "req --conc 256", 2, 2.5, 1.2, REQUESTS),
    "l64": Load(
        "lock-step SSE, 64 streams (one chunk per relay, nothing to coalesce)",
        "sse --streams 64 --mode lock --chunks 1000",
        2,
        0.7,
        0.5,
        CHUNKS,
    ),
    "l512": Load(
        "lock-step SSE, 512 streams",
        "sse --streams 512 --mode lock --chunks 1000",
        2.5,
        2,
        1.2,
        (*CHUNKS, ("live", field("live"))),
    ),
    "f64": Load(
        "flood SSE, 64 streams (coalescing allowed)",
        "sse --streams 64 --mode flood --chunks 20000",
        1.5,
        0.7,
        0.5,
        (*CHUNKS[:2], CPU),
    ),
    "p200": Load(
        "200 streams, a chunk each 20 ms, spread", "sse --streams 200 --mode paced --iv 20000 --chunks 100", 3, 1, 0.5, PACED
    ),
    "t200": Load(
        "200 streams, a chunk each 20 ms, all on one tick",
        "sse --streams 200 --mode tick --iv 20000 --chunks 100",
        3,
        1,
        0.5,
        PACED,
    ),
    "b2m": Load(
        "2 MB body, 1 client",
        "req --conc 1 --body 2000000",
        1.5,
        0.5,
        0.5,
        (
            ("rps", field("rps")),
            ("p50 us", field("lat50")),
            ("p99 us", field("lat99")),
            ("cpu ms/req", cpu_per("requests", 1e3)),
        ),
    ),
}

# 1000 open streams for the memory, after a few requests so that only the streams count; run reads the proxy's PSS
# MEMORY_AFTER seconds after the start
MEMORY_WARM_UP = "req --conc 1 --dur 0.5 --warm 0"
MEMORY = "sse --streams 1000 --mode paced --iv 500000 --chunks 100000 --warm 3 --dur 4"
MEMORY_AFTER = 5.5
