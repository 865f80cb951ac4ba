"""Which base model an adapter was made for, compared the way operators write those names.

`base_model_name_or_path` is whatever the training script was given: a hub id, a local path, a hub-cache snapshot, the
4-bit twin of the real base, or null. Compared is the last part of the name without the marks of a quantised twin.
vLLM itself never checks it: a wrong adapter can load and answer nonsense.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from gateway.core.adapters import Adapter
from gateway.core.replica import Replica

_HUB_CACHE = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/[^/]+/?$")
_QUANTISED = re.compile(
    r"([-_.](unsloth|bnb|[48]bit|int[48]|fp8|awq|gptq|gguf|nf4|dynamic|w4a16|w8a8|quantized))+$", re.IGNORECASE
)


@lru_cache(4096)
def normalised(name: str) -> str:
    """`/models/Org/Base-A-bnb-4bit/` -> `base-a`."""
    hub = _HUB_CACHE.search(name)
    last = hub["name"] if hub else name.rstrip("/").rsplit("/", 1)[-1]
    return _QUANTISED.sub("", last).lower()


class Fit(StrEnum):
    MATCH = "match"
    DIFFERS = "differs"  # the only base of the fleet has another name: tried, with a warning
    NONE = "none"  # several bases (or strict): the adapter belongs to none of them


@dataclass(frozen=True, slots=True)
class Bases:
    """The base models of a fleet: one group of aliases for each distinct base."""

    groups: tuple[tuple[str, ...], ...]  # names as served
    keys: tuple[frozenset[str], ...]  # the same, normalised, with the paths they were loaded from
    names: tuple[str, ...] = ()  # every served base name once, in the order of the replicas
    strict: bool = False

    @classmethod
    def of(cls, replicas: Iterable[Replica], *, strict: bool = False) -> "Bases":
        groups: dict[tuple[str, ...], set[str]] = {}
        for replica in replicas:
            if replica.base_models:
                keys = groups.setdefault(replica.base_models, set())
                keys.update(normalised(name) for name in (*replica.base_models, *replica.seen.base_roots))
        names = tuple(dict.fromkeys(name for group in groups for name in group))
        return cls(tuple(groups), tuple(frozenset(keys) for keys in groups.values()), names, strict)

    def fit(self, adapter: Adapter) -> Fit:
        if not self.groups or not adapter.base_model:
            return Fit.MATCH
        key = normalised(adapter.base_model)
        if any(key in keys for keys in self.keys):
            return Fit.MATCH
        return Fit.NONE if self.strict or len(self.groups) > 1 else Fit.DIFFERS

    def accepts(self, adapter: Adapter, group: tuple[str, ...]) -> bool:
        """Whether replicas that serve `group` should hold the adapter."""
        fit = self.fit(adapter)
        if fit is not Fit.MATCH or not adapter.base_model or group not in self.groups:
            return fit is not Fit.NONE
        return normalised(adapter.base_model) in self.keys[self.groups.index(group)]

    def parent(self, adapter: Adapter) -> str | None:
        """The served base name that the adapter belongs to."""
        for group in self.groups:
            if self.accepts(adapter, group):
                return group[0]
        return None

    def mismatch(self, adapter: Adapter) -> str:
        """What to tell people when the names differ: both of them."""
        served = " or ".join(f"'{name}'" for name in self.names)
        return f"it was made for the base model '{adapter.base_model}', the replicas serve {served}"
