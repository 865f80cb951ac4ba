"""`lora-gateway completion SHELL`: click's own completion, which asks this program for each word."""

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def script(commands: click.Command, program: str, shell: str) -> str:
    """The script for one of bash, zsh and fish."""
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    # Not click's `source()`: for bash that starts one to look at its version.
    shape = _SHELLS[shell](commands, {}, program, variable)
    return shape.source_template % shape.source_vars()
