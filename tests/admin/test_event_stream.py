"""The event stream: what came before, what comes, in order and without a gap."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from gateway.admin.event_stream import event_stream
from gateway.core.events import EventLog
from tests.admin.desk import Desk
from tests.core.fleet import adapter, replica

SQL = adapter("sql")


@asynccontextmanager
async def listening(desk: Desk, last_id: str = "") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Events as they come, over a socket."""
    headers = {"last-event-id": last_id} if last_id else {}
    async with (
        httpx.AsyncClient(base_url=desk.url, timeout=10, trust_env=False) as client,
        client.stream("GET", "/admin/events", headers=headers) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        yield _events(stream.aiter_lines())


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            event = msgspec.json.decode(fields["data"])
            assert (int(fields["id"]), fields["event"]) == (event["number"], event["kind"])
            yield event
        fields = {}


async def test_what_came_before_is_told_first_and_then_what_comes() -> None:
    desk = Desk()
    desk.join(replica(1))
    desk.load(1, SQL)
    async with desk.served(), listening(desk) as events:
        first = await anext(events)
        assert {"number": 1, "kind": "load", "adapter": "sql", "replica": "r1:8000", "seconds": 0.25}.items() <= (first.items())
        desk.die(1)
        second = await anext(events)
        assert (second["kind"], second["reason"]) == ("phase", "ready -> down: connection refused")


@pytest.mark.parametrize(
    ("last_id", "told"),
    [
        pytest.param("2", [3], id="came back"),
        pytest.param("", [1, 2, 3], id="new"),
        pytest.param("0", [1, 2, 3], id="zero"),
        pytest.param("900", [1, 2, 3], id="from before a restart"),
        pytest.param("-1", [1, 2, 3], id="negative"),
        pytest.param("1e3", [1, 2, 3], id="no number"),
        pytest.param("9" * 5000, [1, 2, 3], id="too long"),
    ],
)
async def test_a_client_that_comes_back_gets_what_it_missed(last_id: str, told: list[int]) -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.events.add("adapter_added", adapter=name)
    async with desk.served(), listening(desk, last_id) as events:
        assert [(await anext(events))["number"] for _ in told] == told


async def test_an_event_that_comes_while_others_are_sent_is_not_kept_waiting() -> None:
    log = EventLog(lambda: 0.0, lambda event: None)
    stream = event_stream(log, "", lambda: False)
    await anext(stream)  # the greeting
    log.add("load", adapter="a")
    assert b'"adapter":"a"' in await anext(stream)
    log.add("load", adapter="b")  # the stream stands at its yield: nobody waits on the log
    async with asyncio.timeout(0.5):
        assert b'"adapter":"b"' in await anext(stream)
    await stream.aclose()


async def test_many_events_at_once_all_arrive_in_order() -> None:
    desk = Desk()
    async with desk.served(), listening(desk) as events:
        for number in range(500):
            desk.events.add("load", adapter=f"a{number}")
        assert [(await anext(events))["number"] for _ in range(500)] == list(range(1, 501))


async def test_the_stream_ends_when_the_gateway_ends() -> None:
    desk = Desk()
    async with desk.served(), listening(desk) as events:
        desk.closing = True
        async with asyncio.timeout(5):
            assert [event async for event in events] == []


async def test_asking_for_the_head_alone_does_not_hang() -> None:
    desk = Desk()
    async with desk.served(), httpx.AsyncClient(base_url=desk.url, timeout=5, trust_env=False) as client:
        assert (await client.head("/admin/events")).status_code == 200
