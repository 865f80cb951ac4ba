"""The simulated replica's connections, byte by byte."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from replica.sim import Sim
from tests.waiting import until

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with Sim(keep_alive=0.2) as sim:
        yield sim


async def _connected(sim: Sim) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", sim.port)


async def test_requests_on_one_connection_are_answered_in_order(sim: Sim) -> None:
    reader, writer = await _connected(sim)
    writer.write(HEALTH + HEALTH.replace(b"/health", b"/nosuch") + HEALTH)
    statuses = []
    for length in (0, 22, 0):
        statuses.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        await reader.readexactly(length)
    assert statuses == [b"200", b"404", b"200"]
    writer.close()


async def test_an_idle_connection_is_closed(sim: Sim) -> None:
    reader, writer = await _connected(sim)
    writer.write(HEALTH)
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(3):
        assert await reader.read() == b""
    await until(lambda: sim.connections == 0)
    writer.close()


async def test_a_silent_connection_is_kept(sim: Sim) -> None:
    reader, writer = await _connected(sim)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await reader.read()
    writer.close()


async def test_connection_close_is_respected(sim: Sim) -> None:
    reader, writer = await _connected(sim)
    writer.write(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert b"\r\nconnection: close\r\n" in await reader.read()
    writer.close()


async def test_a_client_that_wants_to_be_told_is_told_to_go_on(sim: Sim) -> None:
    reader, writer = await _connected(sim)
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    writer.write(head + b"Content-Length: 14\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"prompt":"x"}')
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


@pytest.mark.parametrize("junk", [b"\x16\x03\x01", b"GET / HTTP/9\r\n\r\n", b"G\x00T / HTTP/1.1\r\n\r\n"])
async def test_junk_is_refused_and_the_connection_closed(sim: Sim, junk: bytes) -> None:
    reader, writer = await _connected(sim)
    writer.write(junk)
    async with asyncio.timeout(3):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
