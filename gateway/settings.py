"""Every setting of `lora-gateway serve`, once: name, kind, default, help.

Flags, environment variables, keys of the YAML file and docs/configuration.md all come from this one table, so none of
them can be forgotten. A field's name is its flag with underscores. Only the command line, the process's entry and the
wiring of the app import this module; everybody else takes plain values.
"""

# ruff: noqa: RUF009 (a row of the table is a call of `setting`, which makes a dataclass field)

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gateway import settings_kinds as kinds
from gateway.core.addresses import Address
from gateway.settings_kinds import Kind, Secret

ENV_PREFIX = "LORA_GATEWAY_"
DIRECTORY, REPLICAS, PLACEMENT = "Adapter directory", "Replicas", "Placement and loading"
REQUESTS, PROCESS, KEYS, LOGS = "Requests", "Process", "Keys", "Logs"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `built`: the only values that work so far (None: all of them)."""

    section: str
    kind: Kind
    help: str
    shown: str = ""  # the default in words
    many: bool = False
    built: tuple[object, ...] | None = None
    name: str = ""  # with dashes
    default: Any = None
    required: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.field.upper()

    @property
    def limit(self) -> str:
        """What is not built of it; empty when all is."""
        if self.built is None:
            return ""
        works = ", ".join(str(value) for value in self.built if value is not None)
        return f"only {works} is built so far" if works else "not built yet"


def setting(section: str, kind: Kind, default: Any, help: str, **more: Any) -> Any:
    row = Setting(section, kind, help, **more)
    if default is ...:
        return field(metadata={"setting": replace(row, required=True)})
    return field(default=default, metadata={"setting": replace(row, default=default)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `serve` runs with. Times are in seconds, sizes in bytes, paths absolute."""

    adapter_dir: Path = setting(
        DIRECTORY, kinds.directory(), ..., "The shared directory of LoRA adapters, as the gateway sees it."
    )
    replica_adapter_dir: Path = setting(
        DIRECTORY,
        kinds.far_path(),
        None,
        "Where the replicas mount the same directory.",
        shown="same as --adapter-dir",
    )
    adapter_depth: int = setting(
        DIRECTORY, kinds.whole(1, 16), 2, "How deep adapters may lie: `alpha` is depth 1, `team/alpha` depth 2."
    )
    scan_interval: float = setting(
        DIRECTORY,
        kinds.seconds(0.05),
        5.0,
        "The whole directory is scanned at least this often, whether file events come or not.",
    )
    max_lora_rank: int | None = setting(
        DIRECTORY,
        kinds.words_or_whole({"none": None}, 1, 1_000_000),
        None,
        "Refuse adapters above this rank without asking a replica (its --max-lora-rank).",
        shown="none",
    )
    strict_base_model: bool = setting(
        DIRECTORY, kinds.switch(), False, "Refuse adapters whose base model does not match a replica's."
    )
    allow_pickle: bool = setting(
        DIRECTORY, kinds.switch(), False, "Accept adapter_model.bin: pickle runs code. Off: only safetensors."
    )
    snapshots: str = setting(
        DIRECTORY,
        kinds.choice("link", "copy", "off"),
        "link",
        "Replicas load from an immutable snapshot of hard links or copies; off: from the adapter's own folder.",
    )
    snapshot_dir: Path = setting(
        DIRECTORY,
        kinds.path(),
        None,
        "Where snapshots lie: on the same filesystem, seen by the replicas at the same place below --replica-adapter-dir.",
        shown="<adapter-dir>/.lora-gateway",
    )
    snapshot_grace: float = setting(DIRECTORY, kinds.seconds(), 3600.0, "How long a snapshot that nobody uses stays.")
    guard_interval: float = setting(
        DIRECTORY,
        kinds.seconds(zero="off"),
        1.0,
        "Before forwarding, an adapter's files are looked at, at most this often.",
    )

    replica: tuple[Address, ...] = setting(REPLICAS, kinds.url(), (), "A vLLM replica. Repeatable.", many=True)
    replicas_file: Path | None = setting(
        REPLICAS,
        kinds.file(),
        None,
        "YAML or JSON with a list of URLs, or Prometheus file_sd groups; followed when it changes.",
    )
    replica_dns: str | None = setting(
        REPLICAS,
        kinds.matching("HOST:PORT", r"[A-Za-z0-9._-]+:[0-9]{1,5}", "HOST:PORT"),
        None,
        "Every address of this name is a replica; resolved again each --discovery-interval.",
    )
    replica_kubernetes: str | None = setting(
        REPLICAS,
        kinds.matching(
            "NAMESPACE/SERVICE[:PORT]", r"[a-z0-9-]+/[a-z0-9-]+(:[A-Za-z0-9-]+)?", "NAMESPACE/SERVICE or with :PORT"
        ),
        None,
        "Every ready endpoint of this Service is a replica.",
        built=(None,),
    )
    replica_api_key: Secret | None = setting(
        REPLICAS, kinds.key(), None, "Sent as `Authorization: Bearer` on every call to a replica; @FILE reads it."
    )
    discovery_interval: float = setting(
        REPLICAS, kinds.seconds(0.05), 5.0, "The replicas file and DNS names are looked at again this often."
    )
    probe_interval: float = setting(REPLICAS, kinds.seconds(0.05), 2.0, "Time between two health probes of a replica.")
    probe_timeout: float = setting(REPLICAS, kinds.seconds(0.05), 2.0, "A probe without an answer by then has failed.")
    unhealthy_after: int = setting(REPLICAS, kinds.whole(1, 1000), 3, "Failed probes in a row that take it out of use.")
    healthy_after: int = setting(REPLICAS, kinds.whole(1, 1000), 1, "Good probes in a row that bring it back.")
    drift_interval: float = setting(
        REPLICAS, kinds.seconds(0.05), 10.0, "What a replica holds is looked at this often, and after each action."
    )

    placement: str = setting(
        PLACEMENT,
        kinds.choice("everywhere", "spread"),
        "everywhere",
        "Which replicas hold an adapter: all of them, or --holders of them.",
        built=("everywhere",),
    )
    holders: int = setting(PLACEMENT, kinds.whole(1, 10_000), 2, "Replicas for each adapter with `--placement spread`.")
    preload: int | None = setting(
        PLACEMENT,
        kinds.words_or_whole({"all": None, "none": 0}, 0),
        None,
        "How many adapters a replica gets before they are asked for.",
        shown="all",
    )
    load_timeout: float = setting(PLACEMENT, kinds.seconds(0.05), 120.0, "One load call to a replica.")
    load_concurrency: int = setting(
        PLACEMENT, kinds.whole(1, 64), 1, "Loads at once on one replica: a load stalls its streams."
    )
    unload_linger: float = setting(
        PLACEMENT, kinds.seconds(), 60.0, "How long a revision that is no longer wanted stays loaded."
    )

    load_wait: float = setting(REQUESTS, kinds.seconds(), 60.0, "How long a request waits for its adapter.")
    connect_timeout: float = setting(REQUESTS, kinds.seconds(0.01), 2.0, "Connecting to a replica.")
    first_byte_timeout: float = setting(
        REQUESTS, kinds.seconds(zero="no limit"), 600.0, "From the request sent to the answer's first byte."
    )
    stream_idle_timeout: float = setting(REQUESTS, kinds.seconds(zero="no limit"), 600.0, "Between two chunks.")
    dead_stream_grace: float = setting(
        REQUESTS, kinds.seconds(), 10.0, "A silent stream on a replica that refuses its probe ends after this."
    )
    max_body_bytes: int = setting(
        REQUESTS, kinds.size(zero="no limit"), 64 * 2**20, "A longer request body is refused (413).", shown="64MiB"
    )
    max_inflight_per_replica: int = setting(
        REQUESTS, kinds.whole(0, zero="no limit"), 0, "Requests that one replica runs at once."
    )
    max_waiting: int = setting(
        REQUESTS, kinds.whole(0), 1000, "Requests that may wait at once, half of them for one model; 429 above."
    )
    retry_reused: int = setting(
        REQUESTS,
        kinds.whole(0, 10, zero="off"),
        1,
        "Replays after a reused idle connection closed before any byte of the answer.",
    )

    cors_origin: tuple[str, ...] = setting(
        REQUESTS, kinds.origin(), (), "Browsers' pages of this origin may call the inference endpoints. Repeatable.", many=True
    )

    host: str = setting(PROCESS, kinds.host(), "127.0.0.1", "Address to listen on.")
    port: int = setting(PROCESS, kinds.whole(0, 65535, zero="a free one"), 8000, "Port to listen on.")
    workers: int = setting(PROCESS, kinds.whole(1, 256), 1, "Processes that share the port.", built=(1,))
    lame_duck: float = setting(PROCESS, kinds.seconds(), 0.0, "After SIGTERM: not ready, but still serving, this long.")
    drain_timeout: float = setting(PROCESS, kinds.seconds(), 30.0, "After that, running requests may take this long.")

    api_keys_file: Path | None = setting(
        KEYS, kinds.file(), None, "YAML with the clients' keys and what each may use.", built=(None,)
    )
    admin_api_key: Secret | None = setting(
        KEYS, kinds.key(), None, "Asked for by /admin and the console when set; @FILE reads it from a file."
    )

    log_format: str = setting(
        LOGS,
        kinds.choice("auto", "console", "json"),
        "auto",
        "How log lines on stderr look.",
        shown="auto: console on a terminal, else json",
    )
    log_level: str = setting(
        LOGS, kinds.choice("debug", "info", "warning", "error"), "info", "The least important lines that are written."
    )

    access_log: bool = setting(LOGS, kinds.switch(), False, "One line, at level info, for each request that is over.")
    otlp_endpoint: str | None = setting(
        LOGS,
        kinds.matching("URL", r"https?://[^\s@/]+(/[^\s]*)?", "a URL such as http://collector:4318"),
        None,
        "Send OpenTelemetry spans of requests and loads to this OTLP/HTTP collector; needs `pip install .[otel]`.",
    )

    def __post_init__(self) -> None:
        if self.replica_adapter_dir is None:
            object.__setattr__(self, "replica_adapter_dir", self.adapter_dir)
        if self.snapshot_dir is None:
            object.__setattr__(self, "snapshot_dir", self.adapter_dir / ".lora-gateway")


def _rows() -> Iterator[Setting]:
    for column in fields(Settings):
        yield replace(column.metadata["setting"], name=column.name.replace("_", "-"))


TABLE = tuple(_rows())
