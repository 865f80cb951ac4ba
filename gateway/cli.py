"""The command `lora-gateway`: thin; what a command does lives elsewhere and is imported when it runs.

Exit codes: 0 done; 1 the answer is no (an invalid adapter, a gateway that does not answer); 2 a wrong command line or
setting. A user's mistake is one line on stderr, never a traceback.
"""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gateway import __version__
from gateway.cli_operator import adapters, explain, reaching, replicas, status, wait_option, waiting
from gateway.cli_options import SectionedCommand, options, some_options

PROGRAM = "lora-gateway"


@click.group(
    invoke_without_command=True,
    help="One HTTP endpoint in front of many vLLM replicas that share one directory of LoRA adapters.",
    epilog="""\b
Examples:
  lora-gateway demo                                    a whole fleet on this machine, no GPU
  lora-gateway serve --adapter-dir /adapters --replica http://gpu-1:8000 --replica http://gpu-2:8000
  lora-gateway check /adapters --max-lora-rank 64      look at adapters before the replicas do
  lora-gateway publish ./out sql                       put an adapter into the directory, safely
  lora-gateway status --watch                          what a running gateway has where
  lora-gateway explain sql                             what happens to a request for the model sql, and why
""",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _serve(config: str | None, **flags: object) -> int:
    from gateway.settings_sources import SettingsError, read

    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        settings = read(given, os.environ, config)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    from gateway.process import run

    return run(settings)


commands.add_command(
    SectionedCommand(
        "serve",
        callback=_serve,
        params=options(),
        short_help="Run the gateway.",
        context_settings={"max_content_width": 110},
        help="""Run the gateway: clients talk to it as to one vLLM server, and every adapter in the directory answers
by its name on every replica.

Each setting is a flag, an environment variable (LORA_GATEWAY_ and the flag in capitals, for example
LORA_GATEWAY_SCAN_INTERVAL=5) and a key of the YAML file named by --config (`scan-interval: 5`). A flag wins over a
variable, a variable over the file.""",
        epilog="""\b
Examples:
  lora-gateway serve --adapter-dir /adapters --replica http://gpu-1:8000 --replica http://gpu-2:8000
  lora-gateway serve --adapter-dir /mnt/nfs/loras --replica-adapter-dir /loras --replicas-file replicas.yaml
  lora-gateway serve --config gateway.yaml --replica-api-key @/run/secrets/vllm-key --host 0.0.0.0

The replicas need VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in their environment and --enable-lora;
`python -m replica.serve MODEL` starts one that has both.
""",
    )
)


def _config(config: str | None, as_json: bool, **flags: object) -> int:
    from gateway.cli_config import config as show
    from gateway.settings_sources import SettingsError

    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        return show(given, config, as_json=as_json)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


commands.add_command(
    SectionedCommand(
        "config",
        callback=_config,
        params=[
            click.Option(["--json", "as_json"], is_flag=True, help="An array with one object for each setting."),
            *options(),
        ],
        short_help="Every setting, its value and where it came from.",
        context_settings={"max_content_width": 110},
        help="""Show what `serve` would run with: every setting, its value, and whether a flag, an environment variable, the
file or the default gave it. Takes the flags of `serve`. Keys are told as set or not set.

Exit code 0: `serve` would start with these; 2: it would not, and why.""",
        epilog="""\b
Examples:
  lora-gateway config --config gateway.yaml            what the file and the environment lead to
  lora-gateway config --config gateway.yaml --json | jq '.[] | select(.source != "default")'
""",
    )
)


@commands.command(short_help="Validate adapters offline.")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--max-lora-rank", metavar="N", type=click.IntRange(1), help="What the replicas are started with.")
@click.option("--base-model", metavar="NAME", help="What the replicas serve: warn about adapters of another one.")
@click.option("--allow-pickle", is_flag=True, help="Accept adapter_model.bin, as `serve --allow-pickle` does.")
@click.option("--adapter-depth", metavar="N", type=click.IntRange(1, 16), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="An array with one object for each adapter.")
def check(
    directory: Path,
    max_lora_rank: int | None,
    base_model: str | None,
    allow_pickle: bool,
    adapter_depth: int,
    as_json: bool,
) -> int:
    """Look at every adapter in DIR as the gateway would, and say what is wrong with it and what to do.

    Exit code 0: all are valid; 1: one is not. No replica is needed. DIR may also be one adapter.
    """
    from gateway.check import Check
    from gateway.cli_check import check as show

    checker = Check(max_lora_rank, base_model, allow_pickle, adapter_depth)
    return show(Path(os.path.abspath(directory)), checker, as_json=as_json)  # noqa: PTH100 (links stay as written)


@reaching
@wait_option
@click.pass_context
def _publish(
    ctx: click.Context,
    /,
    source: Path,
    name: str,
    config: str | None,
    base_model: str | None,
    as_json: bool,
    wait: float,
    **flags: object,
) -> int:
    from gateway.cli_publish import publish
    from gateway.cli_signals import end_as_at_ctrl_c
    from gateway.settings_sources import SettingsError

    end_as_at_ctrl_c()
    given = {field: value for field, value in flags.items() if value is not None}
    try:
        done = publish(Path(os.path.abspath(source)), name, given, config, base_model, as_json=as_json)  # noqa: PTH100
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    return waiting(ctx, name, done.revision, wait)


commands.add_command(
    click.command(
        "publish",
        params=[
            click.Argument(["source"], metavar="SRC", type=click.Path(exists=True, file_okay=False, path_type=Path)),
            click.Argument(["name"]),
            *some_options("adapter_dir", "adapter_depth", "max_lora_rank", "allow_pickle", "snapshot_dir"),
            click.Option(["--base-model"], metavar="NAME", help="What the replicas serve: warn when it was made for another."),
            click.Option(["--json", "as_json"], is_flag=True, help="What was published, as JSON."),
        ],
        short_help="Put an adapter into the directory, safely.",
        help="""Validate the adapter in the folder SRC as `check` does, copy it aside into the adapter directory, and rename it
into place as NAME (with slashes, as in team/legal), also over an old one. A gateway sees the old adapter or the whole new
one, and goes on serving the old revision until the new one is loaded.

Only the config and the weights are copied; links are followed, so SRC may lie in a hub cache. Nothing is changed when SRC
is invalid, the name cannot be served, or the copy fails or is interrupted. That a base model has the same name cannot be
seen here: `lora-gateway explain NAME` tells it.

Exit code 0: it is in its place (with --wait: and on every replica); 1: it is not, and why.""",
        epilog="""\b
Examples:
  lora-gateway publish ./out/checkpoint-500 sql --adapter-dir /adapters
  lora-gateway publish ./out sql --adapter-dir /adapters --wait 60 --url http://gateway:8000
  lora-gateway publish ~/.cache/huggingface/hub/models--org--legal team/legal --config gateway.yaml
""",
    )(_publish)
)


@commands.command(short_help="A whole fleet on this machine, no GPU.")
@click.option("--engine", type=click.Choice(["sim", "vllm"]), default="sim", show_default=True, help="Simulated or real.")
@click.option("--replicas", metavar="N", type=click.IntRange(1, 16), help="How many [default 3, with vllm 2].")
@click.option("--port", metavar="P", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--once", is_flag=True, help="Show what it does, then end: 0 when all went well, else 1.")
def demo(engine: str, replicas: int | None, port: int, once: bool) -> int:
    """Start replicas and a gateway on this machine, send requests, and show what happens.

    With --engine sim the replicas are simulated and need nothing. With --engine vllm they are real vLLM servers on the
    CPU with a tiny model; `make demo ENGINE=vllm` installs what they need.
    """
    from gateway.cli_signals import end_as_at_ctrl_c
    from gateway.demo import run_demo

    end_as_at_ctrl_c()
    return run_demo(engine, replicas or (2 if engine == "vllm" else 3), port, once)


@commands.command(
    short_help="Completion for bash, zsh or fish.",
    epilog="""\b
Examples:
  eval "$(lora-gateway completion bash)"                                          in ~/.bashrc
  eval "$(lora-gateway completion zsh)"                                           in ~/.zshrc, after compinit
  lora-gateway completion fish > ~/.config/fish/completions/lora-gateway.fish     once
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print what makes the shell complete commands, flags, and the names of adapters and replicas.

    Names are asked of the gateway at --url or LORA_GATEWAY_URL, which has a second to answer.
    """
    from gateway.cli_completion import script

    click.echo(script(commands, PROGRAM, shell), nl=False)
    return 0


for command in (status, adapters, replicas, explain):
    commands.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name is no reason to fail
    try:
        result = commands.main(args=argv, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"{PROGRAM}: error: {' '.join(error.format_message().split())}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
