"""The demo's fleet: a directory of tiny adapters, replicas of one engine, and a gateway in front of them."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from gateway.demo.processes import NotReady, Process, free_port

SAYS = {"sql": "SQL;", "poet": "rhyme", "legal": "clause", "french": "merci"}
LATE = "french"  # dropped into the directory while everything runs
STARTS_WITHIN = {"sim": 30.0, "vllm": 240.0}  # seconds


class Fleet:
    """Made in a folder of its own, removed with `close`."""

    def __init__(self, engine: str, replicas: int, port: int) -> None:
        self.engine = engine
        self.root = Path(tempfile.mkdtemp(prefix="lora-gateway-demo-"))
        self.adapters, self.model = self.root / "adapters", self.root / "model"
        self.url = f"http://127.0.0.1:{port}"
        ports = [free_port() for _ in range(replicas)]
        self.replicas = {f"127.0.0.1:{p}": self._replica(number, p) for number, p in enumerate(ports, 1)}
        self.gateway = self._gateway(port)

    def _replica(self, number: int, port: int) -> Process:
        more = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
        if self.engine == "vllm":
            command = ["replica.serve", str(self.model), "--cpu-lean", *more, "--max-loras", "4"]
        else:
            command = ["replica.sim", "--adapter-dir", str(self.adapters), *more, "--load-seconds", "0.4"]
        return Process(f"replica {number}", [sys.executable, "-m", *command], self.root / f"replica-{number}.log")

    def _gateway(self, port: int) -> Process:
        command = ["gateway", "serve", "--adapter-dir", str(self.adapters), "--port", str(port), "--unload-linger", "5"]
        for replica in self.replicas:
            command += ["--replica", f"http://{replica}"]
        return Process("the gateway", [sys.executable, "-m", *command], self.root / "gateway.log")

    def make_adapters(self) -> None:
        """The tiny model and its adapters; the late one is kept aside."""
        made = subprocess.run(
            [sys.executable, "-m", "replica.tiny", str(self.root)], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise NotReady(f"the adapters could not be made: {made.stderr.strip().splitlines()[-1:]}")
        (self.adapters / LATE).rename(self.root / LATE)

    def drop_in(self, name: str) -> None:
        """What an operator would do: copy the folder in."""
        shutil.copytree(self.root / name, self.adapters / name)

    def start_replica(self, replica: str) -> None:
        self.replicas[replica].start()

    def wait_for_replica(self, replica: str, waiting: Callable[[], None]) -> None:
        self.replicas[replica].wait_until_ready(f"http://{replica}/health", STARTS_WITHIN[self.engine], waiting)

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = httpx.get(f"{self.url}/admin/status", timeout=5, trust_env=False).json()
        return document

    def close(self) -> None:
        """Ask every process to end, then make sure. Who interrupts this again does not wait for the asking."""
        processes = [self.gateway, *self.replicas.values()]
        try:
            for process in processes:
                process.stop()
            for process in processes:
                process.join()
        finally:
            for process in processes:
                process.kill()
                process.join()
            shutil.rmtree(self.root, ignore_errors=True)
