"""Greedy decoding of the tiny model with an adapter in numpy: what a correct engine answers; slow and independent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tokenizers import Tokenizer

Array = npt.NDArray[Any]


class Reference:
    def __init__(self, model: Path, adapter: Path | None = None) -> None:
        self._config = json.loads((model / "config.json").read_text())
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._weights: dict[str, Array] = load_file(model / "model.safetensors")
        if adapter is not None:
            self._merge(adapter)

    def answer(self, prompt: str, tokens: int) -> str:
        ids: list[int] = self._tokenizer.encode(prompt).ids
        start = len(ids)
        for _ in range(tokens):
            ids.append(int(np.argmax(self._logits(ids))))
        text: str = self._tokenizer.decode(ids[start:])
        return text

    def _merge(self, adapter: Path) -> None:
        config = json.loads((adapter / "adapter_config.json").read_text())
        tensors = load_file(adapter / "adapter_model.safetensors")
        for name, a in tensors.items():
            if name.endswith(".lora_A.weight"):
                target = name.removeprefix("base_model.model.").replace(".lora_A", "")
                b = tensors[name.replace("lora_A", "lora_B")]
                self._weights[target] = self._weights[target] + config["lora_alpha"] / config["r"] * (b @ a)

    def _logits(self, ids: list[int]) -> Array:
        hidden: Array = self._weights["model.embed_tokens.weight"][ids].astype(np.float64)
        for layer in range(self._config["num_hidden_layers"]):
            stem = f"model.layers.{layer}."
            hidden = hidden + self._attention(_normed(hidden), stem + "self_attn.")
            hidden = hidden + self._neurons(_normed(hidden), stem + "mlp.")
        logits: Array = _normed(hidden[-1]) @ self._weights["lm_head.weight"].T
        return logits

    def _attention(self, x: Array, stem: str) -> Array:
        heads, kv_heads, size = (self._config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        count = len(x)
        q = self._rotated((x @ self._weights[stem + "q_proj.weight"].T).reshape(count, heads, size))
        k = self._rotated((x @ self._weights[stem + "k_proj.weight"].T).reshape(count, kv_heads, size))
        v = (x @ self._weights[stem + "v_proj.weight"].T).reshape(count, kv_heads, size)
        k, v = (np.repeat(shared, heads // kv_heads, axis=1) for shared in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / size**0.5
        scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed: Array = np.einsum("hqk,khd->qhd", shares, v).reshape(count, -1)
        return mixed @ self._weights[stem + "o_proj.weight"].T

    def _rotated(self, x: Array) -> Array:
        half = self._config["head_dim"] // 2
        angles = np.arange(len(x))[:, None] / self._config["rope_theta"] ** (np.arange(half) / half)[None]
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        left, right = x[..., :half], x[..., half:]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    def _neurons(self, x: Array, stem: str) -> Array:
        gate = x @ self._weights[stem + "gate_proj.weight"].T
        up = x @ self._weights[stem + "up_proj.weight"].T
        fired: Array = gate / (1 + np.exp(-np.clip(gate, -500, 500))) * up
        return fired @ self._weights[stem + "down_proj.weight"].T


def _normed(x: Array) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return normed
