"""The state of each adapter, read from the registry whenever somebody scrapes, written as text by and by.

A thousand adapters on fifty replicas are fifty thousand lines: the event loop runs in between, so that no stream stands
still for a scrape. Sparse families (a state, what is missing, what fails) tell what is the case only. Who is gone has no
series any more.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence

from gateway.core.adapters import Adapter, RejectedState, Revision
from gateway.core.registry import Registry
from gateway.core.replica import Replica
from gateway.core.standing import State, is_behind, standing

SLICE = 20  # adapters at once: some milliseconds in a large fleet
_HELP = {
    "adapter_state": "1 for the state the adapter is in.",
    "adapters": "Adapters by state.",
    "adapter_info": "The revision that the adapter's name means now.",
    "adapter_loaded": "1 while the current revision is held.",
    "adapter_load_failing": "1 while the last try to load the current revision has failed.",
    "adapter_unconverged_seconds": "How long some replica still has to get it.",
    "adapters_unconverged": "Adapters that some replica still has to get.",
    "oldest_unconverged_seconds": "How long the oldest of them waits.",
}


class AdapterLines:
    """See the module. `wall` tells seconds as `Adapter.seen_at` does."""

    def __init__(self, prefix: str, registry: Registry, wall: Callable[[], float]) -> None:
        self._prefix, self._registry, self._wall = prefix, registry, wall
        self._whole: dict[Revision, float] = {}  # when a scrape last found it wherever it should be

    async def exposition(self) -> bytes:
        """In the Prometheus text format."""
        registry, page = self._registry, _Page(self._prefix)
        adapters = list(registry.catalog.adapters.values())
        states = self._states_of_others()
        behind: dict[Revision, Adapter] = {}
        for first in range(0, len(adapters), SLICE):
            replicas = list(registry.replicas())
            for adapter in adapters[first : first + SLICE]:
                states[adapter.name] = state = standing(adapter, registry).state
                if state is not State.READY and is_behind(adapter, registry):
                    behind[adapter.revision] = adapter
                page.add("adapter_info", 1.0, f'adapter="{escaped(adapter.name)}",revision="{adapter.digest}"')
                _add_cells(page, adapter, replicas)
            await asyncio.sleep(0)
        for name, state in states.items():
            page.add("adapter_state", 1.0, f'adapter="{escaped(name)}",state="{state}"')
        tally = Tally(states.values())
        for state in State:
            page.add("adapters", tally[state], f'state="{state}"')
        waits = self._waits(adapters, behind)
        for name, seconds in waits.items():
            page.add("adapter_unconverged_seconds", seconds, f'adapter="{escaped(name)}"')
        page.add("adapters_unconverged", len(behind))
        page.add("oldest_unconverged_seconds", max(waits.values(), default=0.0))
        return page.text()

    def _states_of_others(self) -> dict[str, State]:
        """By name: folders that are no adapter, and what some replica holds still though its folder is gone."""
        states = {
            revision.name: State.REMOVING
            for replica in self._registry.replicas()
            for revision in replica.held
            if revision in self._registry.unwanted
        }
        for name, rejected in self._registry.catalog.rejected.items():
            states[name] = State.INCOMPLETE if rejected.state is RejectedState.INCOMPLETE else State.INVALID
        return states

    def _waits(self, adapters: Sequence[Adapter], behind: Mapping[Revision, Adapter]) -> Mapping[str, float]:
        """Seconds since it was seen in the directory, or since it was last everywhere: a replica may have restarted."""
        now, current = self._wall(), {adapter.revision for adapter in adapters}
        self._whole = {revision: at for revision, at in self._whole.items() if revision in current}
        self._whole.update(dict.fromkeys(current - behind.keys(), now))
        return {
            revision.name: max(0.0, now - max(adapter.seen_at, self._whole.get(revision, 0.0)))
            for revision, adapter in behind.items()
        }


class _Page:
    """Lines by family: those of one family stand together."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lines: dict[str, list[str]] = {family: [] for family in _HELP}

    def add(self, family: str, value: float, labels: str = "") -> None:
        """`labels` are written as they go between the braces."""
        self._lines[family].append(f"{self._prefix}{family}{{{labels}}} {float(value)!r}\n")

    def text(self) -> bytes:
        parts = []
        for family, lines in self._lines.items():
            name = self._prefix + family
            parts += [f"# HELP {name} {_HELP[family]}\n# TYPE {name} gauge\n", *lines]
        return "".join(parts).encode("utf-8", "backslashreplace")


def _add_cells(page: _Page, adapter: Adapter, replicas: Sequence[Replica]) -> None:
    """How one adapter stands on each replica."""
    revision, name = adapter.revision, escaped(adapter.name)
    for replica in replicas:
        place = f'adapter="{name}",replica="{replica.id}"'
        page.add("adapter_loaded", revision in replica.held, place)
        failure = replica.failures.get(revision)
        if failure is not None:
            page.add("adapter_load_failing", 1.0, f'{place},kind="{failure.kind}"')


def escaped(value: str) -> str:
    """A label's value as the text format wants it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
