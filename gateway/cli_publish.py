"""`lora-gateway publish`: a bar over the bytes, then what was published and how to watch it arrive."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gateway.check import Check
from gateway.cli_tables import size, wide_console
from gateway.logs import escaped
from gateway.publishing import Published, Publisher, Unpublishable
from gateway.settings import TABLE, Settings
from gateway.settings_sources import SettingsError, given, parsed

SETTINGS = ("adapter_dir", "adapter_depth", "max_lora_rank", "allow_pickle", "snapshot_dir")
"""Those of `serve` that decide what may be published where."""


def publish(
    source: Path, name: str, flags: Mapping[str, object], file: str | None, base_model: str | None, *, as_json: bool
) -> Published:
    """What lies in the directory now; raises ClickException (1) or SettingsError (2) with one line."""
    publisher = _publisher(flags, file, base_model)
    console = Console(stderr=True)
    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("copying", total=None, visible=False)
            done = publisher.publish(
                source, name, lambda copied, total: bar.update(task, completed=copied, total=total, visible=True)
            )
    except Unpublishable as error:
        raise click.ClickException(f"not published: {escaped(str(error))}") from None
    except OSError as error:
        raise click.ClickException(f"not published: {escaped(str(error.strerror))} ({escaped(_shown(error))})") from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(done), indent=2))
    else:
        _tell(done)
    return done


def _publisher(flags: Mapping[str, object], file: str | None, base_model: str | None) -> Publisher:
    values = parsed({field: value for field, value in given(flags, os.environ, file).items() if field in SETTINGS})
    if "adapter_dir" not in values:
        row = next(row for row in TABLE if row.field == "adapter_dir")
        raise SettingsError(f"{row.name} is required: give {row.flag} {row.kind.metavar} or set {row.env}")
    settings = Settings(**values)
    checker = Check(settings.max_lora_rank, base_model, settings.allow_pickle, settings.adapter_depth)
    return Publisher(settings.adapter_dir, checker, settings.snapshot_dir)


def _tell(done: Published) -> None:
    console = wide_console()
    name, word = escaped(done.name), shlex.quote(done.name)

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)

    if not done.changed:
        say(f"{name} is published already: revision {done.revision} lies in {escaped(done.path)}")
    else:
        verb = "published anew" if done.replaced else "published"
        say(f"{name} is {verb}: revision {done.revision}, {size(done.size_bytes)}, in {escaped(done.path)}", "green")
    for warning in done.warnings:
        say(f"warning: {escaped(warning)}", "yellow")
    if done.left_out:
        more = f" and {len(done.left_out) - 5} more" if len(done.left_out) > 5 else ""
        shown = escaped(", ".join(done.left_out[:5]))
        say(f"left out, because replicas read only the config and the weights: {shown}{more}")
    if done.left_behind:
        say(f"the old folder could not be removed: {escaped(done.left_behind)} may go", "yellow")
    say("A running gateway takes it within seconds. Watch it arrive, and see who would answer:")
    say(f"  lora-gateway adapters {escaped(word)}\n  lora-gateway explain {escaped(word)}")


def _shown(error: OSError) -> str:
    return str(error.filename or "the adapter directory")
