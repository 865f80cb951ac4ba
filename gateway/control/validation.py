"""Is this folder a LoRA that replicas can load, and if not, why: `inspect` says so before any replica is asked.

Engines check after reading, and a wrong adapter can load "successfully" and answer nonsense. One pass reads the config,
the safetensors header and a sample of every tensor, and yields the content's digest too. Nothing here unpickles.
Raises Incomplete, Invalid, or the OSError of the file system.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.control.digest import Digest
from gateway.control.files import CONFIG, DISK, PICKLES, SAFETENSORS, FileLayer, opened
from gateway.control.finite import is_finite
from gateway.control.lora_pairs import check_pairs
from gateway.control.peft_config import LFS_POINTER, LFS_REASON, MAX_CONFIG_BYTES, PeftConfig, parse_config
from gateway.control.safetensors_frame import Tensor, fetch, read_block, read_frame, sampled
from gateway.control.verdicts import Incomplete, Invalid, quoted

_SHARD = re.compile(r"adapter_model-\d+-of-\d+\.(safetensors|bin)|adapter_model\.(safetensors|bin)\.index\.json")
_PICKLE_BLOCK = 1024 * 1024  # a pickle has no header to sample by: a block of each of its megabytes


@dataclass(frozen=True, slots=True)
class Rules:
    allow_pickle: bool = False
    max_lora_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What one look at a valid adapter found."""

    digest: str
    base_model: str | None
    rank: int
    size_bytes: int
    warnings: tuple[str, ...]
    files: tuple[str, ...]  # names of the config and weight files that make up the content


def inspect(folder: Path, rules: Rules, *, root: Path | None = None, layer: FileLayer = DISK) -> Facts:
    """The facts of a valid adapter. Links may lead anywhere inside `root`, by default the folder itself."""
    inside = os.path.realpath(root or folder)
    names = {entry.name for entry in layer.listing(str(folder))}
    config, config_size = _read_config(folder, inside, layer)
    _check_rank(config, rules)
    weights = _weight_files(names, rules)
    digest = Digest(config.canonical)
    warnings = list(config.warnings)
    size = config_size
    for name in weights:
        with opened(f"{folder}/{name}", inside, layer) as (descriptor, status):
            size += status.st_size
            digest.add_size(name, status.st_size)
            if name == SAFETENSORS:
                warnings += _read_tensors(descriptor, status.st_size, config, digest)
            else:
                _read_pickle(name, descriptor, status.st_size, digest)
    if SAFETENSORS not in weights:
        warnings.append(f"{weights[0]} is in pickle format, which runs code in the replica: prefer safetensors")
    return Facts(digest.text(), config.base_model, config.rank, size, tuple(warnings), (CONFIG, *weights))


def _read_config(folder: Path, root: str, layer: FileLayer) -> tuple[PeftConfig, int]:
    with opened(f"{folder}/{CONFIG}", root, layer) as (descriptor, status):
        data = b""
        while len(data) <= MAX_CONFIG_BYTES and (more := os.read(descriptor, MAX_CONFIG_BYTES + 1 - len(data))):
            data += more
    return parse_config(data), status.st_size


def _check_rank(config: PeftConfig, rules: Rules) -> None:
    if rules.max_lora_rank is not None and config.rank > rules.max_lora_rank:
        reason = f"rank {quoted(config.rank)} is above --max-lora-rank {rules.max_lora_rank}"
        raise Invalid(f"{reason}: raise it if the replicas' own --max-lora-rank allows", "rank")


def _weight_files(names: set[str], rules: Rules) -> tuple[str, ...]:
    """The weight files whose bytes are the content. Safetensors win; a pickle beside them counts when allowed."""
    pickles = [name for name in PICKLES if name in names]
    if SAFETENSORS in names:
        return SAFETENSORS, *(pickles if rules.allow_pickle else ())
    if any(_SHARD.fullmatch(name) for name in names):
        reason = "the weights are sharded, but replicas read adapter_model.safetensors only: save them as one file"
        raise Invalid(reason, "sharded")
    if not pickles:
        raise Incomplete("adapter_config.json is there, adapter_model.safetensors is not yet", "weights_missing")
    if not rules.allow_pickle:
        reason = f"{pickles[0]} is in pickle format, which can run code: convert it to safetensors, or start with"
        raise Invalid(f"{reason} --allow-pickle", "pickle")
    return tuple(pickles)


def _read_tensors(descriptor: int, size: int, config: PeftConfig, digest: Digest) -> Iterable[str]:
    frame = read_frame(descriptor, size)
    warnings = list(check_pairs(frame.tensors, config))
    digest.add_frame(frame)
    fetch(descriptor, (block for tensor in frame.tensors for block in sampled(tensor.begin, tensor.end)))
    for tensor in frame.tensors:
        for block in _blocks(descriptor, tensor):
            digest.add(block)
    return warnings


def _blocks(descriptor: int, tensor: Tensor) -> Iterator[bytes]:
    for offset, length in sampled(tensor.begin, tensor.end):
        block = read_block(descriptor, offset, length)
        if not is_finite(tensor.dtype, block):
            reason = f"{quoted(tensor.name, 120)} holds NaN or infinite values: the training went wrong"
            raise Invalid(reason, "not_finite")
        yield block


def _read_pickle(name: str, descriptor: int, size: int, digest: Digest) -> None:
    if size == 0:
        raise Incomplete(f"{name} is empty: still being written", "weights_short")
    if os.pread(descriptor, 64, 0).startswith(LFS_POINTER):
        raise Invalid(f"{name}: {LFS_REASON}", "lfs_pointer")
    for begin in range(0, size, _PICKLE_BLOCK):
        for offset, length in sampled(begin, min(begin + _PICKLE_BLOCK, size)):
            digest.add(read_block(descriptor, offset, length))
