"""docs/quickstart.md works as written: its shell blocks are run one after the other, in this environment and on free ports."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```\n(.*?)^```$", (ROOT / "docs/quickstart.md").read_text(), re.MULTILINE | re.DOTALL)
STAYS = ("replica.sim", "lora-gateway serve")  # what a reader starts in a terminal of its own
MADE_BEFORE = ("-m venv", "pip install")  # this environment is what these lines make
STARTS_WITHIN = 20.0


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def commands(block: str, ports: dict[str, int]) -> str:
    kept = [line for line in block.splitlines() if not any(text in line for text in MADE_BEFORE)]
    text = "\n".join(kept).replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    for written, port in ports.items():
        text = re.sub(rf"\b{written}\b", str(port), text)
    return text


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until_ready(port: int) -> None:
    """As long as a reader takes to type."""
    end = time.monotonic() + STARTS_WITHIN
    while httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code != 200:
        assert time.monotonic() < end, "not ready"
        time.sleep(0.05)


@contextmanager
def started(text: str, folder: Path, environment: dict[str, str], ports: list[int]) -> Iterator[None]:
    """A command that stays, once all of its ports answer."""
    if text.lstrip().startswith("/") and "serve" in text:
        text += f" --port {ports[0]}"
    with subprocess.Popen(
        ["bash", "-c", f"exec {text.strip()}"], cwd=folder, env=environment, stderr=subprocess.PIPE
    ) as process:
        try:
            end = time.monotonic() + STARTS_WITHIN
            while not all(listens(port) for port in ports):
                assert process.poll() is None, process.stderr and process.stderr.read().decode()
                assert time.monotonic() < end, f"not listening: {text}"
                time.sleep(0.05)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)


def test_every_block_of_the_quickstart_works_as_written(tmp_path: Path) -> None:
    gateway, one, two = free_ports(3)
    ports = {"8000": gateway, "8001": one, "8002": two}
    environment = {**os.environ, "LORA_GATEWAY_URL": f"http://127.0.0.1:{gateway}", "COLUMNS": "200"}
    environment["PYTHONPATH"] = str(ROOT)
    blocks = [commands(block, ports) for block in BLOCKS]
    assert sum(any(text in block for text in STAYS) for block in blocks) == 2, "replicas and gateway"

    def run(block: str) -> str:
        shell = ["bash", "-e", "-o", "pipefail", "-c", block]
        done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        assert '"error"' not in done.stdout, done.stdout
        return done.stdout

    before, replicas, serve, ask, *after = blocks
    assert "sql" in run(before)
    with (
        started(replicas, tmp_path, environment, [one, two]),
        started(serve, tmp_path, environment, [gateway]),
    ):
        wait_until_ready(gateway)
        said = run(ask)
        assert '"id":"poet"' in said and '"text":"rhymerhyme"' in said
        assert re.search(r"poet +[0-9a-f]{12} +tiny", said), "the table of the status"
        for block in after:
            answers = [json.loads(line) for line in re.findall(r"^\{.*\}$", run(block), re.MULTILINE)]
            assert [answer["choices"][0]["text"] for answer in answers] == ["freshfresh"]
