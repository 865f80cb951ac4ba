"""Real vLLM replicas on the CPU as test subjects: started on a port, waited for, killed, started again, always stopped.

LORA_GATEWAY_VLLM_PYTHON names the Python that has vLLM. Each replica is the leader of its own process group, since a
killed API server would leave its engine behind; a group is always ended by its own handle.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from tests.waiting import until_true

STARTS_WITHIN = 300.0  # seconds; 40 on an idle machine
ENGINE = "LORA_GATEWAY_VLLM_PYTHON"


class Server:
    """A server process under test: a real replica or a simulated one. `start` may be called again after it ended."""

    def __init__(self, command: Sequence[str], log: Path, *, port: int, environment: Mapping[str, str] | None = None) -> None:
        self.port = port
        self.log = log
        self._command = [*command]
        self._environment = dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Server {self.url} running={self.running} log={self.log}>"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Does not wait: see `healthy`."""
        assert not self.running, self
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )

    async def healthy(self, seconds: float = STARTS_WITHIN) -> None:
        """Wait until /health is 200; fails with the end of its log when it ended instead."""
        async with httpx.AsyncClient(base_url=self.url, timeout=2, trust_env=False) as client:

            async def answers() -> bool:
                if not self.running:
                    raise AssertionError(f"{self} ended while starting:\n{self.tail()}")
                try:
                    return (await client.get("/health")).status_code == 200
                except httpx.HTTPError:
                    return False

            await until_true(answers, seconds, f"/health of {self}")

    def terminate(self) -> None:
        """SIGTERM to the server itself, as a container's runtime does."""
        assert self._process is not None
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the server and its engine; returns when it is gone."""
        assert self._process is not None
        self._kill_group()
        self._process.wait(10)

    async def ended(self, seconds: float) -> int:
        """Wait until it has ended by itself; its exit code."""
        process = self._process
        assert process is not None
        return await asyncio.to_thread(process.wait, seconds)

    def stop(self) -> None:
        """SIGTERM, ten seconds, SIGKILL; nothing of it is left."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._kill_group()
        self._process.wait(10)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _kill_group(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def real_server(model: Path, log: Path, *arguments: str, port: int = 0, environment: Mapping[str, str] | None = None) -> Server:
    """A real replica, not started yet, in the lean layout, which serves the model as `tiny` unless told otherwise."""
    assert os.environ.get(ENGINE), f"{ENGINE} does not name a Python with vLLM (make test-vllm does it)"
    port = port or free_port()
    name = () if "--served-model-name" in arguments else ("--served-model-name", "tiny")
    serve = [sys.executable, "-m", "replica.serve", str(model), "--cpu-lean", "--port", str(port), *name, *arguments]
    return Server(serve, log, port=port, environment=environment)


@asynccontextmanager
async def real_replica(model: Path, log: Path, *arguments: str, port: int = 0) -> AsyncIterator[Server]:
    """A real replica that is healthy."""
    server = real_server(model, log, *arguments, port=port)
    server.start()
    try:
        await server.healthy()
        yield server
    finally:
        await asyncio.to_thread(server.stop)


def free_port() -> int:
    """A port that was free a moment ago; a server that is started again needs to know its port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
