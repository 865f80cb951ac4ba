"""The demo's processes: started with their output in a log file, waited for, killed, and all stopped at the end."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

PATIENCE = 10.0  # seconds between asking a process to end and ending it


class NotReady(Exception):
    """A process did not come up; the message says why and where its log is."""


class Process:
    """One command with its log. `kill` is sudden, `stop` asks first."""

    def __init__(self, name: str, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name, self.log = name, log
        self._command, self._env = command, {**os.environ, **(env or {})}
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._running = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def wait_until_ready(self, url: str, seconds: float, waiting: Callable[[], None]) -> None:
        """Until `url` answers 200; raises NotReady when the process has ended or the time is over."""
        end = time.monotonic() + seconds
        while not answers(url):
            code = self._running.poll() if self._running else None
            if code is not None:
                raise NotReady(f"{self.name} ended with exit code {code}: {self._last_lines()}")
            if time.monotonic() > end:
                raise NotReady(f"{self.name} was not ready after {seconds:g} s; its log is {self.log}")
            waiting()
            time.sleep(0.1)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def join(self) -> None:
        """Wait until it has ended, then make sure."""
        if self._running is None:
            return
        try:
            self._running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)  # what it left behind in its session
            self._running.wait()
            self._running = None

    def _signal(self, number: int) -> None:
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, number)

    def _last_lines(self, count: int = 4) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()[-count:]
        return " | ".join(lines) + f" (all of it: {self.log})"


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
