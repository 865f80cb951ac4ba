"""The commands that ask a running gateway: status, adapters, replicas, explain. Thin: what they print lives elsewhere.

All of them take --url and --admin-api-key, before or after a subcommand. Names are completed from the gateway itself,
which gets a second for it, and only such names as a shell takes literally.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from gateway.cli_remote import Remote
    from gateway.settings_kinds import Secret

URL = "http://127.0.0.1:8000"
COMPLETION_TIMEOUT = 1.0  # seconds
_LITERAL = re.compile(r"[\w./@:+-]+")
F = TypeVar("F", bound=Callable[..., Any])


def reaching(command: F) -> F:
    """The options that say which gateway; `_remote` reads them."""
    url = click.option(
        "--url", metavar="URL", envvar="LORA_GATEWAY_URL", default=URL, show_default=True, expose_value=False, callback=_keep
    )
    key = click.option(
        "--admin-api-key",
        metavar="KEY",
        envvar="LORA_GATEWAY_ADMIN_API_KEY",
        expose_value=False,
        callback=_keep,
        help="The key, or @FILE [variable LORA_GATEWAY_ADMIN_API_KEY].",
    )
    return url(key(command))


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """A group and its subcommand share what was given to either; the command line wins, the later place over the earlier."""
    name = f"{__name__}.{param.name}"
    given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    if given or name not in ctx.meta:
        ctx.meta[name] = value


def _remote(ctx: click.Context) -> "Remote":
    from gateway.cli_remote import Remote

    return Remote(ctx.meta[f"{__name__}.url"].rstrip("/"), _key(ctx.meta[f"{__name__}.admin_api_key"]))


def _key(text: str | None) -> "Secret | None":
    from gateway.settings_kinds import key

    if not text:
        return None
    try:
        return cast("Secret", key().parse(text, Path.cwd()))
    except ValueError as error:
        raise click.UsageError(f"admin-api-key: the value must be {error}") from None


def _names(path: str, field: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from gateway.cli_remote import Remote

        try:
            url, key = ctx.meta.get(f"{__name__}.url") or URL, _key(ctx.meta.get(f"{__name__}.admin_api_key"))
            with Remote(url.rstrip("/"), key, COMPLETION_TIMEOUT) as remote:
                rows = remote.told(f"/admin/{path}", dict[str, list[dict[str, Any]]])[path]
        except (click.ClickException, KeyError):
            return []
        names = (str(row.get(field, "")) for row in rows)
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and _LITERAL.fullmatch(name)]

    return complete


def waiting(ctx: click.Context, name: str, revision: str | None, seconds: float) -> int:
    """Until the gateway has it on every replica; 0 seconds: not at all."""
    if not seconds:
        return 0
    from gateway.cli_arrival import await_arrival

    with _remote(ctx) as remote:
        return await_arrival(remote, name, revision, seconds)


wait_option = click.option(
    "--wait",
    metavar="S",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    help="Wait up to S seconds until a running gateway has it on every replica; exit code 1 when it has not.",
)
_adapter = click.argument("name", shell_complete=_names("adapters", "name"))
_replica = click.argument("replica", metavar="ID", shell_complete=_names("replicas", "id"))
_json = click.option("--json", "as_json", is_flag=True, help="What the gateway answered, as JSON.")


class NamesToo(click.Group):
    """A group where a word that is no subcommand is a name to show; `show NAME` is for one that is named like one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        alone = len(args) < 2 or args[1].startswith("-")  # else it is a mistyped command
        if alone and self.get_command(ctx, args[0]) is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            return "show", self.get_command(ctx, "show"), args
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        return [*super().shell_complete(ctx, incomplete), *_names("adapters", "name")(ctx, self.params[0], incomplete)]


@click.command(short_help="What a running gateway has where.")
@reaching
@click.option("--json", "as_json", is_flag=True, help="The whole status document; with --watch a line for each look.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.pass_context
def status(ctx: click.Context, as_json: bool, watch: bool) -> int:
    """Show the adapters and replicas of a running gateway: what is loaded where, and why something is not."""
    from gateway.cli_signals import end_as_at_ctrl_c
    from gateway.cli_status import status as show

    if watch:
        end_as_at_ctrl_c()  # the terminal gets its screen back
    with _remote(ctx) as remote:
        return show(remote, as_json=as_json, watch=watch)


@click.group(
    cls=NamesToo,
    invoke_without_command=True,
    short_help="List, load, retry, pin and unpin adapters.",
    subcommand_metavar="[NAME | COMMAND [ARGS]...]",
    epilog="""\b
Examples:
  lora-gateway adapters                              all of them
  lora-gateway adapters team/legal                   one: its revisions, and how it stands on each replica
  lora-gateway adapters load team/legal              load it on every replica now
  lora-gateway adapters retry sql                    forget what the replicas refused, and try again
  lora-gateway adapters pin sql 1f0c5d2a9b3e         keep the name on an older revision (a rollback)
  lora-gateway adapters unpin sql                    let it follow the directory again
""",
)
@reaching
@_json
@click.pass_context
def adapters(ctx: click.Context, as_json: bool) -> int:
    """The adapters of a running gateway: all, one in detail, or something to be done with one.

    An adapter that is called like a command is shown with `show NAME`.
    """
    if ctx.invoked_subcommand is not None:
        ctx.meta[f"{__name__}.json"] = as_json
        return 0
    from gateway.cli_fleet import list_adapters

    with _remote(ctx) as remote:
        return list_adapters(remote, as_json=as_json)


@adapters.command("show", short_help="One adapter in detail.")
@_adapter
@reaching
@_json
@click.pass_context
def show_adapter(ctx: click.Context, name: str, as_json: bool) -> int:
    """Show one adapter: its revisions, where it comes from, and how it stands on each replica."""
    from gateway.cli_fleet import show_adapter as show

    with _remote(ctx) as remote:
        return show(remote, name, as_json=as_json or ctx.meta.get(f"{__name__}.json", False))


@adapters.command(short_help="Load it on every replica now.")
@_adapter
@wait_option
@reaching
@click.pass_context
def load(ctx: click.Context, name: str, wait: float) -> int:
    """Load an adapter on every replica that may hold it, before anybody asks for it."""
    _ordered(ctx, "adapters", name, "load", "is asked for on every replica: `lora-gateway status --watch` shows it land")
    return waiting(ctx, name, None, wait)


@adapters.command(short_help="Forget refusals and a quarantine; try again.")
@_adapter
@reaching
@click.pass_context
def retry(ctx: click.Context, name: str) -> int:
    """Forget what the replicas refused of an adapter and its quarantine, and load it again."""
    return _ordered(ctx, "adapters", name, "retry", "is tried again everywhere")


@adapters.command(short_help="Keep the name on one revision.")
@_adapter
@click.argument("revision", required=False)
@reaching
@click.pass_context
def pin(ctx: click.Context, name: str, revision: str | None) -> int:
    """Keep NAME on REVISION (12 hex digits; also NAME@REVISION), whatever the directory holds. Without one: the current one.

    The revision must have a snapshot; `lora-gateway adapters NAME` lists them.
    """
    from gateway.cli_fleet import pin as keep

    with _remote(ctx) as remote:
        return keep(remote, name, revision)


@adapters.command(short_help="Let the name follow the directory again.")
@_adapter
@reaching
@click.pass_context
def unpin(ctx: click.Context, name: str) -> int:
    """Let NAME follow the directory again."""
    return _ordered(ctx, "adapters", name, "unpin", "follows the directory again")


@click.group(
    invoke_without_command=True,
    short_help="List, drain and undrain replicas.",
    epilog="""\b
Examples:
  lora-gateway replicas                              all of them
  lora-gateway replicas drain gpu-1:8000             no new requests there; running ones finish
  lora-gateway replicas undrain gpu-1:8000           back into use
""",
)
@reaching
@_json
@click.pass_context
def replicas(ctx: click.Context, as_json: bool) -> int:
    """The replicas of a running gateway, and taking one out of use and back."""
    if ctx.invoked_subcommand is not None:
        return 0
    from gateway.cli_fleet import list_replicas

    with _remote(ctx) as remote:
        return list_replicas(remote, as_json=as_json)


@replicas.command(short_help="No new requests there.")
@_replica
@reaching
@click.pass_context
def drain(ctx: click.Context, replica: str) -> int:
    """Give a replica no new requests; those that run there finish. ID is HOST:PORT as `replicas` lists it.

    Other gateways on the same replicas are to be told as well.
    """
    return _ordered(ctx, "replicas", replica, "drain", "gets no new requests; `lora-gateway replicas` shows what still runs")


@replicas.command(short_help="Back into use.")
@_replica
@reaching
@click.pass_context
def undrain(ctx: click.Context, replica: str) -> int:
    """Give a replica requests again."""
    return _ordered(ctx, "replicas", replica, "undrain", "is back in use")


def _ordered(ctx: click.Context, kind: str, name: str, action: str, outcome: str) -> int:
    from gateway.cli_fleet import order

    with _remote(ctx) as remote:
        return order(remote, kind, name, action, outcome)


@click.command(short_help="What happens to a request for a name, and why.")
@click.argument("name", required=False, default="", shell_complete=_names("adapters", "name"))
@click.option("--session", metavar="ID", help="The client's x-session-id or `user`: it decides between the arms of an alias.")
@reaching
@_json
@click.pass_context
def explain(ctx: click.Context, name: str, session: str | None, as_json: bool) -> int:
    """Say what would happen to a request for the model NAME right now, and why: what the name stands for, which replicas
    may answer and under which served name, which one would be picked, and what is missing on the others.

    Without NAME: a request that names no model. Exit code 0: it would be answered, now or after a wait; 1: it would not.
    """
    from gateway.cli_explain import explain as show

    with _remote(ctx) as remote:
        return show(remote, name, session, as_json=as_json)
