"""`lora-gateway status`: what a running gateway has where, as two tables, once or again and again."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.cli_remote import Remote
from gateway.cli_tables import named, plain_table, state, text, wide_console
from gateway.logs import escaped

INTERVAL = 2.0  # seconds between two looks with --watch
PATH = "/admin/status"
Row = TypeVar("Row")


class Place(msgspec.Struct):
    state: str = ""
    reason: str | None = None
    served_name: str | None = None


class AdapterRow(msgspec.Struct):
    name: str
    revision: str | None = None
    base_model: str | None = None
    rank: int | None = None
    state: str = ""
    reason: str | None = None
    pinned: bool = False
    warnings: list[str] = []
    inflight: int = 0
    replicas: dict[str, Place] = {}


class ReplicaRow(msgspec.Struct):
    id: str
    phase: str = ""
    reason: str | None = None
    lora: str = ""
    base_models: list[str] = []
    held: list[str] = []
    static: list[str] = []
    inflight: int = 0


class GatewayRow(msgspec.Struct):
    version: str = ""
    ready: bool = False
    reason: str | None = None
    watch: str = ""
    snapshots: str = ""
    snapshots_reason: str | None = None
    directory: str | None = None
    aliases_reason: str | None = None
    pins_reason: str | None = None


class Document(msgspec.Struct):
    gateway: GatewayRow
    adapters: list[AdapterRow]
    replicas: list[ReplicaRow]


def status(remote: Remote, *, as_json: bool, watch: bool) -> int:
    """Show the status once, or until Ctrl-C. With --watch and --json one line of JSON for each look."""
    if watch:
        with suppress(KeyboardInterrupt):
            _watch_json(remote) if as_json else _watch(remote, wide_console())
    elif as_json:
        click.echo(msgspec.json.format(remote.read(PATH), indent=2))
    else:
        wide_console().print(tables(remote.told(PATH, Document)))
    return 0


def _watch_json(remote: Remote) -> None:
    while True:
        click.echo(msgspec.json.format(remote.read(PATH), indent=-1))
        time.sleep(INTERVAL)


def _watch(remote: Remote, console: Console) -> None:
    """Drawn anew in place on a terminal, else one after the other."""
    if not console.is_terminal:
        while True:
            console.print(_look(remote), "")
            time.sleep(INTERVAL)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_look(remote, console.height), refresh=True)
            time.sleep(INTERVAL)


def _look(remote: Remote, height: int | None = None) -> RenderableType:
    try:
        return tables(remote.told(PATH, Document), height)
    except click.ClickException as error:  # a gateway that restarts is no reason to stop watching
        return Text(error.message, style="red")


def tables(document: Document, height: int | None = None) -> Group:
    """The whole status; in `height` lines what is well is left out first, and how much is told."""
    adapters: Sequence[AdapterRow] = document.adapters
    replicas: Sequence[ReplicaRow] = document.replicas
    reasons = list(reasons_of(document))
    if height is not None:
        room = max(4, height - 8)  # without heads, blank lines and counts
        reasons = reasons[: room // 4]
        replicas = _worst(replicas, [row.phase != "ready" for row in replicas], max(2, room // 3))
        most = max(2, room - len(replicas) - len(reasons))
        adapters = _worst(adapters, [row.state != "ready" for row in adapters], most)
    parts: list[RenderableType] = [_head(document.gateway), "", adapter_table(adapters)]
    parts += [*_more(len(document.adapters) - len(adapters)), "", replica_table(replicas)]
    parts += _more(len(document.replicas) - len(replicas))
    return Group(*parts, *([""] if reasons else []), *reasons)


def _worst(rows: Sequence[Row], troubled: Sequence[bool], most: int) -> Sequence[Row]:
    """All in their order, or where they are too many those in trouble first."""
    if len(rows) <= most:
        return rows
    return [row for _, row in sorted(zip(troubled, rows, strict=True), key=lambda pair: not pair[0])][:most]


def _more(count: int) -> list[RenderableType]:
    return [Text(f"and {count} more", "dim")] if count > 0 else []


def _head(gateway: GatewayRow) -> Text:
    word = Text("ready", "green") if gateway.ready else Text("not ready", "red")
    head = Text.assemble("gateway ", word, f"  version {escaped(gateway.version)}, snapshots {escaped(gateway.snapshots)}")
    if gateway.reason:
        head.append(f"  {escaped(gateway.reason)}")
    return head


def adapter_table(rows: Iterable[AdapterRow]) -> Table:
    table = plain_table("adapter", "revision", "base model", "rank", "state", "loaded on", "in flight")
    for row in rows:
        loaded = sum(place.state == "loaded" for place in row.replicas.values())
        table.add_row(
            text(row.name),
            text(f"{row.revision} pinned" if row.pinned else row.revision),
            text(row.base_model),
            text(row.rank),
            state(row.state),
            f"{loaded} of {len(row.replicas)}",
            str(row.inflight),
        )
    return table


def replica_table(rows: Iterable[ReplicaRow]) -> Table:
    table = plain_table("replica", "phase", "lora", "base models", "adapters", "in flight")
    for row in rows:
        held = f"{len(row.held)}" + (f" + {len(row.static)} static" if row.static else "")
        bases = ", ".join(row.base_models)
        table.add_row(text(row.id), state(row.phase), text(row.lora), text(bases), held, str(row.inflight))
    return table


def reasons_of(document: Document) -> Iterable[Text]:
    """A line for whatever is not as it should be; they are long, so they stand below the tables."""
    gateway = document.gateway
    for part, trouble in (
        ("adapter directory", gateway.directory),
        ("snapshots", gateway.snapshots_reason),
        ("aliases.yaml", gateway.aliases_reason),
        ("pins", gateway.pins_reason),
    ):
        if trouble and trouble != gateway.reason:
            yield named(part, trouble)
    for adapter in document.adapters:
        yield from adapter_reasons(adapter)
    yield from replica_reasons(document.replicas)


def adapter_reasons(row: AdapterRow) -> Iterable[Text]:
    places = (f"{id}: {place.reason}" for id, place in row.replicas.items() if place.reason)
    for reason in dict.fromkeys(filter(None, (row.reason, *places, *row.warnings))):
        yield named(row.name, reason)


def replica_reasons(rows: Iterable[ReplicaRow]) -> Iterable[Text]:
    for row in rows:
        if row.reason:
            yield named(row.id, row.reason)
