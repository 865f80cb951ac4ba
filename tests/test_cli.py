"""The command line as a user meets it: processes, exit codes, what stands on which stream."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import commands
from gateway.logs import escaped
from gateway.settings import TABLE
from tests.adapters import write_adapter

ROOT = Path(__file__).parent.parent
HOSTILE = "sql\x1b[2J\nready"


def run(
    *arguments: str, environ: Mapping[str, str] | None = None, module: str = "gateway.cli"
) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LORA_GATEWAY_")}
    command = [sys.executable, "-m", module, *arguments]
    environment = {**clean, "COLUMNS": "200", **(environ or {})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize("arguments", [(), ("--help",)], ids=["no arguments", "help"])
def test_the_help_teaches_every_command(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 0
    names = ("serve", "check", "publish", "status", "adapters", "replicas", "explain", "config", "completion", "demo")
    for word in (*names, "Examples:"):
        assert word in done.stdout


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_every_command_that_the_documentation_names_exists(page: Path) -> None:
    named = set(re.findall(r"(?m)(?:^ *(?:\$ )?|`)lora-gateway ([a-z]+)", page.read_text()))
    assert named <= commands.commands.keys()


def test_the_help_of_serve_names_every_setting_by_section() -> None:
    done = run("serve", "--help")
    assert done.returncode == 0
    for row in TABLE:
        assert f"  {row.flag}" in done.stdout
        assert f"\n{row.section}:\n" in done.stdout


def test_python_m_gateway_is_the_same_command() -> None:
    version = run("--version")
    assert version.stdout.startswith("lora-gateway ")
    assert run("--version", module="gateway").stdout == version.stdout
    wrong = run("serve", "--adapter-dir", "/nowhere", module="gateway")
    assert (wrong.returncode, wrong.stderr) == (2, run("serve", "--adapter-dir", "/nowhere").stderr)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(("serve", "--nope"), "No such option", id="unknown flag"),
        pytest.param(("serve", "--port"), "requires an argument", id="flag without its value"),
        pytest.param(("serve", "extra"), "unexpected extra argument", id="stray word"),
        pytest.param(("srve",), "No such command", id="unknown command"),
        pytest.param(("serve", "--adapter-dir", "/nowhere"), "adapter-dir: '/nowhere' from the flag", id="wrong value"),
        pytest.param(("serve", "--config", "/nowhere.yaml"), "No such file or directory", id="no configuration file"),
        pytest.param(("check", "/nowhere"), "does not exist", id="nothing to check"),
        pytest.param(("demo", "--engine", "gpu"), "is not one of", id="unknown engine"),
        pytest.param(("status", "--admin-api-key", "@/nowhere"), "cannot be read", id="no key file"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(arguments: tuple[str, ...], told: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert only_line(done.stderr).startswith("lora-gateway: error: ")
    assert told in done.stderr


def test_check_of_valid_adapters(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", rank=8)
    write_adapter(tmp_path / "team" / "beta", rank=16, seed=1)
    done = run("check", str(tmp_path))
    assert done.returncode == 0
    assert "alpha      valid    base-a" in done.stdout
    assert done.stdout.endswith("2 of 2 adapters are valid\n")


def test_check_tells_the_reason_of_an_invalid_one_and_exits_1(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", rank=8)
    write_adapter(tmp_path / "big", rank=32)
    done = run("check", str(tmp_path), "--max-lora-rank", "16")
    assert done.returncode == 1
    assert "big: rank 32 is above --max-lora-rank 16" in done.stdout
    assert done.stdout.endswith("1 of 2 adapters are valid\n")


def checked(*arguments: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(run("check", "--json", *arguments).stdout)}


def test_check_as_json_has_a_row_for_each_adapter_valid_or_not(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", rank=8)
    write_adapter(tmp_path / "half")
    (tmp_path / "half" / "adapter_model.safetensors").unlink()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "adapter_config.json").write_text("[")
    (tmp_path / "no adapter").mkdir()
    rows = checked(str(tmp_path))
    assert list(rows) == ["alpha", "half", "junk"]
    columns = ["name", "path", "base_model", "rank", "size_bytes", "revision", "valid", "reason", "warnings"]
    assert all(list(row) == columns for row in rows.values())
    alpha = rows["alpha"]
    assert (alpha["path"], alpha["base_model"], alpha["rank"]) == (str(tmp_path / "alpha"), "base-a", 8)
    assert (alpha["valid"], alpha["reason"], alpha["warnings"]) == (True, "", [])
    assert alpha["size_bytes"] == sum(file.stat().st_size for file in (tmp_path / "alpha").iterdir())
    assert len(alpha["revision"]) == 12
    assert (rows["half"]["valid"], rows["half"]["rank"], rows["half"]["revision"]) == (False, 8, None)
    assert rows["half"]["reason"].startswith("incomplete: ")
    assert (rows["junk"]["valid"], rows["junk"]["rank"]) == (False, None)


def test_check_takes_one_adapter_too(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha")
    assert list(checked(str(tmp_path / "alpha"))) == ["alpha"]


def test_check_warns_of_another_base_model_and_refuses_its_own_name(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", base_model="org/Base-A-bnb-4bit")
    write_adapter(tmp_path / "other", base_model="base-b")
    write_adapter(tmp_path / "base-a")
    rows = checked(str(tmp_path), "--base-model", "base-a")
    assert (rows["alpha"]["valid"], rows["alpha"]["warnings"]) == (True, [])
    assert rows["other"]["valid"]
    assert rows["other"]["warnings"] == ["it was made for the base model 'base-b', not for 'base-a'"]
    assert not rows["base-a"]["valid"]


def test_check_prints_hostile_names_harmlessly(tmp_path: Path) -> None:
    write_adapter(tmp_path / HOSTILE)
    done = run("check", str(tmp_path))
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert escaped(HOSTILE) in done.stdout


def test_check_of_an_empty_directory_says_so(tmp_path: Path) -> None:
    done = run("check", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"no adapter in {tmp_path}: no folder with adapter_config.json\n")


DOCUMENT = {
    "gateway": {
        "version": "9",
        "ready": True,
        "reason": "",
        "snapshots": "link",
        "watch": "events",
        "placement": "everywhere",
    },
    "adapters": [
        {
            "name": HOSTILE,
            "revision": "aaaabbbbcccc",
            "base_model": "base-a",
            "rank": 8,
            "state": "partial",
            "reason": "",
            "warnings": [],
            "inflight": 3,
            "replicas": {
                "gpu-1:8000": {"state": "loaded", "reason": ""},
                "gpu-2:8000": {"state": "failed", "reason": "[red]no room[/red]"},
            },
        }
    ],
    "replicas": [
        {
            "id": "gpu-1:8000",
            "url": "http://gpu-1:8000",
            "phase": "ready",
            "reason": "",
            "lora": "supported",
            "base_models": ["base-a"],
            "held": ["sql@aaaabbbbcccc"],
            "static": [],
            "inflight": 3,
            "last_seen": 1.5,
        }
    ],
}


@contextmanager
def answering(status: int, body: bytes, key: str = "") -> Iterator[str]:
    """A server on a free port that gives this one answer; 401 without the key."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.path == "/admin/status" and self.headers["authorization"] == (f"Bearer {key}" if key else None)
            self.send_response(status if allowed else 401)
            self.end_headers()
            self.wfile.write(body if allowed else b"{}")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_status_shows_adapters_replicas_and_reasons() -> None:
    with answering(200, json.dumps(DOCUMENT).encode()) as url:
        done = run("status", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}
    assert rows[escaped(HOSTILE)] == [escaped(HOSTILE), "aaaabbbbcccc", "base-a", "8", "partial", "1", "of", "2", "3"]
    assert rows["gpu-1:8000"] == ["gpu-1:8000", "ready", "supported", "base-a", "1", "3"]
    assert f"{escaped(HOSTILE)}: gpu-2:8000: [red]no room[/red]\n" in done.stdout


def test_status_as_json_is_the_whole_document() -> None:
    with answering(200, json.dumps(DOCUMENT).encode()) as url:
        done = run("status", "--json", environ={"LORA_GATEWAY_URL": url})
    assert json.loads(done.stdout) == DOCUMENT


def test_status_sends_the_key_and_tells_when_it_is_missing_or_wrong(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sesame\n")
    with answering(200, json.dumps(DOCUMENT).encode(), key="sesame") as url:
        good = run("status", "--url", url, environ={"LORA_GATEWAY_ADMIN_API_KEY": f"@{tmp_path}/key"})
        missing = run("status", "--url", url)
        wrong = run("status", "--url", url, "--admin-api-key", "simsala")
    assert good.returncode == 0
    assert (missing.returncode, wrong.returncode) == (1, 1)
    assert "wants its admin key: give --admin-api-key" in only_line(missing.stderr)
    assert only_line(wrong.stderr).endswith("refused the admin key")
    assert "simsala" not in wrong.stderr


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b"{}"), (200, b"<html>"), (200, b"[]"), (200, b"\xff")],
    ids=["not found", "a page", "a list", "no text"],
)
def test_status_of_something_else_is_told(status: int, body: bytes) -> None:
    with answering(status, body) as url:
        done = run("status", "--url", url)
    assert done.returncode == 1
    assert f"{url} is no LoRA gateway" in only_line(done.stderr)


def test_status_of_nobody_is_told() -> None:
    with answering(200, b"") as url:
        pass
    done = run("status", "--url", url)
    assert done.returncode == 1
    assert only_line(done.stderr).startswith(f"lora-gateway: error: no gateway answers at {url}: start one")
