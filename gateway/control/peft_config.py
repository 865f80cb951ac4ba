"""Reads adapter_config.json: which values the replica needs, what only deserves a warning, and its canonical bytes.

PEFT adds keys with every release, so unknown keys never matter. Needed by the server are `peft_type`, `r`, `lora_alpha`
and `target_modules`; everything else is free. A regular expression among the targets is never compiled here.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.control.verdicts import Invalid, quoted

MAX_CONFIG_BYTES = 4 * 1024 * 1024
LFS_POINTER = b"version https://git-lfs"
LFS_REASON = "Git LFS pointer, content not fetched: run `git lfs pull` where the folder was cloned"
_SETS = ("target_modules", "exclude_modules", "modules_to_save")  # PEFT writes sets: the order moves from save to save
_TOO_DEEP = "adapter_config.json is nested too deeply"


@dataclass(frozen=True, slots=True)
class PeftConfig:
    base_model: str | None
    r: int
    ranks: frozenset[int]  # `r` and the values of `rank_pattern`
    stacked: bool  # `target_parameters`: the experts' matrices stand in one tensor, its rank is a multiple of `r`
    block_diagonal: bool  # `use_bdlora`: the two matrices of a pair differ in rank on purpose
    warnings: tuple[str, ...]
    canonical: bytes  # equal for equal meaning: sorted keys, sorted sets

    @property
    def rank(self) -> int:
        return max(self.ranks)


def parse_config(data: bytes) -> PeftConfig:
    """The config in these bytes; Invalid with the exact reason otherwise."""
    config = _json_object(data)
    _check_type(config)
    r = _rank(config)
    _check_alpha(config)
    _check_targets(config)
    return PeftConfig(
        base_model=_base_model(config),
        r=r,
        ranks=frozenset((r, *_pattern_ranks(config))),
        stacked=bool(config.get("target_parameters")),
        block_diagonal=bool(config.get("use_bdlora")),
        warnings=tuple(_warnings(config)),
        canonical=_canonical(config),
    )


def _json_object(data: bytes) -> dict[str, Any]:
    if not data.strip():
        raise Invalid("adapter_config.json is empty", "config")
    if data.startswith(LFS_POINTER):
        raise Invalid(f"adapter_config.json: {LFS_REASON}", "lfs_pointer")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Invalid("adapter_config.json starts with a UTF-8 BOM, which replicas refuse: save it without", "config")
    if len(data) > MAX_CONFIG_BYTES:
        raise Invalid(f"adapter_config.json is larger than {MAX_CONFIG_BYTES // 2**20} MiB", "config")
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError:
        raise Invalid("adapter_config.json is not UTF-8 text", "config") from None
    except RecursionError:
        raise Invalid(_TOO_DEEP, "config") from None
    except ValueError as error:  # also a number of thousands of digits, which Python refuses to read
        where = f" (line {error.lineno} column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise Invalid(f"adapter_config.json is not valid JSON{where}", "config") from None
    if not isinstance(value, dict):
        kind = "an array" if isinstance(value, list) else f"the scalar {quoted(value)}"
        raise Invalid(f"adapter_config.json must be a JSON object, not {kind}", "config")
    return value


def _check_type(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind == "LORA":
        return
    if kind is None:
        hint = "peft_type is missing: this is no adapter that PEFT saved"
        if "lora_parameters" in config:
            hint = "peft_type is missing: these are MLX training settings; convert the adapter to the PEFT format"
        raise Invalid(hint, "not_lora")
    shown = kind if isinstance(kind, str) and kind.isidentifier() and len(kind) <= 40 else quoted(kind)
    spelling = " (write it in capitals)" if isinstance(kind, str) and kind.upper() == "LORA" else ""
    raise Invalid(f"peft_type {shown} is not LORA{spelling}", "not_lora")


def _rank(config: Mapping[str, Any]) -> int:
    r = config.get("r")
    if isinstance(r, int) and _is_rank(r):
        return r
    raise Invalid(f"r must be a positive whole number, not {_shown(config, 'r')}", "field")


def _check_alpha(config: Mapping[str, Any]) -> None:
    alpha = config.get("lora_alpha")
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not is_number or (isinstance(alpha, float) and not math.isfinite(alpha)):
        raise Invalid(f"lora_alpha must be a number, not {_shown(config, 'lora_alpha')}", "field")


def _check_targets(config: Mapping[str, Any]) -> None:
    targets = config.get("target_modules")
    if not targets and targets in (None, [], ""):
        if _is_names(config.get("target_parameters")):
            return
        state = "missing" if targets is None else "empty"
        raise Invalid(f"target_modules {state}: a list of module names, or a string, is needed by the replicas", "field")
    if not isinstance(targets, str) and not _is_names(targets):
        raise Invalid("target_modules must be a list of module names or a string", "field")


def _is_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _shown(config: Mapping[str, Any], key: str) -> str:
    return quoted(config[key]) if key in config else "missing"


def _pattern_ranks(config: Mapping[str, Any]) -> Iterator[int]:
    pattern = config.get("rank_pattern")
    return (value for value in pattern.values() if _is_rank(value)) if isinstance(pattern, dict) else iter(())


def _base_model(config: Mapping[str, Any]) -> str | None:
    """The name as text that can be encoded and printed on one line; None when absent, empty or no string."""
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str):
        return None
    clean = "".join(letter for letter in name.encode(errors="replace").decode() if letter.isprintable())
    return clean[:1024] or None


def _warnings(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("modules_to_save"):
        yield "modules_to_save may be refused by the replicas: they load LoRA matrices only"
    if config.get("use_dora"):
        yield "use_dora: DoRA may be refused by the replicas"
    if config.get("bias") not in (None, "none"):
        yield f"bias {quoted(config['bias'])} may be refused by the replicas"
    if config.get("lora_bias"):
        yield "lora_bias may be refused by the replicas"
    if config.get("target_parameters"):
        yield "target_parameters may not be supported by the replicas"
    if config.get("trainable_token_indices"):
        yield "trainable_token_indices may be refused by the replicas"
    name = config.get("base_model_name_or_path")
    if name is not None and not isinstance(name, str):
        yield "base_model_name_or_path is not a string: ignored"


def _canonical(config: Mapping[str, Any]) -> bytes:
    plain = dict(config)
    for key in _SETS:
        if _is_names(plain.get(key)):
            plain[key] = sorted(plain[key])
    try:
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    except RecursionError:  # writing is allowed less depth than reading
        raise Invalid(_TOO_DEEP, "config") from None
