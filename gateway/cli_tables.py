"""How the commands draw: plain tables, colours for states on a terminal only, and no text that could move the cursor.

What is shown comes from files, clients and replicas, so every text goes through `text` or `escaped`. Rich leaves colours
out where NO_COLOR is set or the output is no terminal.
"""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.logs import escaped

_COLOURS = {
    "ready": "green",
    "loaded": "green",
    "answered": "green",
    "partial": "yellow",
    "pending": "yellow",
    "loading": "yellow",
    "starting": "yellow",
    "draining": "yellow",
    "incomplete": "yellow",
    "removing": "yellow",
    "waits": "yellow",
    "absent": "",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def wide_console() -> Console:
    """Standard output; not cut to 80 columns when it goes into a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("revision", "replica", "state", "phase"))
    return table


def fact_table(facts: dict[str, object]) -> Table:
    """Names and values below each other; what has no value is left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, ""):
            table.add_row(name, value if isinstance(value, Text) else text(value))
    return table


def text(value: object) -> Text:
    """Empty for None."""
    return Text("" if value is None else escaped(str(value)))


def state(word: str) -> Text:
    return Text(escaped(word), _COLOURS.get(word, "red"))


def named(name: str, words: str, style: str = "bold") -> Text:
    """`name: words`, the name emphasised."""
    return Text.assemble((escaped(name), style), f": {escaped(words)}")


def size(count: int | None) -> str | None:
    """Bytes as people read them."""
    if count is None:
        return None
    number, power = float(count), 0
    while number >= 1024 and power < len(_UNITS) - 1:
        number, power = number / 1024, power + 1
    return f"{number:.0f} {_UNITS[power]}" if power == 0 else f"{number:.1f} {_UNITS[power]}"
