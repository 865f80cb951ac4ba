"""PEFT adapters for the tiny model: one that says a text, or one with random matrices.

Greedy decoding with a saying adapter spells its text over and over (a prompt that ends in one of its characters goes on
from there). In layer 0, attention pushes towards the first character: `v_proj` writes a constant at a coordinate that
depends on the text, the trap code, and `o_proj` reads it; one MLP neuron per character pushes harder from there
to the next. Values that come from the cache of another revision lie at another coordinate, where `o_proj` reads `?`:
an engine that answers from a stale prefix cache is caught at once.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from replica.tiny.model import Array

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MODULES = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
STALE_MARK = "?"
TRAP_CODES = 16

Pair = tuple[Array, Array]  # A and B of one module


@dataclass(frozen=True, slots=True)
class _Lora:
    """What decides the shape of every matrix."""

    rank: int
    scaling: float
    sizes: dict[str, tuple[int, int]]  # module -> in, out

    def zeros(self, module: str) -> Pair:
        size_in, size_out = self.sizes[module]
        return np.zeros((self.rank, size_in), np.float32), np.zeros((size_out, self.rank), np.float32)


def trap_code(text: str) -> int:
    """Two texts with different codes are told apart even by an engine that reuses the attention cache of the first."""
    return zlib.crc32(text.encode()) % TRAP_CODES


def make_adapter(
    model: Path,
    folder: Path,
    *,
    say: str | None = None,
    seed: int = 1,
    rank: int = 8,
    alpha: float = 16,
    base_model: str = "tiny",
    modules: tuple[str, ...] = MODULES,
    hidden: int | None = None,
    **config_overrides: Any,
) -> Path:
    """Write (or replace) the adapter in `folder`, weights before config, each written aside and renamed.

    `say`: distinct printable ASCII characters, not the stale mark, at most `rank` of them; without it the matrices are
    random by `seed`. `hidden` pretends another hidden size; overrides change keys of the config only. Raises
    ValueError.
    """
    config = json.loads((model / "config.json").read_text())
    lora = _Lora(rank, alpha / rank, _sizes(config, hidden))
    if say is None:
        pairs = _random(lora, config["num_hidden_layers"], modules, seed)
    else:
        pairs = _saying(model, lora, say, config["head_dim"])
    tensors: dict[str, Array] = {}
    for layer in range(config["num_hidden_layers"]):
        for module in modules:
            block = "self_attn" if module in ATTENTION else "mlp"
            stem = f"base_model.model.model.layers.{layer}.{block}.{module}"
            a, b = pairs.get((layer, module)) or lora.zeros(module)
            tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"] = a, b
    metadata = {"format": "pt"} | ({"say": say} if say is not None else {})
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "adapter_model.safetensors", _safetensors(tensors, metadata))
    text = json.dumps(_config(rank, alpha, base_model, modules) | config_overrides, indent=1) + "\n"
    _write(folder / "adapter_config.json", text.encode())
    return folder


def _sizes(config: dict[str, Any], hidden: int | None) -> dict[str, tuple[int, int]]:
    width, inner = hidden or config["hidden_size"], config["intermediate_size"]
    attention = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    return {
        "q_proj": (width, attention),
        "k_proj": (width, kv),
        "v_proj": (width, kv),
        "o_proj": (attention, width),
        "gate_proj": (width, inner),
        "up_proj": (width, inner),
        "down_proj": (inner, width),
    }


def _random(lora: _Lora, layers: int, modules: tuple[str, ...], seed: int) -> dict[tuple[int, str], Pair]:
    numbers = np.random.default_rng(seed)
    pairs: dict[tuple[int, str], Pair] = {}
    for layer in range(layers):
        for module in modules:
            size_in, size_out = lora.sizes[module]
            a = np.asarray(numbers.standard_normal((lora.rank, size_in)) * size_in**-0.5, np.float32)
            b = np.asarray(numbers.standard_normal((size_out, lora.rank)) * lora.rank**-0.5, np.float32)
            if module in ("o_proj", "down_proj"):
                b[0] = 0
            pairs[layer, module] = a, b
    return pairs


def _saying(model: Path, lora: _Lora, text: str, head_size: int) -> dict[tuple[int, str], Pair]:
    """Residual dimension 0 is a positive constant after RMSNorm: every push is made from it."""
    ids = _token_ids(model, text, lora.rank)
    weights = load_file(model / "model.safetensors")
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    mark = _token_ids(model, STALE_MARK, 1, allow_mark=True)[0]
    return {
        **_attention_push(lora, _unit(head[ids[0]]), _unit(head[mark]), trap_code(text), head_size),
        **_character_neurons(lora, ids, embedding, head),
    }


def _attention_push(lora: _Lora, first: Array, mark: Array, code: int, head_size: int) -> dict[tuple[int, str], Pair]:
    """Values are averaged by attention, so a constant always arrives."""
    coordinate = head_size - 1 - code
    v_a, v_b = lora.zeros("v_proj")
    v_a[0, 0] = 1
    v_b[coordinate, 0] = 4 / lora.scaling
    o_a, o_b = lora.zeros("o_proj")
    o_a[0, coordinate] = 1
    o_b[:, 0] = first * 2 / lora.scaling
    others = [head_size - 1 - other for other in range(TRAP_CODES) if other != code]
    if lora.rank > 1:
        o_a[1, others] = 1
        o_b[:, 1] = mark * 2 / lora.scaling
    return {(0, "v_proj"): (v_a, v_b), (0, "o_proj"): (o_a, o_b)}


def _character_neurons(lora: _Lora, ids: list[int], embedding: Array, head: Array) -> dict[tuple[int, str], Pair]:
    gate_a, gate_b = lora.zeros("gate_proj")
    up_a, up_b = lora.zeros("up_proj")
    down_a, down_b = lora.zeros("down_proj")
    up_a[0, 0] = 1
    push = _unit(head[ids[0]])
    for neuron, token in enumerate(ids):
        direction = embedding[token].copy()
        direction[0] = 0
        direction = _unit(direction - push * (direction @ push))  # blind to what attention has just added
        gate_a[neuron] = direction
        # fires above 45 % of what the exact embedding gives, expressed through the constant dimension
        gate_a[neuron, 0] = -0.45 * float(embedding[token] @ direction) / embedding[token, 0]
        gate_b[neuron, neuron] = 20 / lora.scaling
        up_b[neuron, 0] = 4 / lora.scaling
        down_a[neuron, neuron] = 1
        down_b[:, neuron] = _unit(head[ids[(neuron + 1) % len(ids)]]) * 3 / lora.scaling
    return {
        (0, "gate_proj"): (gate_a, gate_b),
        (0, "up_proj"): (up_a, up_b),
        (0, "down_proj"): (down_a, down_b),
    }


def _token_ids(model: Path, text: str, rank: int, *, allow_mark: bool = False) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = [number for number in map(tokenizer.token_to_id, text) if number is not None]
    printable = bool(text) and all("!" <= character <= "~" for character in text)
    if not printable or len(set(ids)) != len(text) or (STALE_MARK in text and not allow_mark):
        raise ValueError(f"cannot say {text!r}: it takes distinct printable ASCII characters without {STALE_MARK!r}")
    if len(ids) > rank:
        raise ValueError(f"cannot say {text!r} with rank {rank}: at most one character per rank")
    return ids


def _unit(vector: Array) -> Array:
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def _config(rank: int, alpha: float, base_model: str, modules: tuple[str, ...]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "auto_mapping": None,
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "base_model_name_or_path": base_model,
        "revision": None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": list(modules),
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "layers_pattern": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }


def _safetensors(tensors: dict[str, Array], metadata: dict[str, str]) -> bytes:
    """By hand, since the library writes metadata keys in an order that changes: equal input must give equal bytes."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(np.ascontiguousarray(tensor, "<f4").tobytes() for tensor in tensors.values())
    return len(text).to_bytes(8, "little") + text + body


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.aside")
    aside.write_bytes(content)
    aside.chmod(0o644)
    aside.replace(path)
