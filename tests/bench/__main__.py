"""Start the named proxies on core 1, drive them in turn from core 0 with the same loads, print what they did.

  make bench                                       gateway, nginx, vllm-router, direct: about 12 minutes
  make bench BENCH="--rounds 1 --tests r32,l64"    a quick look
  make bench BENCH="direct nginx gateway"          only these

direct: no proxy, the generator's own ceiling. gateway: adapter requests under the client's name; gateway-rewrite: the
same with the name rewritten both ways; gateway-base: the base model. Only ratios within one run count. Needs two cores,
gcc and nginx (Debian packages of these names); vllm-router is installed into an environment of its own.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench import report
from tests.bench.loads import LOADS, MEMORY, MEMORY_AFTER, MEMORY_WARM_UP, Sample
from tests.bench.peers import NotStarted, Peer, free_port, known_peers

HERE = Path(__file__).parent
HOME = Path(os.environ.get("LORA_GATEWAY_CACHE", Path.home() / ".cache/lora-gateway")) / "bench"
VLLM_ROUTER = "vllm-router==0.1.17"
NAMES = ("direct", "nginx", "vllm-router", "gateway", "gateway-rewrite")
QUIET = 0.35  # CPU seconds per second that others may use when a measurement begins
QUIET_PATIENCE = 8  # seconds to wait for that
TRIES = 3  # a measurement with noise is made again


class Generator:
    """bench.c on core 0: the replicas and the clients in one process."""

    def __init__(self, replicas: list[int]):
        command = ["taskset", "-c", "0", str(HOME / "bench"), "serve", "--replicas", ",".join(map(str, replicas))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def begin(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def result(self) -> Sample:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("bench: the load generator ended")
        return json.loads(line)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(5)


def machine_cpu() -> float:
    """Seconds of CPU that the whole machine has used."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(ticks[i] for i in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def quiet_machine() -> Iterator[None]:
    """Waits, for a while, until little else runs."""
    end = time.monotonic() + QUIET_PATIENCE
    while True:
        before = machine_cpu()
        time.sleep(0.25)
        if (machine_cpu() - before) / 0.25 < QUIET or time.monotonic() > end:
            break
        time.sleep(0.7)
    yield


def prepare(names: list[str]) -> None:
    """Compile the generator and install the router, once."""
    HOME.mkdir(parents=True, exist_ok=True)
    source, binary = HERE / "bench.c", HOME / "bench"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        if shutil.which("gcc") is None:
            sys.exit("bench: gcc is needed (Debian: apt-get install gcc libc6-dev)")
        tell("compiling the load generator")
        subprocess.run(["gcc", "-O2", "-Wall", "-o", str(binary), str(source)], check=True)
    if "vllm-router" in names and not (HOME / "vllm-router/bin/vllm-router").exists():
        tell(f"installing {VLLM_ROUTER}")
        subprocess.run([sys.executable, "-m", "venv", str(HOME / "vllm-router")], check=True)
        subprocess.run([str(HOME / "vllm-router/bin/pip"), "install", "-q", VLLM_ROUTER], check=True)


def measure(generator: Generator, peer: Peer, line: str) -> Sample:
    pids = ",".join(map(str, peer.server.pids()))
    command = f"{line} --target {peer.server.port} --model {peer.model}" + (f" --pids {pids}" if pids else "")
    for attempt in range(TRIES):
        with quiet_machine():
            generator.begin(command)
            sample = generator.result()
        others = sample["machine_cpu"] - sample["proxy_cpu"] - sample["bench_cpu"]
        sample["foreign"] = max(0.0, others / sample["seconds"])
        sample["steal"] = sample["stolen_cpu"] / sample["seconds"]
        sample["attempt"] = attempt
        if not report.noisy(sample):
            break
    return sample


def measure_memory(generator: Generator, peer: Peer) -> dict:
    where = f"--target {peer.server.port} --model {peer.model}"
    with quiet_machine():
        generator.begin(f"{MEMORY_WARM_UP} {where}")
        generator.result()
        before = peer.server.pss()
        generator.begin(f"{MEMORY} {where}")
        time.sleep(MEMORY_AFTER)
        at_1000 = peer.server.pss()
        sample = generator.result()
    per_1000 = (at_1000 - before) * 1000 / sample["live"] if sample["live"] else None
    keys = ("live", "left_03", "left_33", "errors", "bad")
    return {"before": before, "at_1000": at_1000, "per_1000": per_1000} | {k: sample[k] for k in keys}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="each round measures every proxy once (default 5)")
    parser.add_argument("--short", action="store_true", help="measure for 1 s, for many rounds")
    parser.add_argument("--tests", default=",".join(LOADS), help="default: %(default)s")
    parser.add_argument("--rss", action="store_true", help="also the memory of 1000 open streams")
    parser.add_argument("--out", type=Path, default=HOME / "results/last.json", help="every sample, for report.py")
    parser.add_argument("--targets", type=Path, default=HERE / "targets.json", help="a verdict on these")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NAMES)}")
    given = parser.parse_args()
    given.tests = given.tests.split(",") if given.tests else []
    if unknown := [t for t in given.tests if t not in LOADS]:
        parser.error(f"unknown test {unknown[0]}; known: {' '.join(LOADS)}")
    given.names = given.names or list(NAMES)
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("needs two cores")
    return given


def main() -> None:
    given = options()
    prepare(given.names)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(20000, limit), limit))
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: sys.exit(1))
    logs = HOME / "logs"
    for folder in (logs, given.out.parent):
        folder.mkdir(parents=True, exist_ok=True)

    replicas = [free_port(), free_port()]
    known = known_peers(HOME, replicas)
    if unknown := [n for n in given.names if n not in known]:
        sys.exit(f"bench: unknown proxy {unknown[0]}; known: {' '.join(known)}")
    generator = Generator(replicas)
    peers: list[Peer] = []
    results: dict = {}
    try:
        for name in given.names:
            try:
                known[name].start(logs / f"{known[name].server.name}.log", replicas)
                peers.append(known[name])
            except NotStarted as error:
                tell(f"bench: {name} did not start: {error}")
        time.sleep(1)
        for peer in peers if given.rss else []:  # before the other loads, which grow the heap; gateway-base is the gateway
            if peer.name in ("direct", "gateway-base"):
                continue
            results.setdefault(peer.name, {})["rss"] = measure_memory(generator, peer)
            given.out.write_text(json.dumps(results))
            tell(f"rss {peer.name:14}{results[peer.name]['rss']}")
        for round_ in range(given.rounds):
            for test in given.tests:
                for peer in peers:
                    sample = measure(generator, peer, LOADS[test].line(given.short)) | {"round": round_}
                    results.setdefault(peer.name, {}).setdefault(test, []).append(sample)
                    given.out.write_text(json.dumps(results))
                    tell(f"[{round_}] {test:5}{peer.name:14}" + report.progress(sample))
    finally:
        for peer in known.values():
            peer.server.stop()
        generator.stop()
    met = report.show([results], given.targets, given.json)
    if not met or len(peers) < len(given.names):
        sys.exit(1)


if __name__ == "__main__":
    main()
