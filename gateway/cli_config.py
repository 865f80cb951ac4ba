"""`lora-gateway config`: every setting of `serve`, its value, and where it came from. Keys are told as set or not set."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click
import msgspec
from rich.text import Text

from gateway.cli_options import default_words
from gateway.cli_tables import plain_table, text, wide_console
from gateway.settings import TABLE, Setting, Settings
from gateway.settings_sources import Given, SettingsError, given, parsed, read


def config(flags: Mapping[str, object], file: str | None, *, as_json: bool) -> int:
    """0 when `serve` would start with these, else 2 with the reason on stderr, after what can be told."""
    sources = given(flags, os.environ, file)
    values = parsed(sources)
    trouble = ""
    try:
        settings = read(flags, os.environ, file)
        values |= {column.name: getattr(settings, column.name) for column in fields(Settings)}
    except SettingsError as error:
        trouble = str(error)
    rows = [_row(row, values, sources.get(row.field)) for row in TABLE]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
    else:
        _print(rows)
    if trouble:
        raise SettingsError(trouble)
    return 0


def _row(row: Setting, values: Mapping[str, Any], source: Given | None) -> dict[str, Any]:
    return {
        "setting": row.name,
        "value": _shown(row, values.get(row.field), row.field in values),
        "source": source.place if source is not None else "default",
        "section": row.section,
    }


def _shown(row: Setting, value: Any, known: bool) -> str:
    if row.kind.secret:
        return "set" if value is not None else "not set"
    if value in (None, ()) or not known:
        return "not set" if row.required and value is None else default_words(row)
    if row.many:
        return ", ".join(item.url for item in value)
    if value == 0 and row.kind.zero:
        return f"0 ({row.kind.zero})"
    if row.kind.switch:
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _print(rows: list[dict[str, Any]]) -> None:
    table = plain_table("setting", "value", "source")
    section = ""
    for row in rows:
        if row["section"] != section:
            if section:
                table.add_row()
            section = row["section"]
            table.add_row(Text(section, "dim"))
        is_default = row["source"] == "default"
        table.add_row(
            text(row["setting"]), text(row["value"]), Text(row["source"], "dim") if is_default else text(row["source"])
        )
    wide_console().print(table)
