"""Pairs of matrices, held against the config."""

import math
from typing import Any

import pytest

from gateway.control.lora_pairs import check_pairs
from gateway.control.peft_config import parse_config
from gateway.control.safetensors_frame import Tensor
from gateway.control.verdicts import Invalid
from tests.control.test_peft_config import text

STEM = "base_model.model.model.layers.0.self_attn.q_proj"


def tensors(**shapes: tuple[int, ...]) -> list[Tensor]:
    return [tensor(f"{STEM}.lora_{side}.weight", shape) for side, shape in shapes.items()]


def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, "F32", shape, 0, 4 * math.prod(shape))


def check(found: list[Tensor], **overrides: Any) -> list[str]:
    return list(check_pairs(found, parse_config(text(**overrides))))


GOOD: dict[str, tuple[list[Tensor], dict[str, Any]]] = {
    "plain": (tensors(A=(8, 16), B=(32, 8)), {}),
    "pattern": (tensors(A=(4, 16), B=(32, 4)), {"rank_pattern": {"q_proj": 4}}),
    "convolution": (tensors(A=(8, 16, 3, 3), B=(32, 8, 1, 1)), {}),
    "embedding": ([tensor(f"{STEM}.lora_embedding_A", (8, 99)), tensor(f"{STEM}.lora_embedding_B", (16, 8))], {}),
    "named": ([tensor(f"{STEM}.lora_A.x.weight", (8, 9)), tensor(f"{STEM}.lora_B.x.weight", (9, 8))], {}),
    "stacked": (tensors(A=(64, 16), B=(32, 64)), {"target_parameters": ["experts.up"]}),
    "stacked-3d": (tensors(A=(4, 8, 16), B=(4, 32, 8)), {}),
    "block-diagonal": (tensors(A=(8, 16), B=(32, 2)), {"use_bdlora": {"nblocks": 4}}),
    "extras": ([*tensors(A=(8, 16), B=(32, 8)), tensor(f"{STEM}.lora_magnitude_vector", (32,))], {}),
}


@pytest.mark.parametrize(("found", "overrides"), GOOD.values(), ids=GOOD.keys())
def test_shapes_that_peft_writes_are_taken(found: list[Tensor], overrides: dict[str, Any]) -> None:
    check(found, **overrides)


BAD: dict[str, tuple[list[Tensor], str, str]] = {
    "silent-noop-none": ([tensor("model.layers.0.weight", (2, 2))], "none of the 1 tensors is a lora_A", "no_lora_tensors"),
    "no-tensors": ([], "none of the 0 tensors", "no_lora_tensors"),
    "b-missing": (tensors(A=(8, 16)), "has no lora_B beside it", "weights_corrupt"),
    "a-missing": (tensors(B=(16, 8)), "has no lora_A beside it", "weights_corrupt"),
    "vector": (tensors(A=(8,), B=(16, 8)), "must be matrices", "shape"),
    "ranks-differ": (tensors(A=(8, 16), B=(16, 4)), "lora_A has rank 8 but lora_B 4", "shape"),
    "rank-not-stated": (tensors(A=(16, 16), B=(16, 16)), "has rank 16 but adapter_config.json says r=8", "shape"),
    "rank-zero": (tensors(A=(0, 16), B=(16, 0)), "has rank 0", "shape"),
}


@pytest.mark.parametrize(("found", "reason", "code"), BAD.values(), ids=BAD.keys())
def test_silent_noop_matrices_that_cannot_work_are_invalid(found: list[Tensor], reason: str, code: str) -> None:
    with pytest.raises(Invalid) as refused:
        check(found)
    assert (reason in refused.value.reason, refused.value.code) == (True, code), refused.value.reason


def test_silent_noop_names_without_the_usual_prefix_are_a_warning() -> None:
    odd = [tensor(f"model.q_proj.lora_{side}.weight", (8, 8)) for side in "AB"]
    (warning,) = check(odd)
    assert "no tensor name starts with base_model.model." in warning
    (warning,) = check([*odd, *tensors(A=(8, 16), B=(32, 8))])
    assert "2 of 4 tensor names do not start" in warning


def test_a_hostile_name_is_printed_short() -> None:
    with pytest.raises(Invalid) as refused:
        check([tensor("\x1b[31m" + "x" * 9000 + ".lora_A.weight", (8, 8))])
    assert refused.value.reason.isprintable()
    assert len(refused.value.reason) < 300
