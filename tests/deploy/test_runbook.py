"""What the runbook and the operations page tell people to type works: commands and URLs on a running gateway, queries as
Prometheus reads them, links to sections that exist."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gateway.settings import Settings
from tests.adapters import write_adapter
from tests.system.fleet import replicas, running

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
FOREIGN = {"--max-loras", "--enable-lora"}  # vLLM's own flags
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def spans(page: str) -> list[str]:
    """Everything in backticks or in a block, its comment left out."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line.split("  ")[0].strip() for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return [*lines, *(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))]


def queries(page: str) -> set[str]:
    """What names a metric, with its labels or functions."""
    names = re.compile(r"\b(lora_gateway_\w+|vllm:\w+|up\{|process_\w+_seconds)")
    return {span for span in spans(page) if names.search(span) and not span.startswith(("docs/", "deploy/"))}


def anchors(page: str) -> set[str]:
    """As the usual renderers make them of titles."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


async def run(words: list[str], environ: Mapping[str, str]) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *words, cwd=ROOT, env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_each_command_of_the_runbook_does_what_it_says(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha")
    commands = sorted({span for span in spans(RUNBOOK) if span.startswith("lora-gateway ")} - {"lora-gateway publish"})
    async with replicas(1) as sims, running(tmp_path, *sims.all) as gateway:
        await gateway.becomes("alpha", "ready")
        row = await gateway.adapter("alpha")
        assert row is not None
        known = {
            "NAME": "alpha", "REVISION": row["revision"], "DIR": str(tmp_path), "N": "64",
            "HOST:PORT": sims.all[0].url.removeprefix("http://"),
        }  # fmt: skip
        failed = {}
        for command in commands:
            words = [known.get(word, word) for word in shlex.split(command)[1:]]
            code, out = await run(words, {"LORA_GATEWAY_URL": gateway.url, "LORA_GATEWAY_ADMIN_API_KEY": ""})
            if code != 0 or not out.strip():
                failed[command] = (code, out)
    assert len(commands) >= 8
    assert failed == {}


async def test_each_url_of_the_runbook_answers(tmp_path: Path) -> None:
    paths = {path for span in spans(RUNBOOK) for path in re.findall(r"^curl (?:-N )?http://GATEWAY(/\S+)", span)}
    async with replicas(1) as sims, running(tmp_path, *sims.all) as gateway:
        for path in sorted(paths):
            async with gateway.client.stream("GET", path) as answer:
                assert answer.status_code == 200, path
    assert {"/livez", "/readyz", "/metrics", "/admin/events"} == paths


@needs_promtool
@pytest.mark.parametrize("page", ["runbook.md", "operations.md"])
def test_prometheus_reads_each_query(page: str, tmp_path: Path) -> None:
    asked = sorted(queries(PAGES[page]))
    rules = [{"record": f"query_{number}", "expr": expr} for number, expr in enumerate(asked)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(tmp_path / "queries.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert len(asked) >= 5
    assert done.returncode == 0, done.stdout + done.stderr + "\n".join(asked)


def test_each_flag_of_the_runbook_is_a_setting() -> None:
    flags = {flag for span in spans(RUNBOOK) if span.startswith("--") for flag in re.findall(r"--[\w-]+", span)}
    settings = {"--" + name.replace("_", "-") for name in Settings.__dataclass_fields__}
    assert flags - FOREIGN
    assert flags - FOREIGN - settings == set()


def test_each_link_of_the_runbook_leads_to_a_section() -> None:
    links = re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", RUNBOOK)
    assert links
    assert [(page, anchor) for page, anchor in links if anchor not in anchors(PAGES[page or "runbook.md"])] == []
