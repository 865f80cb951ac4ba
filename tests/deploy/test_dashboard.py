"""Every panel of the dashboard shows something: a real Prometheus scrapes a real gateway with simulated replicas under
load and is asked every panel's query until it tells something other than 0: a row of noughts would come from a query of
the wrong counter too. What only a fault fills is empty or 0 before the fault and filled after it."""

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from replica.sim import Sim
from tests.adapters import write_adapter
from tests.deploy.prometheus import Prometheus, prometheus
from tests.system.fleet import Running, Sims, replicas, running
from tests.waiting import until, until_true

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
WINDOW = "5s"  # what $__rate_interval is here: ten scrapes
QUIET = 3.0  # seconds: files older than two are taken at the first look
WITHIN = 20.0  # seconds until a query must show something
ONLY_ON_FAULT = {  # panel -> what fills it
    "Error ratio": "a replica that answers 500",
    "Adapters in trouble": "a folder that is no adapter",
    "Alerts": "a replica that is down",
    "Unconverged, by adapter (top 20)": "a replica that answers loads with 503",
    "Loads that fail": "a replica that answers loads with 503",
    "Refused folders": "a folder that is no adapter",
    "Server errors by adapter (top 20)": "a replica that answers 500",
    "Drift repairs": "a replica that lost an adapter",
    "Requests sent again": "a replica that lost an adapter",
    "Quarantines": "an adapter that kills replicas",
    "Errors by replica (top 20)": "a replica that is killed",
}
USUAL = [panel for panel in PANELS if panel["title"] not in ONLY_ON_FAULT]
DEADLY = [panel for panel in PANELS if panel["title"] == "Quarantines"]
BROKEN = [panel for panel in PANELS if panel not in USUAL and panel not in DEADLY]
Labels = Sequence[Mapping[str, str]]
UNITS = {"short", "s", "reqps", "ops", "percentunit", "bytes", "dateTimeFromNow"}
any_panel = pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)


@dataclass(frozen=True, slots=True)
class Seen:
    """By query: the labels of the samples other than 0 that it gave while all was well, just before the faults, after them."""

    well: Mapping[str, Labels]
    before: Mapping[str, Labels]
    after: Mapping[str, Labels]
    narrowed: Mapping[str, Labels]  # what it gave while all was well and alpha and the first replica were chosen
    rare: Mapping[str, Labels]  # and after the faults
    offered: Mapping[str, set[str]]  # what each variable lets people choose
    replicas: Sequence[str]

    def gave(self, title: str, query: str) -> Labels:
        return (self.after if title in ONLY_ON_FAULT else self.well)[query]


EVERYTHING = {name: variable["allValue"] for name, variable in VARIABLES.items()}


def queries(panel: dict[str, Any], chosen: Mapping[str, str] = EVERYTHING) -> list[str]:
    """As Grafana sends them."""
    return [filled(target["expr"], chosen) for target in panel["targets"]]


def all_of(panels: Sequence[dict[str, Any]], chosen: Mapping[str, str] = EVERYTHING) -> list[str]:
    return [query for panel in panels for query in queries(panel, chosen)]


def filled(expr: str, chosen: Mapping[str, str]) -> str:
    for name, value in chosen.items():
        expr = expr.replace(f"${name}", value)
    return expr.replace("$__rate_interval", WINDOW)


async def observe(folder: Path) -> Seen:
    adapters = folder / "adapters"
    for number, name in enumerate(("alpha", "beta", "gamma")):
        write_adapter(adapters / name, seed=number, age=QUIET)
    slow = {"token_seconds": 0.02, "load_seconds": 0.2, "max_loras": 1, "max_cpu_loras": 8}
    async with replicas(3, **slow) as fleet, running(adapters, *fleet.all, unload_linger=0.1) as gateway:
        there = [netloc(sim.url) for sim in fleet.all]
        chosen = {"adapter": "alpha", "replica": re.escape(there[0]).replace("\\", r"\\")}  # as Grafana escapes it
        jobs = {"lora-gateway": [netloc(gateway.url)], "vllm": there}
        async with prometheus(folder, jobs, ROOT / "deploy/prometheus/rules") as source:
            async with load(gateway):
                await gateway.ready(3)
                for name in ("alpha", "beta", "gamma"):
                    await gateway.becomes(name, "ready")
                await until_true(lambda: is_watched(source), WITHIN)
                well = await gather(source, all_of(USUAL), live(adapters, gateway, fleet))
                narrowed = await narrow(source, USUAL, chosen)
                offered = {name: await options(source, variable) for name, variable in VARIABLES.items()}
                before = await told(source, all_of([*BROKEN, *DEADLY]))
                broken = await gather(source, all_of(BROKEN), break_things(adapters, fleet))
                rare = {query: await labels_of(source, query) for query in all_of(BROKEN, chosen) if "ALERTS" not in query}
            deadly = await gather(source, all_of(DEADLY), kill_replicas(gateway, fleet))
            return Seen(well, before, {**broken, **deadly}, narrowed, rare, offered, there)


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
    """An ordinary day: an adapter that is asked for while it is loaded, one that is taken away, a client that leaves."""
    await asyncio.gather(*(spoil(sim, load_seconds=1.0) for sim in fleet.all))
    write_adapter(adapters / "fresh", seed=7, age=QUIET)
    assert (await gateway.chat("fresh")).status_code == 200
    await gateway.becomes("fresh", "ready")
    shutil.rmtree(adapters / "gamma")
    await gateway.becomes("gamma", None)
    with pytest.raises(httpx.ReadTimeout):
        await gateway.client.post("/v1/completions", json={"model": "alpha", "prompt": "hi"}, timeout=0.05)


async def spoil(sim: Sim, **faults: Any) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(f"{sim.url}/sim/faults", json=faults)).raise_for_status()


async def break_things(adapters: Path, fleet: Sims) -> None:
    write_adapter(adapters / "junk", age=QUIET, peft_type="PROMPT_TUNING")
    await spoil(fleet.all[1], load_status=503, status=500)
    write_adapter(adapters / "late", seed=9, age=QUIET)
    fleet.all[2].forget()
    fleet.all[0].kill()


async def kill_replicas(gateway: Running, fleet: Sims) -> None:
    """One adapter's requests only, so that it is the only suspect, until it is taken out of use."""
    for sim in fleet.all:
        sim.heal()
        sim.inject(die_on_request="kill")  # whatever name it is served under: one that forgot has it under its exact one

    async def convicted() -> bool:
        for sim in fleet.all:
            if not sim.healthy:
                await until(sim.exited.is_set)
                await sim.start()
        await gateway.ready(len(fleet.all))
        return (await gateway.chat("late")).status_code == 400

    await until_true(convicted, WITHIN)


async def told(source: Prometheus, wanted: Sequence[str]) -> dict[str, Labels]:
    """The labels of the samples other than 0 that each query gives now."""
    return {query: [labels for labels, value in await source.query(query) if value != 0] for query in wanted}


async def gather(source: Prometheus, wanted: Sequence[str], meanwhile: Coroutine[Any, Any, None]) -> dict[str, Labels]:
    """Ask until each query has told something, or the time is over; what each told at last."""
    most: dict[str, Labels] = dict.fromkeys(wanted, ())
    acting = asyncio.create_task(meanwhile)

    async def all_told() -> bool:
        most.update(await told(source, [query for query in wanted if not most[query]]))
        return all(most.values())

    try:
        with suppress(AssertionError):  # the test tells which
            await until_true(all_told, WITHIN)
    finally:
        await acting
    return most


async def narrow(source: Prometheus, panels: Sequence[dict[str, Any]], chosen: Mapping[str, str]) -> dict[str, Labels]:
    """Every query, until it gives a row, or the time is over."""
    rows: dict[str, Labels] = dict.fromkeys(all_of(panels, chosen), ())

    async def all_gave() -> bool:
        for query in [query for query, given in rows.items() if not given]:
            rows[query] = await labels_of(source, query)
        return all(rows.values())

    with suppress(AssertionError):  # the test tells which
        await until_true(all_gave, WITHIN)
    return rows


async def labels_of(source: Prometheus, query: str) -> Labels:
    return [labels for labels, _ in await source.query(query)]


async def options(source: Prometheus, variable: dict[str, Any]) -> set[str]:
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert asked, variable["query"]
    return await source.label_values(asked[1], asked[2])


@needs_prometheus
@pytest.mark.timeout(120)
async def test_every_query_of_every_panel_shows_something_and_faults_fill_what_only_they_do(tmp_path: Path) -> None:
    seen = await observe(tmp_path)  # once for all panels: it takes a while
    told = {(panel["title"], query): seen.gave(panel["title"], query) for panel in PANELS for query in queries(panel)}
    assert {which for which, rows in told.items() if not rows} == set()
    assert {query for query, rows in seen.before.items() if rows} == set()
    assert {query for query, rows in seen.narrowed.items() if not rows} == set()
    chosen = [labels for rows in (*seen.narrowed.values(), *seen.rare.values()) for labels in rows]
    assert {labels[kind] for labels in chosen for kind in ("adapter", "model") if kind in labels} == {"alpha"}
    assert {labels["replica"] for labels in chosen if "replica" in labels} == {seen.replicas[0]}
    assert {labels["instance"] for labels in chosen if "instance" in labels} & {*seen.replicas[1:]} == set()
    legends = [set(re.findall(r"{{(\w+)}}", target["legendFormat"])) for panel in PANELS for target in panel["targets"]]
    for (which, rows), legend in zip(told.items(), legends, strict=True):
        assert all(legend <= labels.keys() for labels in rows), (which, legend)
    assert seen.offered == {"adapter": {"alpha", "beta", "gamma", "fresh"}, "replica": set(seen.replicas)}


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
