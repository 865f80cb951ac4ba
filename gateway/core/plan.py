"""What turns what a replica holds into what it should hold, and under which names. Pure functions over frozen values.

A served name is used at most once per replica process. vLLM keys its prefix cache by (name, path), and a name that is
loaded again while a request with its old meaning still runs kills the engine; so new bytes always get a new name, and a
name comes back only while the replica runs nothing at all.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gateway.core.adapters import Adapter, Revision
from gateway.core.replica import Replica


@dataclass(frozen=True, slots=True)
class Load:
    adapter: Adapter
    served_name: str


@dataclass(frozen=True, slots=True)
class Unload:
    revision: Revision
    served_name: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`waiting` are the revisions whose names come free only when the replica runs nothing."""

    loads: tuple[Load, ...] = ()
    unloads: tuple[Unload, ...] = ()
    waiting: tuple[Revision, ...] = ()


def served_name(
    adapter: Adapter, replica: Replica, used: Collection[str], *, idle: bool = False, witnessed: bool = True
) -> str | None:
    """The name to load `adapter` under; None when there is none until the replica runs nothing.

    `used` are the names this gateway has seen on the replica's present process, `idle` says that it runs no request,
    `witnessed` that this gateway has watched it since it started: else the plain name may have meant something else.
    """
    present = {*replica.seen.names, *replica.seen.static, *replica.base_models}
    plain, pinned = adapter.name, str(adapter.revision)
    other_held = any(revision.name == adapter.name for revision in replica.seen.names.values())
    unused = plain not in used and (witnessed or idle)
    if adapter.plain_name_tells and not other_held and plain not in present and unused:
        return plain
    if pinned not in present and (pinned not in used or idle):
        return pinned
    return None


def due(adapter: Adapter, replica: Replica, now: float, urgent: Collection[Revision], patience: float = 5.0) -> bool:
    """Whether a load may be tried now: no verdict stands against it and its back-off is over.

    A request that waits shortens the back-off to `patience` seconds; it never overrules a verdict.
    """
    failure = replica.failures.get(adapter.revision)
    if failure is None or now >= failure.retry_at:
        return True
    return adapter.revision in urgent and failure.retry_at != float("inf") and now >= failure.at + patience


def plan(
    wanted: Iterable[Adapter],
    replica: Replica,
    *,
    used: Collection[str] = (),
    idle: bool = False,
    witnessed: bool = True,
    retired: Collection[Revision] = (),
    leased: Mapping[str, int] | None = None,
    now: float = 0.0,
    urgent: Collection[Revision] = (),
    most: int | None = None,
) -> Plan:
    """At most `most` loads in the order of `wanted`, then unloads in name order. `leased`: our requests by served name.

    `retired` are the revisions that nobody should hold any more; one is unloaded once no request of ours uses it.
    """
    leased = leased or {}
    loads: list[Load] = []
    waiting: list[Revision] = []
    for adapter in wanted:
        if most is not None and len(loads) >= most:
            break
        revision = adapter.revision
        if revision in replica.held or revision in replica.loading or not due(adapter, replica, now, urgent):
            continue
        name = served_name(adapter, replica, used, idle=idle, witnessed=witnessed)
        if name is None:
            waiting.append(revision)
        else:
            loads.append(Load(adapter, name))
    unloads = tuple(
        Unload(revision, name)
        for name, revision in sorted(replica.seen.names.items())
        if revision in retired and not leased.get(name)
    )
    return Plan(tuple(loads), unloads, tuple(waiting))
