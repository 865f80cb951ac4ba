"""What a replica's answers mean. The answers are those of a real vLLM 0.32, spoken over a socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.control import replica_client
from gateway.control.replica_client import Outcome, ReplicaClient, ReplicaError
from gateway.core.replica import ModelEntry
from tests.waiting import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
KEY = "up-key-7f3a"


def envelope(message: str, type: str = "InternalServerError", code: int = 500) -> bytes:
    return json.dumps({"error": {"message": message, "type": type, "param": None, "code": code}}).encode()


@asynccontextmanager
async def replica(status: int, body: bytes, seen: list[bytes] | None = None) -> AsyncIterator[ReplicaClient]:
    """A client of a server that gives one answer to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head)
        length = next((int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")), 0)
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = ReplicaClient(
            f"http://127.0.0.1:{port}",
            api_key=KEY,
            connect_timeout=2,
            probe_timeout=2,
            load_timeout=2,
            shown={"/data/loras/.lora-gateway/": "", "/data/loras/": ""},
        )
        yield client
        await client.close()


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        pytest.param(200, b"Success: LoRA adapter 'x' added successfully.", Outcome.OK, id="yes"),
        pytest.param(
            400, envelope("The lora adapter 'x' has already been loaded.", "InvalidUserInput", 400), Outcome.ALREADY,
            id="already-loaded",
        ),
        pytest.param(
            400, envelope("The lora adapter 'x' conflicts with a served base model.", code=400), Outcome.REJECTED,
            id="name of a base model",
        ),
        pytest.param(
            404, envelope("Loading lora x failed: No adapter found for /data/loras/x", "NotFoundError", 404),
            Outcome.MISSING, id="path-mapping: the replica does not see it",
        ),
        pytest.param(404, b'{"detail":"Not Found"}', Outcome.UNSUPPORTED, id="endpoint-off"),
        pytest.param(404, b"<html>not here</html>", Outcome.UNSUPPORTED, id="a 404 of something else"),
        pytest.param(500, envelope("LoRA is not enabled"), Outcome.UNSUPPORTED, id="enable-lora is missing"),
        pytest.param(
            500, envelope("Call to add_lora method failed: LoRA rank 32 is greater than max_lora_rank 16."),
            Outcome.REJECTED, id="rank-too-big",
        ),
        pytest.param(500, envelope("Call to add_lora method failed:"), Outcome.REJECTED, id="no reason given"),
        pytest.param(
            500, envelope("Call to add_lora method failed: [Errno 5] Input/output error: '/data/loras/x'"),
            Outcome.ERROR, id="the mount's fault",
        ),
        pytest.param(500, envelope("Permission denied: '/data/loras/x'"), Outcome.ERROR, id="permissions"),
        pytest.param(500, envelope("Server shutting down"), Outcome.DRAINING, id="shutting down"),
        pytest.param(503, b"", Outcome.ERROR, id="not-ready-yet"),
        pytest.param(401, b'{"error":"Unauthorized"}', Outcome.CREDENTIALS, id="replica-key"),
        pytest.param(500, b"[" * 100_000, Outcome.ERROR, id="nested junk"),
        pytest.param(502, b"<html>bad gateway</html>", Outcome.ERROR, id="a proxy in between"),
    ],
)  # fmt: skip
async def test_the_answer_to_a_load_means(status: int, body: bytes, outcome: Outcome) -> None:
    async with replica(status, body) as client:
        assert (await client.load("x", "/data/loras/x")).outcome is outcome


async def test_a_reason_is_one_line_without_foreign_paths_control_characters_or_keys() -> None:
    text = (
        "Call to add_lora method failed: While loading /data/loras/.lora-gateway/sql@0123456789ab,\n\x1b[31m see "
        f"/usr/lib/python3/x.py with {KEY}"
    )
    async with replica(500, envelope(text)) as client:
        reason = (await client.load("x", "/data/loras/x")).reason
    assert reason == "While loading sql@0123456789ab, [31m see <path> with ***"


async def test_replica_key_goes_with_every_call() -> None:
    seen: list[bytes] = []
    async with replica(200, b'{"data":[]}', seen) as client:
        await client.probe()
        await client.models()
        await client.load("x", "/x")
        await client.unload("x")
    assert [b"authorization: Bearer " + KEY.encode() in head.replace(b"Authorization", b"authorization") for head in seen] == [
        True
    ] * 4


async def test_models_are_read_and_a_refused_key_is_told_apart() -> None:
    body = b'{"object":"list","data":[{"id":"tiny","root":"/m","parent":null},{"id":"sql","root":"/a","parent":"tiny"}]}'
    async with replica(200, body) as client:
        assert await client.models() == [ModelEntry("tiny", "/m", None), ModelEntry("sql", "/a", "tiny")]
    async with replica(401, b'{"error":"Unauthorized"}') as client:
        with pytest.raises(ReplicaError) as error:
            await client.models()
    assert error.value.credentials
    assert KEY not in str(error.value)


async def test_vitals_come_from_the_replicas_own_metrics() -> None:
    text = (
        b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.796e+09\n"
        b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 2.0\n'
        b'vllm:num_requests_running{engine="1"} 1.0\n'
    )
    async with replica(200, text) as client:
        vitals = await client.vitals()
    assert (vitals.started_at, vitals.running) == (1.796e9, 3)


async def test_a_refused_connection_is_told_apart_from_a_slow_one() -> None:
    async with replica(200, b"") as client:
        assert (await client.probe()).ok
    gone = await client_of_nobody().probe()
    assert (gone.ok, gone.refused) == (False, True)


def client_of_nobody() -> ReplicaClient:
    return ReplicaClient("http://127.0.0.1:9", api_key=None, connect_timeout=2, probe_timeout=2, load_timeout=2, shown={})


async def test_an_unload_of_an_unknown_name_has_reached_the_wanted_state() -> None:
    body = envelope("The lora adapter 'x' cannot be found.", "NotFoundError", 404)
    async with replica(404, body) as client:
        assert (await client.unload("x")).outcome is Outcome.OK


@asynccontextmanager
async def endless(piece: bytes, pause: float) -> AsyncIterator[ReplicaClient]:
    """A client of a server whose answers never end: `piece` after `piece`, `pause` seconds in between."""

    serving: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(writer)
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
            while not writer.is_closing():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        writer.close()
        serving.discard(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = ReplicaClient(url, api_key=None, connect_timeout=0.2, probe_timeout=0.3, load_timeout=0.3, shown={})
        yield client
        await client.close()
        await until(lambda: not serving)


async def test_an_answer_that_comes_byte_by_byte_is_out_of_time_like_any_other() -> None:
    async with endless(b"x", 0.05) as client, asyncio.timeout(5):
        assert (await client.probe()).reason == "no answer to /health in time"
        assert (await client.load("x", "/x")).outcome is Outcome.TIMEOUT
        assert not await client.token("base-a", 0.2)


async def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_client, "MAX_ANSWER", 1_000_000)
    async with endless(b"x" * 100_000, 0.0) as client, asyncio.timeout(5):
        assert not (await client.probe()).ok
        with pytest.raises(ReplicaError, match="/v1/models"):
            await client.models()
        assert (await client.load("x", "/x")).outcome is Outcome.ERROR
