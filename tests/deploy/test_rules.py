"""Alerts that can be trusted: the rules are well formed, each fires for what it is for and for nothing that looks alike,
each asks for metrics that exist, and each has a page that says what to do."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.registry import Registry
from gateway.core.replica import Phase
from gateway.core.standing import State
from gateway.metrics import Metrics
from tests.core.fleet import catalog, replica

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
TESTS = sorted((ROOT / "deploy/prometheus/tests").glob("*.yml"))
RUNBOOK = ROOT / "docs/runbook.md"
OPERATIONS = ROOT / "docs/operations.md"
DASHBOARD = ROOT / "deploy/grafana/dashboard.json"
PARTS = ("**Meaning.**", "**Impact.**", "**Look here.**", "**Fix.**")
OBJECTS = {"instance", "replica", "adapter", "model"}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def rules(kind: str) -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


ALERTS = rules("alert")
any_alert = pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])


def promtool(*words: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def sections() -> dict[str, str]:
    """The pages of the runbook by anchor."""
    _, *parts = re.split(r"^## (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    return {title.strip().lower(): text for title, text in zip(parts[::2], parts[1::2], strict=True)}


@needs_promtool
def test_the_rules_are_well_formed() -> None:
    promtool("check", "rules", *RULES)


@needs_promtool
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_each_rule_does_what_its_cases_say(path: Path) -> None:
    promtool("test", "rules", path)


@any_alert
def test_each_alert_is_seen_firing_and_quiet(alert: dict[str, Any]) -> None:
    groups = [group for path in TESTS for group in yaml.safe_load(path.read_text())["tests"]]
    cases = [case for group in groups for case in group.get("alert_rule_test", ()) if case["alertname"] == alert["alert"]]
    assert {bool(case["exp_alerts"]) for case in cases} == {True, False}


@any_alert
def test_each_alert_says_how_long_how_bad_what_and_where_to_read_on(alert: dict[str, Any]) -> None:
    notes = alert["annotations"]
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+[smh]", alert["for"])
    assert notes["summary"]
    named = set(re.findall(r"\$labels\.(\w+)", notes["description"]))
    assert named & OBJECTS or alert["expr"].startswith("absent(")
    assert notes["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"


@any_alert
def test_each_alert_has_its_section_in_the_runbook(alert: dict[str, Any]) -> None:
    text = sections()[alert["alert"].lower()]
    assert [part for part in PARTS if part not in text] == []
    assert "`" in text[text.index("**Look here.**") :]


def test_the_docs_list_each_alert_under_its_severity() -> None:
    rows = re.findall(r"^\| (critical|warning|info) \| (.+) \|$", OPERATIONS.read_text(), re.MULTILINE)
    listed = {(severity, name) for severity, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {(alert["labels"]["severity"], alert["alert"]) for alert in ALERTS}


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    assert sections().keys() == {alert["alert"].lower() for alert in ALERTS}


async def test_rules_docs_and_dashboard_ask_for_metrics_that_exist() -> None:
    metrics = Metrics("0")
    metrics.watch(Registry(), lambda: "events", lambda: 0.0)
    exposed = {line.split()[2] for line in (await metrics.exposition()).decode().splitlines() if line.startswith("# TYPE")}
    asked = set()
    for text in (path.read_text() for path in (*RULES, RUNBOOK, OPERATIONS, DASHBOARD)):
        asked |= set(re.findall(r"(?<![:\w])lora_gateway_\w+", text))
    assert asked
    assert {name for name in asked if name not in exposed and re.sub(r"_(bucket|sum|count)$", "", name) not in exposed} == set()


async def test_rules_match_label_values_that_exist() -> None:
    registry = Registry()
    registry.replace_catalog(catalog(), 0.0)
    registry.join(replica(1))
    metrics = Metrics("0")
    metrics.watch(registry, lambda: "events", lambda: 0.0)
    text = (await metrics.exposition()).decode()
    outcomes = set(re.findall(r'^lora_gateway_adapter_loads_total{.*outcome="(\w+)"', text, re.MULTILINE))
    known = {
        "lora_gateway_replica_phase": {"phase": {*Phase}},
        "lora_gateway_adapter_state": {"state": {*State}},
        "lora_gateway_watch_events": {"mode": set(re.findall(r'mode="(\w+)"', text))},
        "lora_gateway_adapter_loads_total": {"outcome": outcomes},
    }
    asked = [
        (metric, label, value)
        for rule in ALERTS
        for metric, labels in re.findall(r"(lora_gateway_\w+){(.+?)}", rule["expr"])
        for label, values in re.findall(r'(\w+)[=!]~?"(.+?)"', labels)
        for value in values.split("|")
        if metric in known
    ]
    assert {metric for metric, _, _ in asked} == known.keys()
    assert [row for row in asked if row[2] not in known[row[0]][row[1]]] == []
