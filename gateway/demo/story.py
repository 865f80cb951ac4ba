"""What the demo shows, in order. Each step says what it did, what came of it, and whether that is what it should be.

Whatever ends it (Ctrl-C, and what the command takes as that; a step that goes wrong) ends the whole fleet.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from gateway.demo.fleet import LATE, SAYS, Fleet
from gateway.demo.processes import NotReady, is_free

CONVERGES_WITHIN = 60.0  # seconds
console = Console(highlight=False)


class Unexpected(Exception):
    """An answer was not what it should be."""


def run_demo(engine: str, replicas: int, port: int, once: bool) -> int:
    """Show the whole product on this machine; 0 when every step went well."""
    if missing := _missing_packages():
        print(f"lora-gateway demo: needs {missing}: pip install 'lora-gateway[demo]'", file=sys.stderr)
        return 1
    if port and not is_free(port):
        print(f"lora-gateway demo: port {port} is in use: choose another with --port", file=sys.stderr)
        return 1
    from gateway.demo.processes import free_port

    fleet = Fleet(engine, replicas, port or free_port())
    try:
        Story(fleet).tell()
        _where_to_look(fleet)
        if not once:
            console.print("\nIt keeps running. Ctrl-C ends it and removes everything.")
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        console.print("\nStopping.")
    except (NotReady, Unexpected) as error:
        console.print(f"\n[bold red]It went wrong:[/] {error}")
        _keep_logs(fleet)
        return 1
    finally:
        fleet.close()
    return 0


def _missing_packages() -> str:
    import importlib.util

    return ", ".join(n for n in ("openai", "numpy", "tokenizers") if importlib.util.find_spec(n) is None)


class Story:
    """The steps, on one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        import openai

        self._fleet = fleet
        self._client = openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0, timeout=120)

    def tell(self) -> None:
        fleet = self._fleet
        engine = "real vLLM replicas on the CPU" if fleet.engine == "vllm" else "simulated vLLM replicas"
        console.print(f"[bold]LoRA gateway demo[/]: {len(fleet.replicas)} {engine}, one gateway, one directory of adapters\n")
        self._start()
        self._models()
        self._cold_and_warm()
        self._every_replica()
        self._restart()
        self._late_folder()
        self._unknown()

    def _start(self) -> None:
        fleet = self._fleet
        with _progress("making a tiny model and its adapters"):
            fleet.make_adapters()
        _done(f"adapters in {fleet.adapters}: {', '.join(sorted(p.name for p in fleet.adapters.iterdir() if p.is_dir()))}")
        with _progress("starting the replicas") as waiting:
            for replica in fleet.replicas:
                fleet.start_replica(replica)
            for replica in fleet.replicas:
                fleet.wait_for_replica(replica, waiting)
        _done(f"replicas, which know no adapter yet: {', '.join(fleet.replicas)}")
        with _progress("starting the gateway") as waiting:
            fleet.gateway.start()
            fleet.gateway.wait_until_ready(f"{fleet.url}/readyz", 30, waiting)
        _done(f"gateway: {fleet.url}\n")

    def _models(self) -> None:
        names = [model.id for model in self._client.models.list()]
        _told("GET /v1/models", f"{', '.join(names)} - the base model and every adapter, loaded yet or not")
        _expect("tiny" in names and "sql" in names, f"the model list is {names}")

    def _cold_and_warm(self) -> None:
        cold, text, replica = self._ask("poet")
        _told("poet, cold", f"{text!r} from {replica} in {cold:.0f} ms: its replica loaded it, then answered")
        warm, text, replica = self._ask("poet")
        _told("poet, warm", f"{text!r} from {replica} in {warm:.0f} ms")
        parts = self._client.chat.completions.create(
            model="sql", messages=[{"role": "user", "content": "hi"}], max_tokens=8, temperature=0, stream=True
        )
        tokens = [chunk.choices[0].delta.content or "" for chunk in parts if chunk.choices]
        _told("sql, streamed", " ".join(token for token in tokens if token))
        _expect("".join(tokens).startswith(SAYS["sql"]), f"sql streamed {''.join(tokens)!r}")

    def _every_replica(self) -> None:
        with _progress("waiting until every adapter is on every replica") as waiting:
            self._converge(waiting)
        seen: dict[str, str] = {}
        for _ in range(50 * len(self._fleet.replicas)):
            _, text, replica = self._ask("legal")
            seen[replica] = text
            if len(seen) == len(self._fleet.replicas):
                break
        _told("legal, everywhere", ", ".join(f"{text!r} from {replica}" for replica, text in sorted(seen.items())))
        _expect(len(seen) == len(self._fleet.replicas), f"only {sorted(seen)} answered")

    def _restart(self) -> None:
        fleet = self._fleet
        victim = next(iter(fleet.replicas))
        fleet.replicas[victim].kill()
        fleet.replicas[victim].join()
        answers = [self._ask("sql")[2] for _ in range(10)]
        _told(f"killed {victim}", f"10 of 10 requests answered meanwhile, by {', '.join(sorted(set(answers)))}")
        with _progress(f"starting {victim} again, empty") as waiting:
            fleet.start_replica(victim)
            fleet.wait_for_replica(victim, waiting)
            began = time.monotonic()
            self._converge(waiting)
        _told(
            "restarted",
            f"it had every adapter again {time.monotonic() - began:.1f} s after it was up; nobody asked for it",
        )

    def _late_folder(self) -> None:
        self._fleet.drop_in(LATE)
        elapsed, text, replica = self._ask(LATE)
        _told(f"new folder {LATE}", f"copied in and asked for at once: {text!r} from {replica} in {elapsed:.0f} ms")

    def _unknown(self) -> None:
        import openai

        try:
            self._ask("gpt-4o-mini")
        except openai.NotFoundError as error:
            _told(
                "an unknown name",
                f"404, no replica asked: {error.body['message'] if isinstance(error.body, dict) else error}",
            )
        else:
            raise Unexpected("an unknown model was answered")

    def _ask(self, model: str) -> tuple[float, str, str]:
        """Milliseconds, the text, and which replica answered."""
        began = time.monotonic()
        raw = self._client.completions.with_raw_response.create(
            model=model, prompt="Hello", max_tokens=2 * len(SAYS.get(model, "x")), temperature=0
        )
        elapsed = (time.monotonic() - began) * 1000
        answer = raw.parse()
        text = answer.choices[0].text
        _expect(answer.model == model, f"{model} was asked for, {answer.model} answered")
        _expect(text.startswith(SAYS[model][:3]), f"{model} answered {text!r}")
        return elapsed, text, raw.headers["x-lora-gateway-replica"]

    def _converge(self, waiting: Callable[[], None]) -> None:
        end = time.monotonic() + CONVERGES_WITHIN
        while not self._converged(self._fleet.status()):
            if time.monotonic() > end:
                raise Unexpected("the adapters were not on every replica in time")
            waiting()
            time.sleep(0.1)

    def _converged(self, status: dict[str, Any]) -> bool:
        """Every replica ready, and every adapter on each."""
        ready = all(replica["phase"] == "ready" for replica in status["replicas"])
        states = [s["state"] for adapter in status["adapters"] for s in adapter["replicas"].values()]
        return ready and bool(states) and all(state == "loaded" for state in states)


def _where_to_look(fleet: Fleet) -> None:
    table = Table(title="\nWhat holds what", title_justify="left", box=None)
    status = fleet.status()
    table.add_column("adapter")
    table.add_column("revision")
    for replica in status["replicas"]:
        table.add_column(replica["id"])
    for adapter in status["adapters"]:
        states = [adapter["replicas"].get(replica["id"], {}).get("state", "") for replica in status["replicas"]]
        table.add_row(adapter["name"], adapter["revision"] or "", *states)
    console.print(table)
    console.print(
        f"""
[bold]Where to look[/]
  {fleet.url}/console             in a browser: the same, live
  lora-gateway status --watch --url {fleet.url}
  lora-gateway explain poet --url {fleet.url}
  curl {fleet.url}/v1/models
  curl {fleet.url}/v1/completions -H 'content-type: application/json' \\
       -d '{{"model": "poet", "prompt": "Hello", "max_tokens": 10}}'
  curl {fleet.url}/admin/status      the same as JSON
  curl -N {fleet.url}/admin/events   every load and unload as it happens
  curl {fleet.url}/metrics           for Prometheus
  cp -r {fleet.adapters}/sql {fleet.adapters}/mine    a new adapter: ask for the model mine
  logs: {fleet.root}/*.log""",
        soft_wrap=True,
    )


def _keep_logs(fleet: Fleet) -> None:
    for log in sorted(fleet.root.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-8:]
        console.print(f"\n[dim]{Path(log).name}, its last lines[/]", *lines, sep="\n", markup=False)


@contextmanager
def _progress(text: str) -> Iterator[Callable[[], None]]:
    """A spinner with the seconds that have passed; a plain line where no terminal is."""
    began = time.monotonic()
    if not console.is_terminal:
        console.print(f"... {text}")
        yield lambda: None
        return
    with Status(text, console=console) as spinner:
        yield lambda: spinner.update(f"{text} ({time.monotonic() - began:.0f} s)")


def _done(text: str) -> None:
    console.print(f"[green]✓[/] {text}", soft_wrap=True)


def _told(what: str, outcome: str) -> None:
    console.print(f"[green]✓[/] [bold]{what}[/]: {outcome}", soft_wrap=True)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unexpected(otherwise)
