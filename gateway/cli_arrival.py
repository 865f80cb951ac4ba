"""Waits until a running gateway has an adapter on every replica: `publish --wait`, `adapters load --wait`.

What cannot come any more (refused by the replicas, quarantined, pinned on something else) ends the wait at once; what may
heal, or what an earlier state still tells, does not.
"""

import time
from contextlib import nullcontext

import click
from rich.console import Console

from gateway.cli_remote import Absent, Remote, quoted
from gateway.cli_status import AdapterRow
from gateway.logs import escaped

LOOK = 0.25  # seconds between two looks
_HOPELESS = ("rejected", "quarantined")


def await_arrival(remote: Remote, name: str, revision: str | None, seconds: float) -> int:
    """0 as soon as every placed replica holds the revision (None: the current one); ClickException when it cannot be."""
    began, console = time.monotonic(), Console(stderr=True)
    last = "the gateway does not know it yet"
    with console.status("waiting for the gateway") if console.is_terminal else nullcontext() as shown:
        while True:
            row = _look(remote, name)
            if row is not None:
                last = _judged(row, revision)
                if not last:
                    break
            waited = time.monotonic() - began
            if waited >= seconds:
                raise click.ClickException(f"{escaped(name)} is not on every replica after {seconds:g} s: {escaped(last)}")
            if shown is not None:
                shown.update(f"{escaped(name)}: {escaped(last)} ({waited:.0f} s)")
            time.sleep(LOOK)
    held = sum(place.state == "loaded" for place in row.replicas.values())
    of = "its only replica" if held == 1 else f"{held} replicas"
    click.echo(
        f"{escaped(name)} is ready on {of} at {escaped(str(row.revision))} after {time.monotonic() - began:.1f} s", err=True
    )
    return 0


def _look(remote: Remote, name: str) -> AdapterRow | None:
    try:
        return remote.told(f"/admin/adapters/{quoted(name)}", AdapterRow)
    except Absent:
        return None


def _judged(row: AdapterRow, revision: str | None) -> str:
    """What is missing, empty when nothing is. Raises ClickException for what will not come by itself."""
    told = f"{row.state}, {row.reason}" if row.reason else row.state
    if revision is not None and row.revision != revision:
        if row.pinned:
            pinned = f"the name is pinned on {row.revision}: `lora-gateway adapters unpin` lets it follow the directory"
            raise click.ClickException(f"{escaped(row.name)} will not come: {escaped(pinned)}")
        return f"the gateway still has {row.revision or 'no revision'}: {told}"
    if row.state in _HOPELESS:
        raise click.ClickException(f"{escaped(row.name)} will not come: {escaped(told)}")
    loaded = sum(place.state == "loaded" for place in row.replicas.values())
    return "" if row.state == "ready" and loaded else f"{told}, on {loaded} of {len(row.replicas)} replicas"
