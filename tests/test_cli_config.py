"""`lora-gateway config`: every setting with its value and its source, and never a key."""

import json
from pathlib import Path

from gateway.settings import TABLE
from tests.test_cli import only_line, run

KEY = "s3same-open"


def told(*arguments: str, **environ: str) -> dict[str, tuple[str, str]]:
    done = run("config", "--json", *arguments, environ=environ)
    assert (done.returncode, done.stderr) == (0, "")
    return {row["setting"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}


def test_each_setting_is_told_with_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"adapter-dir: .\nscan_interval: 3\nload-wait: 5\nadmin-api-key: {KEY}\n"
        "replica: [http://gpu-1:8000, http://gpu-2:8000]\n"
    )
    rows = told("--config", str(file), "--load-wait", "7.5", "--no-allow-pickle", LORA_GATEWAY_SCAN_INTERVAL="4")
    assert list(rows) == [row.name for row in TABLE]
    assert rows["adapter-dir"] == (str(tmp_path), f"the key adapter-dir in {file}")
    assert rows["replica-adapter-dir"] == (str(tmp_path), "default")
    assert rows["scan-interval"] == ("4", "the environment variable LORA_GATEWAY_SCAN_INTERVAL")
    assert rows["load-wait"] == ("7.5", "the flag --load-wait")
    assert rows["allow-pickle"] == ("off", "the flag --allow-pickle")
    assert rows["replica"] == ("http://gpu-1:8000, http://gpu-2:8000", f"the key replica in {file}")
    assert rows["max-inflight-per-replica"] == ("0 (no limit)", "default")
    assert rows["snapshot-dir"] == (str(tmp_path / ".lora-gateway"), "default")


def test_a_key_is_set_or_not_set_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    flags = ("--adapter-dir", str(tmp_path), "--replica", "http://gpu-1:8000")
    done = run("config", *flags, "--replica-api-key", KEY, environ={"LORA_GATEWAY_ADMIN_API_KEY": f"@{tmp_path}/key"})
    assert done.returncode == 0
    assert KEY not in done.stdout + done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["replica-api-key"][:1] == ["set"]
    assert rows["admin-api-key"] == ["set", "the", "environment", "variable", "LORA_GATEWAY_ADMIN_API_KEY"]
    assert told(*flags)["admin-api-key"] == ("not set", "default")


def test_what_serve_would_not_start_with_is_shown_and_then_told_with_exit_code_2(tmp_path: Path) -> None:
    done = run("config", "--adapter-dir", str(tmp_path), "--port", "9000")
    assert done.returncode == 2
    assert "the flag --port" in done.stdout
    assert only_line(done.stderr) == run("serve", "--adapter-dir", str(tmp_path)).stderr.rstrip("\n")
    missing = run("config")
    assert (missing.returncode, missing.stdout.count("adapter-dir               not set")) == (2, 1)
    wrong = run("config", "--port", "many")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == run("serve", "--port", "many").stderr
