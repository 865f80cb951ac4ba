"""The options of `serve` as click wants them, made from the table of settings, and a help page in sections.

Click only collects texts here: reading, ranges and errors are the same for flags, variables and the file, and live with
the settings.
"""

from itertools import groupby

import click
from click.shell_completion import CompletionItem

from gateway.settings import TABLE, Setting


def options() -> list[click.Parameter]:
    config = click.Option(["--config"], metavar="FILE", help="YAML file with settings; flags and variables win over it.")
    return [config, *(_option(row) for row in TABLE)]


def some_options(*fields: str) -> list[click.Parameter]:
    """Those of these settings, and --config, for a command that needs no more; with their help."""
    config = click.Option(["--config"], metavar="FILE", help="YAML file with settings, as for serve.")
    rows = [row for row in TABLE if row.field in fields]
    return [*(_option(row, described(row)) for row in rows), config]


def _option(row: Setting, help: str | None = None) -> click.Option:
    if row.kind.switch:
        return click.Option([f"{row.flag}/--no-{row.name}"], default=None, help=help)
    return click.Option(
        [row.flag],
        metavar=row.kind.metavar,
        multiple=row.many,
        default=None,
        help=help,
        shell_complete=lambda ctx, param, incomplete: _values(row, incomplete),
    )


def _values(row: Setting, incomplete: str) -> list[CompletionItem[str]]:
    """What a shell offers for the value: the words that are allowed, folders or files."""
    if row.kind.metavar in ("DIR", "FILE"):
        return [CompletionItem(incomplete, type={"DIR": "dir", "FILE": "file"}[row.kind.metavar])]
    words = row.kind.metavar.split("|") if "|" in row.kind.metavar else []
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def described(row: Setting) -> str:
    """Help, default and what is special, in one paragraph."""
    facts = []
    if row.required:
        facts.append("required")
    elif row.shown or row.default not in (None, ()):
        facts.append(f"default {default_words(row)}")
    if row.kind.zero:
        facts.append(f"0 means {row.kind.zero}")
    if row.limit:
        facts.append(row.limit)
    return f"{row.help} [{'; '.join(facts)}]" if facts else row.help


def default_words(row: Setting) -> str:
    """The default as a user would write it."""
    if row.shown:
        return row.shown
    if row.kind.switch:
        return "on" if row.default else "off"
    if row.default in (None, ()):
        return "none"
    return f"{row.default:g}" if isinstance(row.default, float) else str(row.default)


class SectionedCommand(click.Command):
    """A command whose help lists the settings by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [param.get_help_record(ctx) for param in self.params if not _row_of(param)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in (*own, ("--help", "Show this page.")) if record])
        for section, rows in groupby(TABLE, key=lambda row: row.section):
            with formatter.section(section):
                formatter.write_dl([(f"{row.flag} {row.kind.metavar}".strip(), described(row)) for row in rows])


def _row_of(param: click.Parameter) -> bool:
    return any(row.field == param.name for row in TABLE)
