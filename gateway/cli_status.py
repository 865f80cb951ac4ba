"""`lora-gateway status`: what a running gateway has where, as two tables.

Everything shown comes from GET /admin/status, whose texts come from files and replicas: they are escaped, so that no
name can move the cursor.
"""

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

import click
import httpx
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.logs import escaped
from gateway.settings_kinds import Secret

INTERVAL = 2.0  # seconds between two looks with --watch
TIMEOUT = 10.0
_COLOURS = {
    "ready": "green",
    "partial": "yellow",
    "pending": "yellow",
    "starting": "yellow",
    "draining": "yellow",
    "incomplete": "yellow",
    "removing": "yellow",
}


class Place(msgspec.Struct):
    state: str = ""
    reason: str | None = None


class AdapterRow(msgspec.Struct):
    name: str
    revision: str | None = None
    base_model: str | None = None
    rank: int | None = None
    state: str = ""
    reason: str | None = None
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


class Document(msgspec.Struct):
    gateway: GatewayRow
    adapters: list[AdapterRow]
    replicas: list[ReplicaRow]


T = TypeVar("T")


def status(url: str, key: Secret | None, *, as_json: bool, watch: bool) -> int:
    """Show the status once, or until Ctrl-C; raises ClickException with one line where there is none."""
    headers = {"authorization": f"Bearer {key.reveal()}"} if key else {}
    console = wide_console()
    with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False) as client:
        if as_json:
            body = _fetch(client, url, bool(key))
            _decoded(body, Any, url)
            click.echo(msgspec.json.format(body, indent=2))
        elif watch:
            _watch(client, url, bool(key), console)
        else:
            console.print(tables(_decoded(_fetch(client, url, bool(key)), Document, url)))
    return 0


def _watch(client: httpx.Client, url: str, has_key: bool, console: Console) -> None:
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            try:
                live.update(tables(_decoded(_fetch(client, url, has_key), Document, url)), refresh=True)
            except click.ClickException as error:  # a gateway that restarts is no reason to stop watching
                live.update(Text(error.message, style="red"), refresh=True)
            time.sleep(INTERVAL)


def _fetch(client: httpx.Client, url: str, has_key: bool) -> bytes:
    try:
        answer = client.get("/admin/status")
    except httpx.ConnectError:
        raise click.ClickException(
            f"no gateway answers at {url}: start one (lora-gateway serve), or name another with --url"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"{url} gave no answer: {type(error).__name__}") from None
    if answer.status_code in (401, 403):
        remedy = "refused the admin key" if has_key else "wants its admin key: give --admin-api-key KEY or @FILE"
        raise click.ClickException(f"the gateway at {url} {remedy}")
    if answer.status_code != 200:
        raise click.ClickException(f"{url} is no LoRA gateway: /admin/status answered {answer.status_code}")
    return answer.content


def _decoded(body: bytes, shape: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise click.ClickException(f"{url} is no LoRA gateway: /admin/status answered something else") from None


def tables(document: Document) -> Group:
    """The whole status for a terminal."""
    gateway = document.gateway
    state = Text("ready", "green") if gateway.ready else Text("not ready", "red")
    head = Text.assemble("gateway ", state, f"  version {escaped(gateway.version)}, snapshots {escaped(gateway.snapshots)}")
    if gateway.reason:
        head.append(f"  {escaped(gateway.reason)}")
    parts: list[RenderableType] = [head, "", _adapters(document.adapters), "", _replicas(document.replicas)]
    if reasons := list(_reasons(document)):
        parts += ["", *reasons]
    return Group(*parts)


def _adapters(rows: Iterable[AdapterRow]) -> Table:
    table = plain_table("adapter", "revision", "base model", "rank", "state", "loaded on", "in flight")
    for row in rows:
        loaded = sum(place.state == "loaded" for place in row.replicas.values())
        table.add_row(
            _text(row.name),
            _text(row.revision),
            _text(row.base_model),
            _text(row.rank),
            _state(row.state),
            f"{loaded} of {len(row.replicas)}",
            str(row.inflight),
        )
    return table


def _replicas(rows: Iterable[ReplicaRow]) -> Table:
    table = plain_table("replica", "phase", "lora", "base models", "adapters", "in flight")
    for row in rows:
        held = f"{len(row.held)}" + (f" + {len(row.static)} static" if row.static else "")
        table.add_row(
            _text(row.id),
            _state(row.phase),
            _text(row.lora),
            _text(", ".join(row.base_models)),
            held,
            str(row.inflight),
        )
    return table


def _reasons(document: Document) -> Iterable[Text]:
    """A line for whatever is not as it should be; they are long, so they stand below the tables."""
    for adapter in document.adapters:
        places = (f"{id}: {place.reason}" for id, place in adapter.replicas.items() if place.reason)
        for reason in dict.fromkeys(filter(None, (adapter.reason, *places, *adapter.warnings))):
            yield Text.assemble((escaped(adapter.name), "bold"), f": {escaped(reason)}")
    for replica in document.replicas:
        if replica.reason:
            yield Text.assemble((escaped(replica.id), "bold"), f": {escaped(replica.reason)}")


def wide_console() -> Console:
    """Standard output; not cut to 80 columns when it goes into a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("revision", "replica", "state", "phase"))
    return table


def _text(value: object) -> Text:
    return Text("" if value is None else escaped(str(value)))


def _state(word: str) -> Text:
    return Text(escaped(word), _COLOURS.get(word, "red"))
