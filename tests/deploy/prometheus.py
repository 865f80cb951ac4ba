"""A real Prometheus with its data in a temporary folder, its port chosen by the system, and its queries over HTTP."""

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

LISTENS = re.compile(rb'msg="Listening on" address=(\S+)')
SCRAPE = "500ms"


class Prometheus:
    """What queries need; `url` is where it listens."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url, self._client = url, client

    async def query(self, expr: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of each sample now. What is no number is no data: panels show nothing there."""
        answer = (await self._client.post("/api/v1/query", data={"query": expr})).json()
        assert answer["status"] == "success", f"{expr}: {answer}"
        samples = [(row["metric"], float(row["value"][1])) for row in answer["data"]["result"]]
        return [(labels, value) for labels, value in samples if not math.isnan(value)]

    async def label_values(self, metric: str, label: str) -> set[str]:
        """As a dashboard's variable asks for them."""
        answer = (await self._client.get(f"/api/v1/label/{label}/values", params={"match[]": metric})).json()
        assert answer["status"] == "success", f"{metric}: {answer}"
        return set(answer["data"])


@asynccontextmanager
async def prometheus(folder: Path, jobs: Mapping[str, Sequence[str]], rules: Path) -> AsyncIterator[Prometheus]:
    """Scrapes each job's targets (host:port) and follows the rules in a folder; stopped by its own handle."""
    scrapes = [{"job_name": job, "static_configs": [{"targets": list(targets)}]} for job, targets in jobs.items()]
    pace = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE}
    config: dict[str, Any] = {"global": pace, "rule_files": [f"{rules}/*.yml"], "scrape_configs": scrapes}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        address, log = await asyncio.wait_for(_address(process), 20)
        draining = asyncio.create_task(_drain(log))
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10, trust_env=False) as client:
            yield Prometheus(f"http://{address}", client)
        draining.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> tuple[str, asyncio.StreamReader]:
    """Where it says that it listens."""
    assert process.stderr is not None
    seen = b""
    while line := await process.stderr.readline():
        if match := LISTENS.search(line):
            return match[1].decode(), process.stderr
        seen += line
    raise AssertionError(f"Prometheus does not start: {seen.decode()}")


async def _drain(log: asyncio.StreamReader) -> None:
    """So that it never waits for a reader."""
    while await log.read(65536):
        pass
