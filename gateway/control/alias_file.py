"""Reads `aliases.yaml` in the adapter directory: public names for one model or for a weighted set of models.

chat: chat-v3                      # one
sql: {sql-v1: 90, sql-v2: 10}      # a canary: weights are relative to each other
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.control.verdicts import quoted
from gateway.core.aliases import Alias, Arm

NAME = "aliases.yaml"
MAX_ALIASES, MAX_ARMS = 10_000, 20
NO_ALIASES: Mapping[str, Alias] = MappingProxyType({})


def parse_aliases(document: Any) -> Mapping[str, Alias]:
    """Raises ValueError that names the entry and what is allowed. An empty file is no aliases."""
    if document is None:
        return NO_ALIASES
    if not isinstance(document, dict) or len(document) > MAX_ALIASES:
        raise ValueError(
            f"must be a mapping of at most {MAX_ALIASES} names, such as `sql: sql-v2` or `sql: {{sql-v1: 90, sql-v2: 10}}`"
        )
    aliases = {_name(name, "an alias"): _alias(name, value) for name, value in document.items()}
    for alias in aliases.values():
        for arm in alias.arms:
            if arm.model in aliases:
                raise ValueError(f"{quoted(alias.name)} leads to {quoted(arm.model)}, which is an alias too: name its adapter")
    return MappingProxyType(aliases)


def _alias(name: str, value: Any) -> Alias:
    if isinstance(value, str):
        return Alias(name, (Arm(_name(value, "a model"), 1.0),))
    if not isinstance(value, dict) or not 0 < len(value) <= MAX_ARMS:
        raise ValueError(f"{quoted(name)}: must be the name of a model, or a mapping of up to {MAX_ARMS} models to weights")
    arms = tuple(Arm(_name(model, "a model"), _weight(name, model, weight)) for model, weight in value.items())
    served = tuple(arm for arm in arms if arm.weight > 0)
    if not served:
        raise ValueError(f"{quoted(name)}: at least one weight must be above 0")
    return Alias(name, served)


def _name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 500 or not name.isprintable():
        raise ValueError(f"{quoted(name)}: the name of {what} must be printable text of 1 to 500 letters")
    return name


def _weight(name: str, model: str, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1_000_000:
        raise ValueError(
            f"{quoted(name)}: the weight of {quoted(model)} must be a number from 0 to 1000000, not {quoted(weight)}"
        )
    return float(weight)
