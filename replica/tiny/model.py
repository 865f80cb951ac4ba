"""The tiny Llama: random weights, one token per byte, printable ASCII answers.

Residual dimension 0 is a constant: every embedding has `BIAS` there and no layer writes to it. That changes nothing for
the base model; adapters that say a chosen text are built on it. The head size must be one that vLLM's CPU attention
has a kernel for (32, 64, ...): with 16 vLLM starts, and its engine dies at the first request.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

Array = npt.NDArray[np.float32]

BIAS = 3.0
SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 256
    positions: int = 2048

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def make_model(folder: Path, *, seed: int = 0, shape: Shape | None = None) -> Path:
    """Write the checkpoint in Hugging Face format into `folder` and return it."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _write_tokenizer(folder, shape.positions)
    vocabulary = -(-tokenizer.get_vocab_size() // 64) * 64
    weights = folder / "model.safetensors"
    save_file(_weights(shape, vocabulary, tokenizer, seed), weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    _write_json(folder / "config.json", _config(shape, vocabulary))
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    return folder


def _write_tokenizer(folder: Path, positions: int) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|bos|>",
            "eos_token": "<|eos|>",
            "pad_token": "<|pad|>",
            "model_max_length": positions,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return tokenizer


def _weights(shape: Shape, vocabulary: int, tokenizer: Tokenizer, seed: int) -> dict[str, Array]:
    numbers = np.random.default_rng(seed)
    hidden, attention, kv = shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size

    def matrix(rows: int, columns: int, scale: float | None = None) -> Array:
        return np.asarray(numbers.standard_normal((rows, columns)) * (scale or columns**-0.5), np.float32)

    def without_constant(weight: Array) -> Array:
        weight[0] = 0  # the row that would write to residual dimension 0
        return weight

    embedding = matrix(vocabulary, hidden, 1.0)
    embedding[:, 0] = BIAS
    tensors = {"model.embed_tokens.weight": embedding}
    for layer in range(shape.layers):
        stem = f"model.layers.{layer}."
        tensors[stem + "self_attn.q_proj.weight"] = matrix(attention, hidden)
        tensors[stem + "self_attn.k_proj.weight"] = matrix(kv, hidden)
        tensors[stem + "self_attn.v_proj.weight"] = matrix(kv, hidden)
        tensors[stem + "self_attn.o_proj.weight"] = without_constant(matrix(hidden, attention))
        tensors[stem + "mlp.gate_proj.weight"] = matrix(shape.intermediate, hidden)
        tensors[stem + "mlp.up_proj.weight"] = matrix(shape.intermediate, hidden)
        tensors[stem + "mlp.down_proj.weight"] = without_constant(matrix(hidden, shape.intermediate))
        tensors[stem + "input_layernorm.weight"] = np.ones(hidden, np.float32)
        tensors[stem + "post_attention_layernorm.weight"] = np.ones(hidden, np.float32)
    tensors["model.norm.weight"] = np.ones(hidden, np.float32)
    head = matrix(vocabulary, hidden)
    head[:, 0] = 0
    # only printable ASCII can be said: the logit of every other token is 0, which is never the largest here
    silent = set(range(vocabulary)) - {tokenizer.token_to_id(chr(code)) for code in range(33, 127)}
    head[sorted(silent)] = 0
    tensors["lm_head.weight"] = head
    return tensors


def _config(shape: Shape, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": vocabulary,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
        "attention_bias": False,
        "mlp_bias": False,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
