"""The cells of the matrix: how one revision stands on each replica, in full for scripts, in letters for the console.

In full, 1,000 adapters on 50 replicas are several megabytes; a letter for each cell makes it some hundred kilobytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.adapters import Revision
from gateway.core.replica import Replica

Cells = Callable[[Revision | None, Sequence[Replica]], dict[str, Any]]
"""What a row of the status says of a revision on the replicas; None is a folder that is no adapter now."""

LETTERS = {"loaded": "h", "loading": "l", "failed": "f", "absent": "."}


def in_full(revision: Revision | None, replicas: Sequence[Replica]) -> dict[str, Any]:
    """`replicas`: by id, the state, the reason, and what else is known."""
    if revision is None:
        return {"replicas": {}}
    return {"replicas": {replica.id: _cell(revision, replica) for replica in replicas}}


def in_letters(revision: Revision | None, replicas: Sequence[Replica]) -> dict[str, Any]:
    """`cells`: one letter for each replica, in their order; `failures`: by reason, the numbers of the replicas."""
    if revision is None:
        return {"cells": "", "failures": {}}
    states = [_state(revision, replica) for replica in replicas]
    failures: dict[str, list[int]] = {}
    for number, (replica, state) in enumerate(zip(replicas, states, strict=True)):
        if state == "failed":
            failures.setdefault(replica.failures[revision].reason, []).append(number)
    return {"cells": "".join(LETTERS[state] for state in states), "failures": failures}


def _state(revision: Revision, replica: Replica) -> str:
    if revision in replica.held:
        return "loaded"
    if revision in replica.loading:
        return "loading"
    return "failed" if revision in replica.failures else "absent"


def _cell(revision: Revision, replica: Replica) -> dict[str, Any]:
    state, failure = _state(revision, replica), replica.failures.get(revision)
    cell: dict[str, Any] = {"state": state, "reason": ""}
    if state == "loaded":
        cell["served_name"] = replica.held[revision]
    elif failure is not None:
        cell["reason"] = failure.reason
        cell |= {"kind": failure.kind.value, "attempts": failure.attempts}
    return cell
