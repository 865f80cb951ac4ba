"""How each proxy is started, when it is ready, and which model name its clients send."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.adapters import write_adapter

HERE = Path(__file__).resolve().parent
ADAPTER = "bench-adapter"
START_TIMEOUT = 60  # seconds


class NotStarted(Exception):
    pass


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(url: str, body: dict | None = None) -> tuple[int, str]:
    """Status and text; a refused connection is status 0."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)


def with_children(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue  # it has just ended
            children.setdefault(parent, []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


@dataclass
class Server:
    """One proxy process, pinned to core 1. `direct` has no command."""

    name: str
    port: int
    command: list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen | None = None

    def start(self, log: Path) -> None:
        if self.command is None or self.process is not None:
            return
        if shutil.which(self.command[0]) is None:
            raise NotStarted(f"no command {self.command[0]}")
        with log.open("w") as out:
            self.process = subprocess.Popen(
                ["taskset", "-c", "1", *self.command],
                env=os.environ | self.env,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        return with_children(self.process.pid) if self.process else []

    def pss(self) -> float:
        """MiB."""
        kib = 0
        for pid in self.pids():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return kib / 1024

    def stop(self) -> None:
        if self.process is None:
            return
        for sig, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.process.pid, sig)
                self.process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        self.process = None


@dataclass
class Peer:
    """A name on the command line: a server and the model its clients ask for."""

    name: str
    server: Server
    model: str = "m"

    def start(self, log: Path, replicas: list[int]) -> None:
        """Returns when the proxy answers as it should; raises NotStarted with the reason."""
        self.server.start(log)
        end = time.monotonic() + START_TIMEOUT
        while (reason := self._not_ready(replicas)) is not None:
            process = self.server.process
            if process is not None and process.poll() is not None:
                raise NotStarted(f"exit code {process.returncode}\n{tail(log)}")
            if time.monotonic() > end:
                raise NotStarted(f"not ready after {START_TIMEOUT} s: {reason}\n{tail(log)}")
            time.sleep(0.3)

    def _not_ready(self, replicas: list[int]) -> str | None:
        url = f"http://127.0.0.1:{self.server.port}"
        if self.server.name.startswith("gateway"):
            status, text = fetch(url + "/readyz")
            if status != 200:
                return f"/readyz: {status} {text[:200]}"
        message = {"role": "user", "content": "x"}
        status, text = fetch(url + "/v1/chat/completions", {"model": self.model, "messages": [message]})
        if status != 200:
            return f"a request: {status} {text[:200]}"
        if f'"model":"{self.model}"' not in text.replace(": ", ":"):
            return f"asked for {self.model}, the answer is {text[:200]}"
        if self.model == ADAPTER:  # a replica refuses names it has not loaded, so this shows under which name it was asked
            held = [m["id"] for p in replicas for m in json.loads(fetch(f"http://127.0.0.1:{p}/v1/models")[1])["data"]]
            revisions = [name for name in held if name.startswith(ADAPTER + "@")]
            if self.name == "gateway-rewrite" and not revisions:
                return f"the replicas should hold {ADAPTER}@REVISION (no snapshots) and hold {held}"
            if self.name == "gateway" and ADAPTER not in held:
                return f"the replicas should hold {ADAPTER} (from a snapshot) and hold {held}"
        return None


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def known_peers(home: Path, replicas: list[int]) -> dict[str, Peer]:
    """Everything that can be measured, by name; files they need are written below `home`."""
    urls = [f"http://127.0.0.1:{p}" for p in replicas]
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    product = _gateway("gateway", work, urls)
    servers = [Server("direct", replicas[0]), _nginx(work, replicas), _vllm_router(home, urls)]
    peers = {s.name: Peer(s.name, s) for s in servers}
    peers["gateway"] = Peer("gateway", product, ADAPTER)
    peers["gateway-base"] = Peer("gateway-base", product)
    peers["gateway-rewrite"] = Peer("gateway-rewrite", _gateway("gateway-rewrite", work, urls, "--snapshots", "off"), ADAPTER)
    return peers


def _nginx(work: Path, replicas: list[int]) -> Server:
    port, text = free_port(), (HERE / "nginx.conf").read_text()
    for key, value in {"WORK": work, "PORT": port, "REPLICA1": replicas[0], "REPLICA2": replicas[1]}.items():
        text = text.replace(f"@{key}@", str(value))
    (work / "nginx.conf").write_text(text)
    return Server("nginx", port, ["nginx", "-c", str(work / "nginx.conf")])


def _vllm_router(home: Path, urls: list[str]) -> Server:
    port = free_port()
    command = [str(home / "vllm-router/bin/vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *urls, "--policy", "power_of_two", "--log-level", "error", "--max-concurrent-requests", "8192"]
    return Server("vllm-router", port, [*command, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())])


def _gateway(name: str, work: Path, urls: list[str], *more: str) -> Server:
    port, adapters = free_port(), work / f"{name}-adapters"
    shutil.rmtree(adapters, ignore_errors=True)
    write_adapter(adapters / ADAPTER, base_model="m")
    command = [sys.executable, "-m", "gateway", "serve", "--adapter-dir", str(adapters), "--port", str(port)]
    return Server(name, port, [*command, "--replica", urls[0], "--replica", urls[1], *more])
