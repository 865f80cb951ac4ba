"""Validates a directory of adapters offline, with the same eyes as the gateway: the same walk, rules and digest.

Nothing is written and no replica is asked, so what only a replica can refuse (unknown modules, a wrong hidden size) is
not found.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.control.files import CONFIG, CONTENT, DISK, FileLayer, opened
from gateway.control.peft_config import MAX_CONFIG_BYTES, parse_config
from gateway.control.validation import Rules, inspect
from gateway.control.verdicts import Incomplete, Refused
from gateway.control.walk import Found, Walk
from gateway.core.bases import normalised


class Checked(NamedTuple):
    """One adapter, as a row of `lora-gateway check --json`; `reason` is empty when it is valid."""

    name: str
    path: str
    base_model: str | None = None
    rank: int | None = None
    size_bytes: int | None = None
    revision: str | None = None
    valid: bool = False
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """`base_model` is what the replicas serve; None: not compared."""

    max_lora_rank: int | None = None
    base_model: str | None = None
    allow_pickle: bool = False
    depth: int = 2

    def adapters(self, directory: Path, seen: Callable[[int], None], layer: FileLayer = DISK) -> Iterator[Checked]:
        """Each adapter in the order of names; `seen` gets their number first. OSError when it cannot be listed.

        A directory that is itself an adapter is the only one.
        """
        names = {entry.name for entry in layer.listing(str(directory))}
        if CONFIG in names:
            files = tuple(name for name in CONTENT if name in names)
            seen(1)
            yield self.adapter(Found(directory.name, str(directory), "", files), directory, layer)
            return
        tree = Walk(str(directory), self.depth, layer).tree()
        rows = sorted([*tree.found, *tree.failed])
        seen(len(rows))
        for name in rows:
            if name in tree.found:
                yield self.adapter(tree.found[name], directory, layer)
            else:
                reason = f"the folder cannot be read: {tree.failed[name].strerror}"
                yield Checked(name, str(directory / name), reason=reason)

    def adapter(self, found: Found, root: Path, layer: FileLayer = DISK) -> Checked:
        """The verdict on one; its links may lead anywhere inside `root`."""
        row = Checked(found.name, found.folder)
        rules = Rules(self.allow_pickle, self.max_lora_rank)
        try:
            if found.problem is not None:
                raise found.problem
            facts = inspect(Path(found.folder), rules, root=root, layer=layer)
        except Refused as refused:
            state = "incomplete: " if isinstance(refused, Incomplete) else ""
            return _with_config(row, root, layer)._replace(reason=state + refused.reason)
        except OSError as error:
            return row._replace(reason=f"its files cannot be read: {error.strerror}")
        if found.name == self.base_model:
            return row._replace(reason=f"it is named like the base model '{found.name}', which wins: rename the folder")
        return row._replace(
            base_model=facts.base_model,
            rank=facts.rank,
            size_bytes=facts.size_bytes,
            revision=facts.digest,
            valid=True,
            warnings=(*facts.warnings, *self._mismatch(facts.base_model)),
        )

    def _mismatch(self, base_model: str | None) -> Iterator[str]:
        if self.base_model and base_model and normalised(base_model) != normalised(self.base_model):
            yield f"it was made for the base model '{base_model}', not for '{self.base_model}'"


def _with_config(row: Checked, root: Path, layer: FileLayer) -> Checked:
    """What the config of an adapter that is refused says all the same, if it can be read."""
    try:
        with opened(f"{row.path}/{CONFIG}", os.path.realpath(root), layer) as (descriptor, _):
            config = parse_config(os.read(descriptor, MAX_CONFIG_BYTES + 1))
    except (Refused, OSError):
        return row
    return row._replace(base_model=config.base_model, rank=config.rank)
