"""`lora-gateway adapters` and `replicas`: lists, one adapter in detail, and an operator's orders."""

from typing import Any

import click
import msgspec

from gateway.cli_remote import Remote, quoted
from gateway.cli_status import AdapterRow, ReplicaRow, adapter_reasons, adapter_table, replica_reasons, replica_table
from gateway.cli_tables import fact_table, plain_table, size, state, text, wide_console
from gateway.logs import escaped


class _Stored(msgspec.Struct):
    revision: str
    stored: bool = False
    replicas: list[str] = []


class _Detail(AdapterRow):
    path: str = ""
    snapshot: str | None = None
    size_bytes: int | None = None
    revisions: list[_Stored] = msgspec.field(default_factory=list)


class _Adapters(msgspec.Struct):
    adapters: list[AdapterRow]


class _Replicas(msgspec.Struct):
    replicas: list[ReplicaRow]


def list_adapters(remote: Remote, *, as_json: bool) -> int:
    if as_json:
        return _print_json(remote, "/admin/adapters")
    rows = remote.told("/admin/adapters", _Adapters).adapters
    console = wide_console()
    if not rows:
        console.print("the gateway knows no adapter: is its directory empty? `lora-gateway check DIR` says what is in one")
        return 0
    console.print(adapter_table(rows))
    for reason in [reason for row in rows for reason in adapter_reasons(row)]:
        console.print(reason)
    return 0


def show_adapter(remote: Remote, name: str, *, as_json: bool) -> int:
    path = f"/admin/adapters/{quoted(name)}"
    if as_json:
        return _print_json(remote, path)
    row = remote.told(path, _Detail)
    console = wide_console()
    pinned = f"{row.revision} (pinned)" if row.pinned else row.revision
    console.print(
        fact_table(
            {
                "adapter": row.name,
                "state": state(row.state),
                "reason": row.reason,
                "revision": pinned,
                "base model": row.base_model,
                "rank": row.rank,
                "size": size(row.size_bytes),
                "folder": row.path,
                "loaded from": {"link": "a snapshot (links)", "copy": "a snapshot (copies)"}.get(
                    row.snapshot or "", row.snapshot
                ),
                "in flight": row.inflight,
                "warnings": "; ".join(row.warnings),
            }
        )
    )
    table = plain_table("replica", "state", "served name", "reason")
    for replica, place in sorted(row.replicas.items()):
        table.add_row(text(replica), state(place.state), text(place.served_name), text(place.reason))
    if row.replicas:
        console.print("", table)
    if row.revisions:
        console.print("", _revisions(row))
    return 0


def _revisions(row: _Detail) -> object:
    table = plain_table("revision", "", "snapshot", "held by")
    for known in row.revisions:
        current = "current" if known.revision == row.revision else ""
        held = f"{len(known.replicas)} replicas" if len(known.replicas) > 3 else ", ".join(known.replicas)
        table.add_row(text(known.revision), current, "stored" if known.stored else "none", text(held))
    return table


def list_replicas(remote: Remote, *, as_json: bool) -> int:
    if as_json:
        return _print_json(remote, "/admin/replicas")
    rows = remote.told("/admin/replicas", _Replicas).replicas
    console = wide_console()
    console.print(replica_table(rows))
    for reason in replica_reasons(rows):
        console.print(reason)
    return 0


def order(remote: Remote, kind: str, name: str, action: str, outcome: str) -> int:
    """One order without a body; prints what it led to."""
    remote.order(f"/admin/{kind}/{quoted(name)}/{action}")
    click.echo(f"{escaped(name)} {outcome}")
    return 0


def pin(remote: Remote, name: str, revision: str | None) -> int:
    """`revision` None: the current one, or what `NAME@REVISION` in `name` says."""
    base, at, digest = name.rpartition("@")
    if revision is None and at and _is_digest(digest):
        name, revision = base, digest
    if revision is not None:
        revision = revision.removeprefix(f"{name}@")
        if not _is_digest(revision):
            raise click.UsageError(
                f"{revision!r} is no revision: give its 12 hex digits, as `lora-gateway adapters NAME` lists them"
            )
    body: dict[str, Any] | None = {"revision": revision} if revision is not None else None
    answer = remote.order(f"/admin/adapters/{quoted(name)}/pin", body)
    click.echo(f"{escaped(name)} is pinned on {escaped(str(answer.get('revision')))}; `lora-gateway adapters unpin` ends it")
    return 0


def _is_digest(text: str) -> bool:
    return len(text) == 12 and set(text) <= set("0123456789abcdef")


def _print_json(remote: Remote, path: str) -> int:
    click.echo(msgspec.json.format(remote.read(path), indent=2))
    return 0
