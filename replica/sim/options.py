"""How one simulated replica is set up, and the faults it shows. Both are frozen: a change replaces the whole value."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """Times are in seconds. Defaults are those of vLLM 0.32 where it has one."""

    adapter_dirs: tuple[Path, ...] = ()  # what this replica mounts: a lora_path elsewhere is not found; empty: all
    model_names: tuple[str, ...] = ("tiny",)  # the base model's name and its aliases
    model_root: str = "/models/tiny"  # its `root` in the model list; a real folder tells its width, so that misfits are refused
    host: str = "127.0.0.1"
    max_loras: int = 2  # adapters in one batch; a request for one more waits
    max_cpu_loras: int = 0  # adapters kept in memory; 0: as many as max_loras
    max_lora_rank: int = 16
    max_num_seqs: int = 256
    max_model_len: int = 1 << 24  # in tokens (bytes of text); large, so that large bodies pass
    reply_tokens: int = 32  # where a request that names no max_tokens stops by itself
    token_seconds: float = 0.0
    first_byte_seconds: float = 0.0
    load_seconds: float = 0.0
    api_key: str | None = None
    enable_lora: bool = True
    runtime_lora: bool = True
    pooling: bool = True  # embeddings, score, rerank, pooling, classify, audio: what a generating model does not have
    shutdown_timeout: float = 0.0
    start_seconds: float = 0.0  # from start until it can serve
    start_open: bool = False  # meanwhile the port is open and /health is 503; else connections are refused
    restart_seconds: float | None = None  # a dead replica comes back empty after this; None: never
    exit_seconds: float = 0.1  # from the engine's death until the port closes
    keep_alive: float = 5.0
    control: bool = True  # POST /sim/faults, GET /sim/log

    @property
    def cached_loras(self) -> int:
        return self.max_cpu_loras or self.max_loras


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong from now on. `names` limits load and inference faults to models, `times` to so many calls."""

    hang: bool = False  # the engine is frozen: generation and loads give nothing, /health and the list stay 200
    health_status: int | None = None
    models_status: int | None = None
    hide_models: str | None = None  # "adapters" or "all" are left out of /v1/models
    load_status: int | None = None  # answer loads with this; load_body is the whole body, else vLLM's own shape
    load_body: str | None = None
    load_seconds: float | None = None  # instead of the replica's own
    unload_status: int | None = None
    status: int | None = None  # answer inference with this
    body: str | None = None
    token_seconds: float | None = None
    first_byte_seconds: float | None = None
    rst_after_chunks: int | None = None  # reset a stream after so many chunks
    fin_after_chunks: int | None = None  # or close it cleanly, without the last chunk
    close_before_answer: str | None = None  # "rst" or "fin" after an inference request's body was read
    die_on_load: str | None = None  # "kill" or "engine"
    die_on_request: str | None = None  # "kill" or "engine"
    names: tuple[str, ...] | None = None
    times: int | None = None

    def concerns(self, model: str) -> bool:
        return self.names is None or model in self.names

    def used(self) -> "Faults":
        """After one call was spoilt."""
        if self.times is None:
            return self
        return Faults() if self.times <= 1 else dataclasses.replace(self, times=self.times - 1)

    def changed(self, changes: Mapping[str, Any]) -> "Faults":
        """Raises ValueError with what is wrong and what is allowed."""
        return dataclasses.replace(self, **{name: _checked(name, value) for name, value in changes.items()})


_ALLOWED_WORDS: Mapping[str, tuple[str, ...]] = {
    "hide_models": ("adapters", "all"),
    "close_before_answer": ("rst", "fin"),
    "die_on_load": ("kill", "engine"),
    "die_on_request": ("kill", "engine"),
}


def parse_fault(text: str) -> tuple[str, Any]:
    """`NAME=VALUE`, the value as JSON where it is JSON, else as it is. Raises ValueError."""
    name, separator, raw = text.partition("=")
    if not separator:
        raise ValueError("expected NAME=VALUE")
    try:
        value = json.loads(raw)
    except ValueError:
        value = raw
    if isinstance(value, (int, float)) and name in ("load_body", "body"):
        value = raw
    return name, _checked(name, value)


def _checked(name: str, value: Any) -> Any:
    kinds = typing.get_type_hints(Faults)
    if name not in kinds:
        raise ValueError(f"no fault {name!r}; there are {', '.join(kinds)}")
    if name == "names" and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    allowed = typing.get_args(kinds[name]) or (kinds[name],)
    number = type(value) is int and float in allowed
    if not number and not any(type(value) is kind or typing.get_origin(kind) is type(value) for kind in allowed):
        raise ValueError(f"fault {name}: {value!r} is of the wrong type")
    words = _ALLOWED_WORDS.get(name)
    if words and value is not None and value not in words:
        raise ValueError(f"fault {name}: {value!r} is none of {', '.join(words)}")
    return value
