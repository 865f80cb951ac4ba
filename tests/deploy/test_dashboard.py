"""Every panel of the dashboard shows something: a real Prometheus scrapes a real gateway with simulated replicas under
load and is asked every panel's query. What only a fault fills is empty before the fault and filled after it."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from replica.sim import Sim
from tests.adapters import write_adapter
from tests.deploy.prometheus import Prometheus, prometheus
from tests.system.fleet import Running, Sims, replicas, running
from tests.waiting import until_true

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
WINDOW = "5s"  # what $__rate_interval is here: ten scrapes
QUIET = 3.0  # seconds: files older than two are taken at the first look
WITHIN = 20.0  # seconds until a query must show something
ONLY_ON_FAULT = {  # panel -> what fills it
    "Adapters in trouble": "a folder that is no adapter",
    "Alerts": "a replica that is down",
    "Unconverged, by adapter (top 20)": "a replica that answers loads with 500",
    "Loads that fail": "a replica that answers loads with 500",
    "Refused folders": "a folder that is no adapter",
    "Server errors by adapter (top 20)": "replicas that answer 500",
    "Errors by replica (top 20)": "a replica that is killed",
}
UNITS = {"short", "s", "reqps", "ops", "percentunit", "bytes", "dateTimeFromNow"}
any_panel = pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)


def queries(panel: dict[str, Any]) -> list[str]:
    """As Grafana sends them while every adapter and replica is chosen."""
    return [filled(target["expr"]) for target in panel["targets"]]


def filled(expr: str) -> str:
    for name, variable in VARIABLES.items():
        expr = expr.replace(f"${name}", variable["allValue"])
    return expr.replace("$__rate_interval", WINDOW)


@dataclass(frozen=True, slots=True)
class Seen:
    """By query: how many samples it gave while all was well (the most), just before the faults, and after them."""

    well: dict[str, int]
    before: dict[str, int]
    after: dict[str, int]

    def gave(self, title: str, query: str) -> int:
        return (self.after if title in ONLY_ON_FAULT else self.well)[query]


async def observe(folder: Path) -> Seen:
    adapters = folder / "adapters"
    for number, name in enumerate(("alpha", "beta", "gamma")):
        write_adapter(adapters / name, seed=number, age=QUIET)
    slow = {"token_seconds": 0.02, "load_seconds": 0.2, "max_loras": 8}
    async with replicas(3, **slow) as fleet, running(adapters, *fleet.all, unload_linger=0.1) as gateway:
        jobs = {"lora-gateway": [netloc(gateway.url)], "vllm": [netloc(sim.url) for sim in fleet.all]}
        async with prometheus(folder, jobs, ROOT / "deploy/prometheus/rules") as there, load(gateway):
            await gateway.ready(3)
            for name in ("alpha", "beta", "gamma"):
                await gateway.becomes(name, "ready")
            await until_true(lambda: is_watched(there), WITHIN)
            usual = [q for panel in PANELS if panel["title"] not in ONLY_ON_FAULT for q in queries(panel)]
            well = await gather(there, usual, lambda: live(adapters, gateway, fleet))
            rare = [q for panel in PANELS if panel["title"] in ONLY_ON_FAULT for q in queries(panel)]
            before = {q: len(await there.query(q)) for q in rare}
            await break_things(adapters, fleet)
            return Seen(well, before, await gather(there, rare))


async def is_watched(there: Prometheus) -> bool:
    """Whether the gateway was scraped before: what has grown since then is an increase."""
    return bool(await there.query("count_over_time(lora_gateway_ready[1m]) > 1"))


def netloc(url: str) -> str:
    return httpx.URL(url).netloc.decode()


@asynccontextmanager
async def load(gateway: Running) -> AsyncIterator[None]:
    """Streams and plain requests for adapters, a base model and a name that nobody knows, until the block ends."""
    over = asyncio.Event()

    async def ask(model: str) -> None:
        while not over.is_set():
            await gateway.chat(model)
            if model == "nobody":
                await asyncio.wait([asyncio.create_task(over.wait())], timeout=0.2)

    asking = [asyncio.create_task(ask(model)) for model in ("alpha", "alpha", "beta", "gamma", "base-a", "nobody")]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*asking)


async def live(adapters: Path, gateway: Running, fleet: Sims) -> None:
    """An ordinary day: an adapter that is asked for while it is loaded, and one that is taken away."""
    await asyncio.gather(*(spoil(sim, load_seconds=1.0) for sim in fleet.all))
    write_adapter(adapters / "fresh", seed=7, age=QUIET)
    assert (await gateway.chat("fresh")).status_code == 200
    await gateway.becomes("fresh", "ready")
    shutil.rmtree(adapters / "gamma")
    await gateway.becomes("gamma", None)


async def spoil(sim: Sim, **faults: Any) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(f"{sim.url}/sim/faults", json=faults)).raise_for_status()


async def break_things(adapters: Path, fleet: Sims) -> None:
    write_adapter(adapters / "junk", age=QUIET, peft_type="PROMPT_TUNING")
    await spoil(fleet.all[1], load_status=500)
    await spoil(fleet.all[2], status=500, names=["beta"])
    write_adapter(adapters / "late", seed=9, age=QUIET)
    fleet.all[0].kill()


async def gather(
    there: Prometheus, wanted: list[str], meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> dict[str, int]:
    """Ask until each query has given something, or the time is over; the most that each gave."""
    most: Counter[str] = Counter(dict.fromkeys(wanted, 0))
    acting = asyncio.create_task(meanwhile()) if meanwhile is not None else None

    async def all_gave() -> bool:
        for query in [query for query in wanted if not most[query]]:
            most[query] = len(await there.query(query))
        return all(most.values())

    try:
        await until_true(all_gave, WITHIN)
    except AssertionError:
        pass  # the tests tell which
    finally:
        if acting is not None:
            await acting
    return dict(most)


@needs_prometheus
@pytest.mark.timeout(120)
async def test_every_query_of_every_panel_shows_something_and_faults_fill_what_only_they_do(tmp_path: Path) -> None:
    seen = await observe(tmp_path)  # once for all panels: it takes a while
    silent = {(panel["title"], query) for panel in PANELS for query in queries(panel) if not seen.gave(panel["title"], query)}
    assert silent == set()
    assert {query for query, samples in seen.before.items() if samples} == set()


@any_panel
def test_each_panel_has_a_unit_a_description_and_the_datasource(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["description"].endswith(".")
    assert {panel["datasource"]["uid"], *(target["datasource"]["uid"] for target in panel["targets"])} == {"prometheus"}


@any_panel
def test_top_20_is_what_the_query_says_too(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert ("top 20" in panel["title"]) <= ("topk(20, " in target["expr"])


def test_adapter_and_replica_are_variables_that_panels_use() -> None:
    used = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    assert VARIABLES.keys() == {"adapter", "replica"}
    assert all(f"${name}" in used and variable["includeAll"] and variable["multi"] for name, variable in VARIABLES.items())


def test_panels_neither_overlap_nor_leave_the_page() -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for place in (panel["gridPos"] for panel in DASHBOARD["panels"]):
        assert place["x"] + place["w"] <= 24
        taken.update(
            (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
        )
    assert max(taken.values()) == 1


def test_titles_and_numbers_are_unique() -> None:
    assert max(Counter(panel["title"] for panel in PANELS).values()) == 1
    assert max(Counter(panel["id"] for panel in DASHBOARD["panels"]).values()) == 1
    assert ONLY_ON_FAULT.keys() <= {panel["title"] for panel in PANELS}
