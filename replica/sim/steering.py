"""`/sim/faults` and `/sim/log`: how a script steers one simulated replica and reads what it was asked."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Protocol

from replica.sim.errors import json_reply
from replica.sim.http import Reply, Request
from replica.sim.journal import Journal
from replica.sim.options import Faults


class Steered(Protocol):
    faults: Faults
    journal: Journal

    def inject(self, **changes: Any) -> None: ...
    def heal(self) -> None: ...
    def forget(self) -> None: ...
    def end_by(self, how: str) -> None: ...


def steer(sim: Steered, request: Request) -> Reply:
    """POST changes faults (and `die`, `forget` act at once), DELETE heals all, GET shows them; the log likewise."""
    actions: dict[tuple[str, str], Callable[[], Reply]] = {
        ("GET", "/sim/log"): lambda: json_reply(sim.journal.document()),
        ("DELETE", "/sim/log"): lambda: _cleared(sim),
        ("GET", "/sim/faults"): lambda: _shown(sim),
        ("POST", "/sim/faults"): lambda: _changed(sim, request.body),
        ("DELETE", "/sim/faults"): lambda: _healed(sim),
    }
    action = actions.get((request.method, request.path))
    return json_reply({"detail": "Not Found"}, 404) if action is None else action()


def _shown(sim: Steered) -> Reply:
    return json_reply(dataclasses.asdict(sim.faults))


def _cleared(sim: Steered) -> Reply:
    sim.journal.clear()
    return json_reply({})


def _healed(sim: Steered) -> Reply:
    sim.heal()
    return _shown(sim)


def _changed(sim: Steered, body: bytes) -> Reply:
    try:
        changes = json.loads(body)
        if not isinstance(changes, dict):
            raise ValueError("the body must be an object")
        death, forget = changes.pop("die", None), changes.pop("forget", False)
        if death not in (None, "kill", "engine"):
            raise ValueError(f"die: {death!r} is none of kill, engine")
        sim.inject(**changes)
    except ValueError as error:
        return json_reply({"detail": str(error)}, 400)
    if forget:
        sim.forget()
    if death is not None:
        sim.end_by(death)
    return _shown(sim)
