"""`lora-gateway demo` as a process: whatever ends it ends the replicas and the gateway that it started."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parent.parent


def listens(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code > 0
    except httpx.ConnectError:
        return False


def started_below(folder: Path) -> list[str]:
    """The command lines of running processes that name something in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if any(str(folder).encode() in word for word in words):
            found.append(b" ".join(words).decode())
    return found


@pytest.mark.parametrize(
    ("number", "last_words"),
    [
        pytest.param(signal.SIGTERM, "It keeps running", id="SIGTERM at its end"),
        pytest.param(signal.SIGTERM, "gateway: http", id="SIGTERM in the middle"),
        pytest.param(signal.SIGHUP, "gateway: http", id="a closed terminal"),
    ],
)
async def test_a_demo_that_is_told_to_end_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals, last_words: str
) -> None:
    demo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "demo", "--port", "0", "--replicas", "2",
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert demo.stdout is not None
    try:
        text = ""
        async with asyncio.timeout(40):
            while last_words not in text:
                line = await demo.stdout.readline()
                assert line, text
                text += line.decode()
        urls = {f"http://{place}" for place in re.findall(r"127\.0\.0\.1:\d+", text)}
        assert len(urls) >= 3
        assert all(map(listens, urls))
        assert len(started_below(tmp_path)) == 3
        demo.send_signal(number)
        async with asyncio.timeout(20):
            rest = (await demo.stdout.read()).decode()
            assert await demo.wait() == 0
        assert "Stopping." in rest
        assert started_below(tmp_path) == []
        assert list(tmp_path.iterdir()) == []
    finally:
        if demo.returncode is None:
            demo.send_signal(signal.SIGTERM)
            await demo.wait()
