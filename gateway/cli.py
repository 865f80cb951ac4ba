"""The command `lora-gateway`: thin; what a command does lives elsewhere and is imported when it runs.

Exit codes: 0 done; 1 the answer is no (an invalid adapter, a gateway that does not answer); 2 a wrong command line or
setting. A user's mistake is one line on stderr, never a traceback.
"""

import os
import sys
from collections.abc import Sequence

import click

from gateway import __version__
from gateway.cli_options import SectionedCommand, options

PROGRAM = "lora-gateway"


@click.group(
    invoke_without_command=True,
    help="One HTTP endpoint in front of many vLLM replicas that share one directory of LoRA adapters.",
    epilog="""\b
Examples:
  lora-gateway demo                                    a whole fleet on this machine, no GPU
  lora-gateway serve --adapter-dir /adapters --replica http://gpu-1:8000 --replica http://gpu-2:8000
  lora-gateway check /adapters --max-lora-rank 64      look at adapters before the replicas do
  lora-gateway status                                  what a running gateway has where
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
    from gateway.__main__ import run

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code."""
    try:
        result = commands.main(args=argv, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"{PROGRAM}: error: {' '.join(error.format_message().split())}", err=True)
        return error.exit_code
    except click.Abort:
        return 130
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
