"""What a scrape tells of each adapter: well-formed, true of waits, and in slices."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.adapters import Adapter
from gateway.core.registry import Registry
from gateway.metrics_adapters import SLICE, AdapterLines
from tests.core.fleet import adapter, catalog, replica


def fleet(*adapters: Adapter, held: tuple[Adapter, ...] = (), replicas: int = 1) -> Registry:
    registry = Registry()
    registry.replace_catalog(catalog(*adapters), 0.0)
    for number in range(1, replicas + 1):
        hold(registry, number, *held)
    return registry


def hold(registry: Registry, number: int, *held: Adapter) -> None:
    record = replica(number, {a.name: a.load_path for a in held})
    if record.id not in registry.stations:
        registry.join(record)
    registry.publish(record, 0.0)


async def values(lines: AdapterLines, family: str) -> dict[tuple[str, ...], float]:
    text = (await lines.exposition()).decode()
    known = {found.name: found for found in text_string_to_metric_families(text)}["x_" + family]
    return {tuple(sample.labels.values()): sample.value for sample in known.samples}


async def test_the_event_loop_runs_between_the_slices_of_a_large_fleet() -> None:
    adapters = [adapter(f"a{number}") for number in range(10 * SLICE)]
    lines = AdapterLines("x_", fleet(*adapters, held=tuple(adapters), replicas=3), lambda: 0.0)
    scrape, turns = asyncio.create_task(lines.exposition()), 0
    while not scrape.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10
    assert scrape.result().count(b"x_adapter_loaded{") == 30 * SLICE


@given(st.text(min_size=1, max_size=20))
def test_any_name_is_read_back_as_it_is(name: str) -> None:
    lines = AdapterLines("x_", fleet(adapter(name)), lambda: 0.0)
    assert asyncio.run(values(lines, "adapter_info")).keys() == {(name, f"{1:012x}")}


async def test_a_wait_is_counted_from_when_the_adapter_was_last_everywhere() -> None:
    now, alpha = 1000.0, adapter("alpha")
    registry = fleet(alpha, held=(alpha,))
    lines = AdapterLines("x_", registry, lambda: now)
    assert await values(lines, "oldest_unconverged_seconds") == {(): 0.0}
    hold(registry, 1)  # the replica has forgotten it
    now = 1004.0
    assert await values(lines, "adapter_unconverged_seconds") == {("alpha",): 4.0}
    assert await values(lines, "adapters_unconverged") == {(): 1.0}
    hold(registry, 1, alpha)
    assert await values(lines, "oldest_unconverged_seconds") == {(): 0.0}


async def test_a_new_adapter_waits_since_it_was_seen() -> None:
    alpha = adapter("alpha")  # seen at 0
    lines = AdapterLines("x_", fleet(alpha), lambda: 30.0)
    assert await values(lines, "adapter_unconverged_seconds") == {("alpha",): 30.0}
    assert (await values(lines, "adapter_state")) == {("alpha", "pending"): 1.0}
