"""`lora-gateway explain NAME`: what happens to a request for NAME right now, and why, as a short text."""

from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway.cli_remote import Remote, quoted
from gateway.cli_tables import fact_table, named, plain_table, state, text, wide_console
from gateway.logs import escaped

_FATES = {"answered": ("answered now", "green"), "waits": ("answered after a wait", "yellow"), "refused": ("refused", "red")}


class Place(msgspec.Struct):
    replica: str
    phase: str = ""
    answers: bool = False
    picked: bool = False
    served_name: str | None = None
    revision: str | None = None
    inflight: int = 0
    missing: str = ""


class Arm(msgspec.Struct):
    model: str
    weight: float = 1.0
    outcome: str = ""
    why: str = ""


class Refusal(msgspec.Struct):
    status: int
    code: str
    message: str


class Told(msgspec.Struct):
    model: str
    outcome: str
    why: str = ""
    stands_for: str = ""
    revision: str | None = None
    base_model: str | None = None
    error: Refusal | None = None
    replicas: list[Place] = []
    arms: list[Arm] = []
    notes: list[str] = []


def explain(remote: Remote, name: str, session: str | None, *, as_json: bool) -> int:
    """0 when the request would be answered, now or after a wait, else 1."""
    path = f"/admin/explain?model={quoted(name)}" + (f"&session={quoted(session)}" if session else "")
    body = remote.read(path)
    try:
        told = msgspec.convert(msgspec.json.decode(body), Told)
    except msgspec.ValidationError:
        raise click.ClickException(f"{remote.url} answered something else than an explanation") from None
    if as_json:
        click.echo(msgspec.json.format(body, indent=2))
    else:
        _print(told, wide_console())
    return 1 if told.outcome == "refused" else 0


def _print(told: Told, console: Console) -> None:
    fate, colour = _FATES.get(told.outcome, (escaped(told.outcome), ""))
    asked = f"a request for {escaped(told.model)}" if told.model else "a request that names no model"
    console.print(Text.assemble(f"{asked} would be ", (fate, f"bold {colour}")))
    answer = f"{told.error.status} {told.error.code}" if told.error is not None else None
    facts: dict[str, Any] = {
        "stands for": told.stands_for,
        "revision": told.revision,
        "base model": told.base_model,
        "answer": answer,
        "why": told.why,
    }
    console.print(fact_table(facts))
    for note in told.notes:
        console.print(named("note", note, "bold yellow"))
    if told.arms:
        console.print("", _arms(told.arms))
    if told.replicas:
        console.print("", _places(told.replicas))


def _arms(arms: list[Arm]) -> Any:
    table = plain_table("leads to", "weight", "outcome", "why")
    for arm in arms:
        table.add_row(text(arm.model), f"{arm.weight:g}", state(arm.outcome), text(arm.why))
    return table


def _places(places: list[Place]) -> Any:
    table = plain_table("replica", "", "served name", "revision", "in flight", "what is missing")
    for place in places:
        mark = (
            Text("picked", "bold green")
            if place.picked
            else Text("may answer", "green")
            if place.answers
            else Text("no", "red")
        )
        table.add_row(
            text(place.replica), mark, text(place.served_name), text(place.revision), str(place.inflight), text(place.missing)
        )
    return table
