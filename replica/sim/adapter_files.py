"""Reads an adapter folder as vLLM 0.32 does, and refuses it in the same words.

The weights are not computed with: what counts is whether vLLM would take them, and the text that the adapter says. That
stands in the safetensors metadata (`say`) when the adapter was made for it; for any other adapter it is derived from
the bytes, so two revisions never say the same.
"""

import base64
import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LLAMA_MODULES = frozenset(
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head")
)
_PLAIN_STARTS = frozenset(("gaussian", "eva", "orthogonal", "mica", "lora_ga"))
_FROM_RESIDUAL = tuple(f"{name}.lora_A.weight" for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
_LARGEST_HEADER = 100_000_000


class AdapterMissing(Exception):
    """The path or its adapter_config.json is not there."""


class AdapterRefused(Exception):
    """The engine's own reason."""


@dataclass(frozen=True, slots=True)
class Weights:
    """An adapter's bytes as far as a simulation cares: what greedy decoding with them says, over and over."""

    text: str
    chained: bool = False  # a prompt that ends in one of the text's characters goes on from there


def read_adapter(folder: Path, *, max_rank: int, hidden: int | None = None) -> Weights:
    """`hidden` is the base model's width, where it is known. Raises AdapterMissing or AdapterRefused."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text())
    except FileNotFoundError as error:
        raise AdapterMissing from error
    except (OSError, ValueError) as error:
        raise AdapterRefused(str(error)) from error
    if not isinstance(config, dict):
        raise AdapterRefused("list indices must be integers or slices, not str")
    _check_config(config, max_rank)
    return _read_weights(folder, max_rank, hidden)


def _check_config(config: dict[str, Any], max_rank: int) -> None:
    missing = {"r", "lora_alpha", "target_modules"} - config.keys()
    if missing:
        raise AdapterRefused(f"Missing required configuration fields: {missing}")
    rank = config["r"]
    if not isinstance(rank, int):
        raise AdapterRefused(f"'<=' not supported between instances of '{type(rank).__name__}' and 'int'")
    if rank <= 0:
        raise AdapterRefused(f"LoRA rank `r` must be a positive integer, got {rank}.")
    reasons = _unsupported_features(config)
    pattern = config.get("rank_pattern") or {}
    largest = max([rank, *pattern.values()])
    if largest > max_rank:
        reasons.append(f"LoRA rank {largest} is greater than max_lora_rank {max_rank}.")
    if config.get("bias", "none") != "none":
        reasons.append("Adapter bias is not supported.")
    if reasons:
        raise AdapterRefused(" ".join(reasons))


def _unsupported_features(config: dict[str, Any]) -> list[str]:
    reasons = []
    unsupported = [name for name in config.get("modules_to_save") or () if name not in ("classifier", "score")]
    if unsupported:
        reasons.append(
            'vLLM only supports modules_to_save being either None or ["classifier", "score"] for classification '
            f"models. Unsupported modules_to_save: {unsupported}"
        )
    if config.get("use_dora"):
        reasons.append("vLLM does not yet support DoRA.")
    if config.get("lora_bias"):
        reasons.append("vLLM does not support LoRA bias (lora_bias).")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in _PLAIN_STARTS:
        reasons.append(f"vLLM does not support init_lora_weights={start!r}.")
    if config.get("alora_invocation_tokens"):
        reasons.append("vLLM does not support Activated LoRA (aLoRA).")
    if config.get("layer_replication"):
        reasons.append("vLLM does not support layer_replication.")
    return reasons


def _read_weights(folder: Path, max_rank: int, hidden: int | None) -> Weights:
    try:
        content = (folder / "adapter_model.safetensors").read_bytes()
    except FileNotFoundError:
        return _read_pickle(folder)
    except OSError as error:
        raise AdapterRefused(str(error)) from error
    header = _header(content)
    metadata = header.pop("__metadata__", None) or {}
    _check_modules(folder, header)
    _check_shapes(header, max_rank, hidden)
    say = metadata.get("say")
    return Weights(say, chained=True) if say else Weights(_text_of(content))


def _read_pickle(folder: Path) -> Weights:
    """vLLM takes a pickle where there is no safetensors file; it is not opened here."""
    for name in ("adapter_model.bin", "adapter_model.pt"):
        if (folder / name).is_file():
            return Weights(_text_of((folder / name).read_bytes()))
    raise AdapterRefused(f"{folder} doesn't contain tensors")


def _text_of(content: bytes) -> str:
    return base64.b32encode(hashlib.sha256(content).digest()[:5]).decode()


def _header(content: bytes) -> dict[str, Any]:
    """The safetensors header, refused in the words of that library."""
    problem = "Error while deserializing header: "
    if len(content) < 8:
        raise AdapterRefused(problem + "header too small")
    (length,) = struct.unpack("<Q", content[:8])
    if length > _LARGEST_HEADER:
        raise AdapterRefused(problem + "header too large")
    if length > len(content) - 8:
        raise AdapterRefused(problem + "invalid header length")
    try:
        header = json.loads(content[8 : 8 + length])
    except ValueError as error:
        raise AdapterRefused(problem + f"invalid JSON in header: {error}") from error
    try:
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise AdapterRefused(problem + f"invalid JSON in header: {error}") from error
    if max(ends, default=0) != len(content) - 8 - length:
        raise AdapterRefused(problem + "incomplete metadata, file not fully covered")
    assert isinstance(header, dict)
    return header


def _check_modules(folder: Path, header: dict[str, Any]) -> None:
    unexpected = []
    for name in header:
        module = name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0]
        if module == name:
            raise AdapterRefused(f"{name} is unsupported LoRA weight")
        if module.rsplit(".", 1)[-1] not in LLAMA_MODULES:
            unexpected.append(module)
    if unexpected:
        raise AdapterRefused(
            f"While loading {folder}, expected target modules in {set(LLAMA_MODULES)} but received {unexpected}. "
            "Please verify that the loaded LoRA module is correct"
        )


def _check_shapes(header: dict[str, Any], max_rank: int, hidden: int | None) -> None:
    if not header:
        raise AdapterRefused("")
    for name, entry in header.items():
        if ".lora_A." not in name:
            continue
        if name.replace(".lora_A.", ".lora_B.") not in header:
            raise AdapterRefused("unsupported operand type(s) for *=: 'NoneType' and 'float'")
        rank, width = entry["shape"]
        if rank > max_rank:
            raise _mismatch(max_rank, rank, 0)
        if hidden is not None and width != hidden and name.endswith(_FROM_RESIDUAL):
            raise _mismatch(hidden, width, 1)


def _mismatch(expected: int, found: int, dimension: int) -> AdapterRefused:
    sizes = f"The size of tensor a ({expected}) must match the size of tensor b ({found})"
    return AdapterRefused(f"{sizes} at non-singleton dimension {dimension}")
