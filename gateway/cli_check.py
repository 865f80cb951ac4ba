"""`lora-gateway check`: one line for each adapter, with what to do about the ones that replicas would not load."""

import json
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from gateway.check import Check, Checked
from gateway.cli_tables import named, plain_table, size, wide_console
from gateway.logs import escaped


def check(directory: Path, checker: Check, *, as_json: bool) -> int:
    """0 when every adapter is valid, else 1; a bar on stderr meanwhile where that is a terminal."""
    rows = list(_checked(directory, checker))
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        _print(directory, rows)
    return 0 if all(row.valid for row in rows) else 1


def _checked(directory: Path, checker: Check) -> Iterable[Checked]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking adapters", total=None)
        try:
            for row in checker.adapters(directory, lambda count: progress.update(task, total=count)):
                progress.advance(task)
                yield row
        except OSError as error:
            raise click.ClickException(f"{str(directory)!r} cannot be read: {error.strerror}") from None


def _print(directory: Path, rows: list[Checked]) -> None:
    console = wide_console()
    if not rows:
        console.print(Text(f"no adapter in {escaped(str(directory))}: no folder with adapter_config.json"))
        return
    table = plain_table("adapter", "verdict", "base model", "rank", "size", "revision")
    for row in rows:
        verdict = Text("valid", "green") if row.valid else Text("invalid", "red")
        facts = (row.base_model, row.rank, size(row.size_bytes), row.revision)
        cells = [Text("" if fact is None else escaped(str(fact))) for fact in facts]
        table.add_row(Text(escaped(row.name)), verdict, *cells)
    console.print(table)
    wrong = [row for row in rows if not row.valid]
    for row in rows:
        for style, reason in (("red", row.reason), *(("yellow", warning) for warning in row.warnings)):
            if reason:
                console.print(named(row.name, reason, f"bold {style}"))
    console.print(Text(f"{len(rows) - len(wrong)} of {len(rows)} adapters are valid", "red" if wrong else "green"))
