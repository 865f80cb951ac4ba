"""Tiny valid adapters for tests, made with the standard library alone.

`write_adapter` puts a LoRA of a few kilobytes into a folder: PEFT's config and two layers of `q_proj` as float32. The
same arguments give the same bytes, another `seed` gives other weights of the same size. Weights are written aside and
renamed, and come before the config, so a scan never sees half of them. `age` dates the files back: files older than
two seconds are taken at the first look.
"""

import json
import os
import random
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = 16
Tensor = tuple[str, tuple[int, ...], bytes]  # dtype, shape, little-endian bytes


def write_adapter(
    folder: Path,
    *,
    rank: int = 8,
    seed: int = 0,
    base_model: str | None = "base-a",
    age: float = 0.0,
    **config_overrides: Any,
) -> Path:
    """Make (or replace) the adapter in `folder` and return the folder. Overrides change keys of the config only."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "adapter_model.safetensors", lora_tensors(rank=rank, seed=seed), age=age)
    write_file(folder / "adapter_config.json", json.dumps(config(rank, base_model, **config_overrides)).encode(), age=age)
    return folder


def config(rank: int = 8, base_model: str | None = "base-a", **overrides: Any) -> dict[str, Any]:
    plain = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": 16,
        "target_modules": ["q_proj"],
    }
    return plain | overrides


def lora_tensors(
    *,
    rank: int = 8,
    seed: int = 0,
    layers: int = 2,
    modules: tuple[str, ...] = ("q_proj",),
    prefix: str = "base_model.model.",
    hidden: int = HIDDEN,
) -> dict[str, Tensor]:
    numbers = random.Random(seed)
    tensors: dict[str, Tensor] = {}
    for layer in range(layers):
        for module in modules:
            stem = f"{prefix}model.layers.{layer}.self_attn.{module}"
            tensors[f"{stem}.lora_A.weight"] = ("F32", (rank, hidden), _floats(numbers, rank * hidden))
            tensors[f"{stem}.lora_B.weight"] = ("F32", (hidden, rank), _floats(numbers, rank * hidden))
    return tensors


def safetensors_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The safetensors file of these tensors: 8 bytes of header length, the JSON header, the data in the given order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def write_weights(path: Path, tensors: Mapping[str, Tensor], *, age: float = 0.0) -> Path:
    return write_file(path, safetensors_bytes(tensors), age=age)


def write_file(path: Path, data: bytes, *, age: float = 0.0) -> Path:
    """Write aside, then rename: a reader sees the old file or the new one, never a part."""
    aside = path.with_name(f".{path.name}.aside")
    aside.write_bytes(data)
    if age:
        then = time.time() - age
        os.utime(aside, (then, then))
    return aside.rename(path)


def _floats(numbers: random.Random, count: int) -> bytes:
    return struct.pack(f"<{count}f", *(numbers.uniform(-1, 1) for _ in range(count)))
