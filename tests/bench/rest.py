"""`python -m tests.bench.rest`: what a gateway costs that has nothing to do but look after a large fleet.

Starts simulated replicas (in one process) and a gateway, makes adapters, waits until each replica holds each adapter, then
measures the gateway's share of a core. Tells how long the convergence took, too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.adapters import write_adapter
from tests.bench.peers import free_port, with_children


def cpu_seconds(pid: int) -> float:
    ticks = 0
    for each in with_children(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def converged(url: str, replicas: int, adapters: int) -> bool:
    try:
        rows = httpx.get(f"{url}/admin/matrix", timeout=30, trust_env=False).json()["replicas"]
    except (httpx.HTTPError, KeyError):
        return False
    held = sum(row["held"] if isinstance(row["held"], int) else len(row["held"]) for row in rows)
    print(f"\r{held} of {replicas * adapters} loaded", end="", file=sys.stderr, flush=True)
    return bool(held >= replicas * adapters)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rest", description=__doc__)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--adapters", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--within", type=float, default=900.0, help="seconds to wait for the convergence")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="lora-gateway-rest-"))
    for number in range(given.adapters):
        write_adapter(root / "adapters" / f"adapter-{number:04}", seed=number, base_model="tiny", age=5)
    ports = [str(free_port()) for _ in range(given.replicas)]
    sims = [sys.executable, "-m", "replica.sim", "--adapter-dir", str(root / "adapters"), "--max-loras", "8"]
    port = free_port()
    gateway = [sys.executable, "-m", "gateway", "serve", "--adapter-dir", str(root / "adapters"), "--port", str(port)]
    gateway += [part for p in ports for part in ("--replica", f"http://127.0.0.1:{p}")]
    log = (root / "log").open("wb")
    running = [subprocess.Popen([*sims, *(x for p in ports for x in ("--port", p))], stdout=log, stderr=log)]
    try:
        time.sleep(3)
        running.append(subprocess.Popen(gateway, stdout=log, stderr=log))
        began, pid = time.monotonic(), running[1].pid
        while not converged(f"http://127.0.0.1:{port}", given.replicas, given.adapters):
            if time.monotonic() - began > given.within or running[1].poll() is not None:
                sys.exit(f"\nnot converged after {time.monotonic() - began:.0f} s; the log is {root}/log")
            time.sleep(2)
        spent = cpu_seconds(pid)
        print(f"\nconverged after {time.monotonic() - began:.0f} s, {spent:.0f} CPU seconds", file=sys.stderr)
        time.sleep(15)
        before, since = cpu_seconds(pid), time.monotonic()
        time.sleep(given.seconds)
        share = (cpu_seconds(pid) - before) / (time.monotonic() - since)
        rss = Path(f"/proc/{pid}/statm").read_text().split()[1]
        print(f"at rest: {100 * share:.1f} % of a core, {int(rss) * 4096 / 2**20:.0f} MiB")
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(40)
        log.close()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
