"""`python -m replica.sim` as a script uses it."""

import asyncio
import dataclasses
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from replica.sim import Faults
from replica.sim.__main__ import EPILOG
from tests.replica.simulated import adapter
from tests.waiting import until_true

SIM = (sys.executable, "-m", "replica.sim")


@asynccontextmanager
async def started(*arguments: str, replicas: int = 1) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str]]]:
    """The process and the addresses that it prints."""
    process = await asyncio.create_subprocess_exec(*SIM, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield process, [(await process.stdout.readline()).decode().strip() for _ in range(replicas)]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # or its pipe is closed by the garbage collector


def test_the_help_names_every_fault() -> None:
    assert {field.name for field in dataclasses.fields(Faults)} <= set(EPILOG.replace("=", " ").split())


async def test_many_replicas_each_with_its_own_state_end_with_one_signal(tmp_path: Path) -> None:
    async with started("--port", "0", "--replicas", "3", replicas=3) as (process, urls), httpx.AsyncClient() as http:
        assert len(set(urls)) == 3
        body = {"lora_name": "x", "lora_path": str(adapter(tmp_path, "abc"))}
        assert (await http.post(f"{urls[0]}/v1/load_lora_adapter", json=body)).status_code == 200
        lists = [(await http.get(f"{url}/v1/models")).json()["data"] for url in urls]
        assert [[entry["id"] for entry in entries] for entries in lists] == [["tiny", "x"], ["tiny"], ["tiny"]]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_faults_hold_from_the_start_and_a_dead_process_ends() -> None:
    faults = ("--fault", "health_status=503", "--fault", "die_on_request=engine")
    async with started("--port", "0", *faults) as (process, urls), httpx.AsyncClient(base_url=urls[0]) as http:
        assert (await http.get("/health")).status_code == 503
        await http.post("/v1/completions", json={"prompt": "x"})
        assert await process.wait() == 0


async def test_it_comes_back_by_itself_when_told_so() -> None:
    more = ("--restart-seconds", "0.1")
    async with started("--port", "0", *more) as (process, urls), httpx.AsyncClient(base_url=urls[0]) as http:
        await http.post("/sim/faults", json={"die": "engine"})

        async def healthy() -> bool:
            try:
                return (await http.get("/health")).status_code == 200
            except httpx.HTTPError:
                return False

        async def unhealthy() -> bool:
            return not await healthy()

        await until_true(unhealthy, what="its death")
        await until_true(healthy, what="its return")
        assert process.returncode is None


@pytest.mark.parametrize(
    "arguments, text",
    [
        pytest.param([], "--port", id="no-port"),
        pytest.param(["--port", "0", "--fault", "nosuch=1"], "no fault 'nosuch'", id="unknown-fault"),
        pytest.param(["--port", "1", "--port", "2", "--replicas", "2"], "--replicas", id="two-ports-and-replicas"),
    ],
)
def test_wrong_arguments_end_with_exit_2(arguments: list[str], text: str) -> None:
    done = subprocess.run([*SIM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and text in done.stderr


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([*SIM, "--port", port], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("replica.sim: ") and "Traceback" not in done.stderr
