"""compose.yaml as a reviewer reads it: what is published, who runs as whom, what is pinned. Needs no Docker."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LISTENING = sorted(SERVICES.keys() - {"seed"})
REPLICAS = ("replica", "vllm-cpu", "vllm-gpu")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_runs_without_rights_and_within_limits(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] not in ("0", "root")
    assert service["mem_limit"] and service["cpus"]
    assert not service.get("privileged") and "network_mode" not in service


@pytest.mark.parametrize("name", LISTENING)
def test_every_service_that_listens_has_a_health_check_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert service["restart"] == ("always" if name in REPLICAS else "unless-stopped")


def test_only_the_three_doors_are_published_and_on_this_machine_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "gateway": ["127.0.0.1:8000:8000"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned(name: str) -> None:
    tag = SERVICES[name]["image"].rpartition(":")[2]
    assert tag == "demo" if "build" in SERVICES[name] else re.fullmatch(r"v?\d+\.\d+\.\d+", tag)


def test_the_tag_of_prometheus_stands_on_one_line() -> None:
    assert len(re.findall(r"^ +image: prom/prometheus:v[0-9.]+$", (ROOT / "compose.yaml").read_text(), re.MULTILINE)) == 1


def test_whoever_writes_and_whoever_reads_the_volume_is_one_user_and_replicas_only_read() -> None:
    users = {SERVICES[name]["user"] for name in ("gateway", "seed", *REPLICAS)}
    assert users == {"10001:10001"}
    for name in REPLICAS:
        assert "data:/data:ro" in SERVICES[name]["volumes"]
    assert SERVICES["gateway"]["volumes"] == SERVICES["seed"]["volumes"] == ["data:/data"]


def test_real_engines_answer_to_the_name_that_the_gateway_resolves_and_come_only_when_asked_for() -> None:
    assert any(flag == "--replica-dns=replica:8000" for flag in SERVICES["gateway"]["command"])
    for name, profile in (("vllm-cpu", "cpu"), ("vllm-gpu", "gpu")):
        assert SERVICES[name]["networks"]["default"]["aliases"] == ["replica"]
        assert SERVICES[name]["profiles"] == [profile]
    assert SERVICES["vllm-gpu"]["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_every_file_that_is_mounted_or_built_from_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
        if "build" in service:
            text = (ROOT / service["build"]["dockerfile"]).read_text()
            for stage in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
                assert stage == "python:3.11-slim" or f" AS {stage}" in text
            assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)


def test_prometheus_finds_gateways_and_replicas_by_dns_and_reads_the_rules() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    found = {job["job_name"]: job["dns_sd_configs"][0] for job in config["scrape_configs"]}
    assert {name: (dns["names"], dns["port"]) for name, dns in found.items()} == {
        "lora-gateway": (["gateway"], 8000),
        "vllm": (["replica"], 8000),
    }
    assert config["rule_files"] == ["rules/*.yml"]
    assert list((ROOT / "deploy/prometheus/rules").glob("*.yml"))


def test_grafana_is_given_the_source_that_the_dashboard_names_and_lets_people_only_look() -> None:
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    dashboard = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
    used = set(re.findall(r'"uid": "([^"]+)"', json.dumps([panel.get("datasource") for panel in dashboard["panels"]])))
    assert used <= {source["uid"], "-- Grafana --"} and source["url"] == "http://prometheus:9090"
    assert SERVICES["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_only_what_the_images_need_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    assert {"!gateway", "!replica", "!pyproject.toml", "!constraints.txt"} <= set(lines)
