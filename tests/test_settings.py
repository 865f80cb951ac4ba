"""Settings: every source, their order, and the one line that a mistake ends with."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.addresses import Address
from gateway.settings import TABLE, Settings
from gateway.settings_docs import markdown
from gateway.settings_kinds import Secret, seconds
from gateway.settings_sources import SettingsError, read

ONE = ("http://gpu-1:8000",)


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    folder = tmp_path / "adapters"
    folder.mkdir()
    return folder


def settings(adapters: Path, environ: dict[str, str] | None = None, config: Path | None = None, **flags: object) -> Settings:
    start = {"adapter_dir": str(adapters), "replica": ONE, **flags}
    return read({name: value for name, value in start.items() if value is not None}, environ or {}, str(config or ""))


def mistake(adapters: Path, environ: dict[str, str] | None = None, config: Path | None = None, **flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(adapters, environ, config, **flags)
    line = str(caught.value)
    assert "\n" not in line
    return line


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_contract_s_defaults(adapters: Path) -> None:
    plain = settings(adapters)
    assert plain.replica == (Address("gpu-1:8000", "http://gpu-1:8000"),)
    assert plain.replica_adapter_dir == plain.adapter_dir == adapters
    assert plain.snapshot_dir == adapters / ".lora-gateway"
    assert (plain.host, plain.port, plain.adapter_depth) == ("127.0.0.1", 8000, 2)
    assert (plain.scan_interval, plain.probe_interval, plain.probe_timeout, plain.drift_interval) == (5, 2, 2, 10)
    assert (plain.unload_linger, plain.unhealthy_after, plain.healthy_after, plain.discovery_interval) == (60, 3, 1, 5)
    assert (plain.placement, plain.holders, plain.preload) == ("everywhere", 2, None)
    assert (plain.max_lora_rank, plain.strict_base_model, plain.allow_pickle) == (None, False, False)
    assert (plain.load_timeout, plain.load_concurrency, plain.load_wait) == (120, 1, 60)
    assert (plain.snapshots, plain.snapshot_grace, plain.guard_interval) == ("link", 3600, 1)
    assert (plain.connect_timeout, plain.first_byte_timeout, plain.stream_idle_timeout) == (2, 600, 600)
    assert (plain.dead_stream_grace, plain.max_body_bytes, plain.max_inflight_per_replica) == (10, 67108864, 0)
    assert (plain.max_waiting, plain.retry_reused, plain.workers) == (1000, 1, 1)
    assert (plain.lame_duck, plain.drain_timeout, plain.log_level) == (0, 30, "info")
    nothing = (plain.replica_api_key, plain.admin_api_key, plain.api_keys_file, plain.replicas_file, plain.replica_dns)
    assert nothing == (None,) * 5


def test_every_default_is_a_value_that_the_setting_itself_allows(tmp_path: Path) -> None:
    for row in TABLE:
        if row.default not in (None, ()) and not row.required:
            assert row.kind.parse(row.default, tmp_path) == row.default, row.name


def test_a_flag_wins_over_the_environment_and_that_over_the_file(adapters: Path, tmp_path: Path) -> None:
    config = file(tmp_path, "port: 1001\nhost: 10.0.0.1\nscan-interval: 7\n")
    environ = {"LORA_GATEWAY_PORT": "1002", "LORA_GATEWAY_HOST": "10.0.0.2"}
    found = settings(adapters, environ, config, port="1003")
    assert (found.port, found.host, found.scan_interval) == (1003, "10.0.0.2", 7)


def test_the_file_may_be_named_by_the_environment(adapters: Path, tmp_path: Path) -> None:
    config = file(tmp_path, "port: 1001\n")
    assert settings(adapters, {"LORA_GATEWAY_CONFIG": str(config)}).port == 1001


def test_every_setting_can_come_from_the_file_and_from_the_environment(adapters: Path, tmp_path: Path) -> None:
    keys = {
        "adapter-dir": "adapters",
        "replica": ["http://a:1", "https://b"],
        "snapshots": "off",
        "strict_base_model": "true",
        "max-body-bytes": "2 MiB",
        "preload": "none",
        "max-lora-rank": "64",
        "replica-api-key": "'sesame'",
    }
    config = file(tmp_path, "".join(f"{key}: {value}\n" for key, value in keys.items()))
    environ = {f"LORA_GATEWAY_{key.upper().replace('-', '_')}": str(value) for key, value in keys.items()}
    environ |= {"LORA_GATEWAY_ADAPTER_DIR": str(adapters), "LORA_GATEWAY_REPLICA": "http://a:1, https://b"}
    environ["LORA_GATEWAY_REPLICA_API_KEY"] = "sesame"
    in_file, in_env = read({}, {}, str(config)), read({}, environ)
    assert in_file == in_env
    assert [address.id for address in in_file.replica] == ["a:1", "b:443"]
    assert (in_file.snapshots, in_file.strict_base_model, in_file.max_body_bytes) == ("off", True, 2097152)
    assert (in_file.preload, in_file.max_lora_rank, in_file.replica_api_key) == (0, 64, Secret("sesame"))


def test_relative_path_and_home_become_absolute(adapters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(adapters.parent)
    monkeypatch.setenv("HOME", str(adapters.parent))
    assert settings(Path("adapters")).adapter_dir == adapters
    assert settings(Path("~/adapters")).adapter_dir == adapters


def test_relative_paths_in_the_file_start_where_the_file_lies(adapters: Path, tmp_path: Path) -> None:
    assert read({"replica": ONE}, {}, str(file(tmp_path, "adapter-dir: ./adapters"))).adapter_dir == adapters


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("port", "65536", id="port above the last"),
        pytest.param("port", "-1", id="port below zero"),
        pytest.param("port", "80.5", id="port with a fraction"),
        pytest.param("port", "١", id="digits of another script"),
        pytest.param("scan_interval", "0", id="scanning without a pause"),
        pytest.param("scan_interval", "nan", id="not a number"),
        pytest.param("load_wait", "inf", id="infinite"),
        pytest.param("load_wait", "-1", id="negative seconds"),
        pytest.param("load_wait", "5s", id="seconds with a unit"),
        pytest.param("max_body_bytes", "-1", id="negative size"),
        pytest.param("max_body_bytes", "1 parsec", id="unknown unit"),
        pytest.param("snapshots", "hard", id="unknown word"),
        pytest.param("preload", "some", id="neither word nor number"),
        pytest.param("preload", "-3", id="negative count"),
        pytest.param("max_lora_rank", "0", id="rank zero"),
        pytest.param("log_level", "loud", id="unknown level"),
        pytest.param("host", "a b", id="host with a space"),
        pytest.param("replica_adapter_dir", "loras", id="relative path on the replicas' side"),
        pytest.param("replicas_file", "/nowhere/replicas.yaml", id="replicas file missing"),
        pytest.param("adapter_dir", "/nowhere", id="directory missing"),
        pytest.param("adapter_dir", __file__, id="directory is a file"),
        pytest.param("load_wait", "1\n2\x1b[2J", id="control characters"),
    ],
)
def test_a_wrong_value_is_told_with_its_setting_and_source(adapters: Path, name: str, value: str) -> None:
    flag = name.replace("_", "-")
    allowed = next(row.kind.allowed for row in TABLE if row.field == name)
    flags: dict[str, Any] = {name: value}
    line = mistake(adapters, **flags)
    assert line.startswith(f"{flag}: {value!r} from the flag --{flag} must be {allowed}")
    variable = f"LORA_GATEWAY_{name.upper()}"
    assert f"{value!r} from the environment variable {variable} must be" in mistake(
        adapters, {variable: value}, adapter_dir=None if name == "adapter_dir" else str(adapters)
    )


@pytest.mark.parametrize(
    "url",
    ["ftp://a", "http://", "http://a:0x50", "http://a:99999", "http://a?x=1", "http://a b", "http://[::1"],
    ids=["scheme", "no host", "port no number", "port too big", "query", "space", "open bracket"],
)
def test_a_wrong_replica_url_is_refused(adapters: Path, url: str) -> None:
    assert mistake(adapters, replica=(url,)).startswith(f"replica: {url!r} from the flag --replica must be http://HOST:PORT")


def test_credentials_in_a_url_are_refused_and_not_repeated(adapters: Path) -> None:
    line = mistake(adapters, replica=("http://user:sesame@gpu-1",))
    assert "--replica-api-key" in line
    assert "sesame" not in line


def test_the_same_replica_twice_is_told_whatever_its_spelling(adapters: Path) -> None:
    assert mistake(adapters, replica=("http://GPU-1", "http://gpu-1:80/")) == (
        "replica: gpu-1:80 is named 2 times, each replica may be named once"
    )


def test_without_any_replica_source_nothing_starts(adapters: Path) -> None:
    assert mistake(adapters, replica=None).startswith("no replica is named: give at least one of --replica, ")


def test_an_adapter_directory_is_required() -> None:
    with pytest.raises(SettingsError, match="adapter-dir is required: give --adapter-dir DIR"):
        read({"replica": ONE}, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read_is_told(adapters: Path) -> None:
    adapters.chmod(0)
    try:
        assert "may not be read by user" in mistake(adapters)
    finally:
        adapters.chmod(0o700)


def test_unknown_keys_and_variables_are_told_with_a_guess(adapters: Path, tmp_path: Path) -> None:
    line = mistake(adapters, config=file(tmp_path, "scan-intervall: 5\n"))
    assert line == f"unknown key 'scan-intervall' in {tmp_path}/gateway.yaml (did you mean scan-interval?)"
    line = mistake(adapters, {"LORA_GATEWAY_SCANINTERVAL": "5"})
    assert line.endswith("'LORA_GATEWAY_SCANINTERVAL' (did you mean LORA_GATEWAY_SCAN_INTERVAL?)")


def test_variables_that_kubernetes_makes_for_a_service_are_left_alone(adapters: Path) -> None:
    made = {
        "LORA_GATEWAY_PORT": "tcp://10.0.0.7:8000",
        "LORA_GATEWAY_SERVICE_HOST": "10.0.0.7",
        "LORA_GATEWAY_SERVICE_PORT_HTTP": "8000",
        "LORA_GATEWAY_PORT_8000_TCP_ADDR": "10.0.0.7",
        "LORA_GATEWAY_REPLICA_PORT": "tcp://10.0.0.8:8000",
    }
    assert settings(adapters, made).port == 8000


def test_empty_variables_and_keys_count_as_not_set(adapters: Path, tmp_path: Path) -> None:
    found = settings(adapters, {"LORA_GATEWAY_ADMIN_API_KEY": ""}, file(tmp_path, "port:\n"))
    assert (found.admin_api_key, found.port) == (None, 8000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("port: 1\nport: 2\n", "the key 'port' stands twice", id="key twice"),
        pytest.param("scan-interval: 1\nscan_interval: 2\n", "once with dashes and once with underscores", id="two spellings"),
        pytest.param("- port\n", "must hold `setting: value` lines", id="a list"),
        pytest.param("port: [1, 2]\n", "port: [1, 2] from the key port in ", id="a list where one value belongs"),
        pytest.param("port: true\n", "port: True from the key port in ", id="a truth value for a number"),
        pytest.param("port: {a: 1}\n", "port: {'a': 1} from the key port in ", id="a mapping for a number"),
        pytest.param("port: 'a\n", "is not YAML in line", id="open quote"),
        pytest.param("replica-api-key: 0123\n", "put quotes around it", id="a key that YAML reads as a number"),
        pytest.param("!!python/object/apply:os.getcwd []\n", "is not YAML in line 1", id="a tag that would run code"),
    ],
)
def test_a_wrong_file_is_told(adapters: Path, tmp_path: Path, text: str, told: str) -> None:
    assert told in mistake(adapters, config=file(tmp_path, text))


def test_a_file_that_is_missing_or_no_text_is_told(adapters: Path, tmp_path: Path) -> None:
    assert "cannot be read: No such file or directory" in mistake(adapters, config=tmp_path / "nowhere.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "is not YAML text" in mistake(adapters, config=tmp_path / "binary")


def test_a_key_is_read_from_a_file_and_never_shown(adapters: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sesame\n")
    found = settings(adapters, replica_api_key=f"@{tmp_path}/key", admin_api_key="tahini-9")
    assert found.replica_api_key is not None
    assert found.replica_api_key.reveal() == "sesame"
    assert "sesame" not in f"{found} {found.replica_api_key} {found!r}"
    assert "tahini-9" not in repr(found)


@pytest.mark.parametrize("key", ["sesa\nme", "ses ame", "sésame", "@/nowhere/sesame", "@"], ids=ascii)
def test_a_wrong_key_is_told_without_it(adapters: Path, tmp_path: Path, key: str) -> None:
    line = mistake(adapters, replica_api_key=key)
    assert line.startswith("replica-api-key: the value from the flag --replica-api-key must be a key of visible ASCII")
    assert "same" not in line
    told = mistake(adapters, config=file(tmp_path, "replica-api-key: *sesame\n"))
    assert "sesame" not in told


def test_holders_belong_to_spread(adapters: Path) -> None:
    assert mistake(adapters, holders="3") == "holders: works only with --placement spread"


@pytest.mark.parametrize("place", [".", "..", "/"], ids=["the adapter directory", "its parent", "the root"])
def test_snapshots_may_not_hold_the_adapters(adapters: Path, place: str) -> None:
    assert "may neither be the adapter directory nor hold it" in mistake(adapters, snapshot_dir=str(adapters / place))


def test_snapshots_elsewhere_need_the_same_path_on_both_sides(adapters: Path, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "snapshots")
    assert settings(adapters, snapshot_dir=elsewhere).snapshot_dir == tmp_path / "snapshots"
    assert "no replica would find it" in mistake(adapters, snapshot_dir=elsewhere, replica_adapter_dir="/loras")


def test_what_is_not_built_ends_the_start(adapters: Path) -> None:
    """Each setting with a list of what works refuses another value of its kind that it would take otherwise."""
    other = {"workers": "2", "placement": "spread", "replica_dns": "a:80", "replica_kubernetes": "ns/vllm"}
    other["api_keys_file"] = __file__
    for row in TABLE:
        if row.built is not None:
            flags: dict[str, Any] = {row.field: other[row.field]}
            line = mistake(adapters, **flags)
            assert line.endswith(f"from the flag {row.flag}: {row.limit}")


def test_the_fields_are_the_flags() -> None:
    assert [row.field for row in TABLE] == [column.name for column in fields(Settings)]


def test_docs_configuration_is_what_the_source_says() -> None:
    page = Path(__file__).parent.parent / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == markdown(), "run `make docs`"


@given(st.text())
def test_any_text_for_seconds_is_a_number_in_range_or_refused(text: str) -> None:
    try:
        number = seconds(0.05).parse(text, Path("/"))
    except ValueError as error:
        assert str(error) == "a number of seconds from 0.05 to 31536000"
    else:
        assert isinstance(number, float)
        assert 0.05 <= number <= 31_536_000
