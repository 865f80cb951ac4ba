"""Which adapters a replica should hold, in the order they should be loaded.

`everywhere`: every replica holds every adapter of its base model. `preload` limits how many come before anybody asked;
what was asked for is always wanted. With a limit the most recently used are loaded last, because vLLM's own cache keeps
what came last.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.adapters import Adapter, Catalog, Revision
from gateway.core.bases import Bases
from gateway.core.picker import Station
from gateway.core.replica import Replica


@dataclass(frozen=True, slots=True)
class Everywhere:
    """`preload` None means all."""

    preload: int | None = None

    def wanted(
        self,
        fitting: Sequence[Adapter],
        replica: Replica,
        *,
        asked: Collection[Revision] = (),
        last_used: Mapping[str, float] | None = None,
    ) -> list[Adapter]:
        """From those that fit. `asked`: a request waits for these: they come first. `last_used`: by name, any clock."""
        used = last_used or {}
        first = [adapter for adapter in fitting if adapter.revision in asked]
        rest = [adapter for adapter in fitting if adapter.revision not in asked]
        if self.preload is not None:
            rest.sort(key=lambda adapter: used.get(adapter.name, float("-inf")), reverse=True)
            held = [adapter for adapter in rest if adapter.revision in replica.held]
            missing = [adapter for adapter in rest if adapter.revision not in replica.held]
            room = max(0, self.preload - len(first) - len(held))
            rest = [*held, *reversed(missing[:room])]
        return [*first, *rest]


def fitting(catalog: Catalog, group: tuple[str, ...], bases: Bases) -> list[Adapter]:
    """The adapters for replicas that serve the base model `group`, by name."""
    names = set(bases.names)
    return [a for name, a in sorted(catalog.adapters.items()) if name not in names and bases.accepts(a, group)]


def placed(adapter: Adapter, replicas: Iterable[Replica], bases: Bases) -> list[Replica]:
    """The ready replicas that should hold the adapter; one that cannot load LoRA is not placed."""
    accepted: dict[tuple[str, ...], bool] = {}  # by base model: most of a fleet has the same
    found = []
    for replica in replicas:
        if replica.can_load:
            group = replica.base_models
            if group not in accepted:
                accepted[group] = bases.accepts(adapter, group)
            if accepted[group]:
                found.append(replica)
    return found


def first_loaders(adapter: Adapter, stations: Iterable[Station], bases: Bases, count: int = 2) -> set[str]:
    """Who loads an adapter that a request waits for: the `count` least busy placed replicas without a failure of it.

    One that is loading it already counts first; one where the load has failed gets its turn when all have failed.
    """
    able = [s for s in stations if s.replica.can_load and bases.accepts(adapter, s.replica.base_models)]
    revision = adapter.revision
    able.sort(key=lambda s: (revision in s.replica.failures, revision not in s.replica.loading, s.inflight, s.replica.id))
    return {station.replica.id for station in able[:count]}
