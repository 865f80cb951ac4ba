"""Holds the tensors of an adapter against its config: are they LoRA pairs, complete, and of the stated rank?

vLLM 0.32 loads an adapter whose rank differs from its config, or whose module names match nothing, with 200, and then
answers nonsense or the base model's text. So both are found here.
"""

import re
from collections.abc import Iterable, Iterator

from gateway.control.peft_config import PeftConfig
from gateway.control.safetensors_frame import Tensor
from gateway.control.verdicts import Invalid, quoted

PREFIX = "base_model.model."
_SIDE = re.compile(r"(?P<stem>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?P<rest>(?:\.[^.]+)*)", re.DOTALL)
_Pair = dict[str, Tensor]


def check_pairs(tensors: Iterable[Tensor], config: PeftConfig) -> Iterator[str]:
    """Warnings about the tensors' names; Invalid when pairs are missing, broken or of another rank."""
    tensors = list(tensors)
    pairs = _pairs(tensors)
    if not pairs:
        reason = f"none of the {len(tensors)} tensors is a lora_A or lora_B matrix: save the adapter with PEFT"
        raise Invalid(reason, "no_lora_tensors")
    for stem, pair in pairs.items():
        _check_pair(stem, pair, config)
    odd = sum(not tensor.name.startswith(PREFIX) for tensor in tensors)
    if odd:
        some = "no tensor name starts" if odd == len(tensors) else f"{odd} of {len(tensors)} tensor names do not start"
        yield f"{some} with {PREFIX}: the replicas may ignore them and answer like the base model"


def _pairs(tensors: Iterable[Tensor]) -> dict[str, _Pair]:
    pairs: dict[str, _Pair] = {}
    for tensor in tensors:
        match = _SIDE.fullmatch(tensor.name)
        if match:
            stem = f"{match['stem']}.lora_{match['embedding'] or ''}*{match['rest']}"
            pairs.setdefault(stem, {})[match["side"]] = tensor
    return pairs


def _check_pair(stem: str, pair: _Pair, config: PeftConfig) -> None:
    if len(pair) < 2:
        there = next(iter(pair))
        missing = "B" if there == "A" else "A"
        reason = f"{quoted(pair[there].name, 120)} has no lora_{missing} beside it: save the adapter again"
        raise Invalid(reason, "weights_corrupt")
    down, up = pair["A"].shape, pair["B"].shape
    if len(down) < 2 or len(up) < 2:
        raise Invalid(f"{quoted(stem, 120)}: lora_A and lora_B must be matrices", "shape")
    if len(down) == 3 or len(up) == 3 or config.block_diagonal:  # stacked experts: the rank may stand in any place
        return
    if down[0] != up[1]:
        reason = f"{quoted(stem, 120)}: lora_A has rank {quoted(down[0])} but lora_B {quoted(up[1])}"
        raise Invalid(reason, "shape")
    if not _is_stated(down[0], stem, config):
        stated = f"r={quoted(config.r)}" + (" and rank_pattern" if len(config.ranks) > 1 else "")
        reason = f"{quoted(stem, 120)} has rank {quoted(down[0])} but adapter_config.json says {stated}"
        raise Invalid(f"{reason}: config and weights are of different adapters", "shape")


def _is_stated(rank: int, stem: str, config: PeftConfig) -> bool:
    if config.stacked or "experts" in stem:
        return any(rank > 0 and rank % stated == 0 for stated in config.ranks)
    return rank in config.ranks
