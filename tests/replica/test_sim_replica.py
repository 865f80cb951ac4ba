"""A simulated replica's life, its journal, its other endpoints, and many of them at once."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from replica.sim import Sim
from tests.contract.subject import completion
from tests.replica.simulated import adapter, client_of
from tests.waiting import until


async def test_while_it_starts_connections_are_refused(tmp_path: Path) -> None:
    async with Sim(start_seconds=0.3) as sim, client_of(sim) as client:
        with pytest.raises(httpx.ConnectError):
            await client.http.get("/health")
        await until(lambda: sim.healthy)
        assert (await client.http.get("/health")).status_code == 200


async def test_or_the_port_is_open_and_it_is_not_healthy(tmp_path: Path) -> None:
    async with Sim(start_seconds=0.3, start_open=True) as sim, client_of(sim) as client:
        assert (await client.http.get("/health")).status_code == 503
        assert (await client.load("x", adapter(tmp_path))).status_code == 503
        await until(lambda: sim.healthy)
        assert (await client.load("x", adapter(tmp_path))).status_code == 200


async def test_only_what_it_mounts_is_found(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
    async with Sim(adapter_dirs=(inside,)) as sim, client_of(sim) as client:
        assert (await client.load("x", adapter(inside))).status_code == 200
        assert (await client.load("y", adapter(outside))).status_code == 404


async def test_without_a_shutdown_timeout_sigterm_leaves_requests_hanging() -> None:
    async with Sim(token_seconds=0.01) as sim, client_of(sim) as client:
        async with client.stream("tiny", 1000) as lines:
            await anext(aiter(lines))
            ending = asyncio.create_task(sim.terminate())
            reading = asyncio.ensure_future(_all(lines))
            done, _ = await asyncio.wait({reading}, timeout=0.5)
            assert not done
            async with client_of(sim) as other:
                with pytest.raises(httpx.ConnectError):
                    await other.http.get("/health")
            assert not ending.done()
            reading.cancel()
        await asyncio.wait_for(ending, 3)
        assert sim.exited.is_set()


async def _all(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines]


async def test_the_journal_tells_who_left_and_what_was_sent(tmp_path: Path) -> None:
    async with Sim(token_seconds=0.01) as sim, client_of(sim, authorization="Bearer mine") as client:
        name = await client.loaded(adapter(tmp_path, "abc"))
        async with client.stream(name, 1000) as lines:
            await anext(aiter(lines))
            await until(lambda: sim.running == 1)
        await until(lambda: sim.running == 0, 1)
        body = json.dumps(completion(name, "x", 2)).encode()
        await client.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        gone, whole = sim.journal.inference(name)
        assert gone.left and gone.ended_at is not None and gone.headers["authorization"] == "Bearer mine"
        assert (whole.left, whole.status, whole.body_sha256) == (False, 200, hashlib.sha256(body).hexdigest())
        assert sim.journal.counts["POST /v1/completions"] == 2


async def test_two_revisions_without_a_text_say_different_things(tmp_path: Path) -> None:
    async with Sim() as sim, client_of(sim) as client:
        names = [await client.loaded(adapter(tmp_path, seed=seed)) for seed in (1, 2, 1)]
        one, two, again = [await client.says(name, tokens=12) for name in names]
        assert one == again != two


async def test_one_name_loaded_twice_under_running_streams_kills_the_engine(tmp_path: Path) -> None:
    async with Sim(token_seconds=0.01) as sim, client_of(sim) as client:
        name = await client.loaded(adapter(tmp_path, "abc"))
        async with client.stream(name, 500) as first:
            await anext(aiter(first))
            await client.unload(name)
            await client.loaded(adapter(tmp_path, "def"), name)
            async with client.stream(name, 500) as second:
                await anext(aiter(second))
                assert (await client.load("third", adapter(tmp_path))).status_code == 500
                assert [line async for line in second][-1] == "[DONE]"
        await asyncio.wait_for(sim.exited.wait(), 3)


@pytest.mark.parametrize(
    "path, body, field",
    [
        ("/v1/embeddings", {"input": ["x", "y"]}, "data"),
        ("/pooling", {"input": "x"}, "data"),
        ("/classify", {"input": "x"}, "data"),
        ("/v1/score", {"text_1": "x", "text_2": ["y", "z"]}, "data"),
        ("/v2/rerank", {"query": "x", "documents": ["y", "z"]}, "results"),
    ],
)
async def test_pooling_endpoints_tell_adapters_apart(tmp_path: Path, path: str, body: dict[str, object], field: str) -> None:
    async with Sim() as sim, client_of(sim) as client:
        names = [await client.loaded(adapter(tmp_path, say)) for say in ("abc", "def")]
        answers = [(await client.post(path, {"model": name, **body})).json() for name in (*names, "tiny")]
        assert [answer["model"] for answer in answers] == [*names, "tiny"]
        assert len({json.dumps(answer[field]) for answer in answers}) == 3
        assert (await client.post(path, {"model": "nosuch", **body})).status_code == 404


async def test_a_transcription_takes_its_model_from_the_form(tmp_path: Path) -> None:
    async with Sim() as sim, client_of(sim) as client:
        name = await client.loaded(adapter(tmp_path, "abc"))
        sound = {"file": ("a.wav", b"\0" * 100_000, "audio/wav")}
        answer = await client.http.post("/v1/audio/transcriptions", files=sound, data={"model": name})
        assert (answer.status_code, answer.json()["text"]) == (200, "abc")
        broken = {"content-type": "multipart/form-data; boundary=x"}
        answer = await client.http.post("/v1/audio/transcriptions", content=b"junk", headers=broken)
        assert answer.status_code == 400
        assert sim.journal.inference(name)


async def test_512_streams_at_once_are_all_served() -> None:
    async with Sim(max_num_seqs=600, token_seconds=0.02) as sim:
        body = json.dumps(completion("tiny", "x", 20, stream=True)).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body

        async def one() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
            writer.write(request)
            answer = await reader.read()
            writer.close()
            return answer

        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(one() for _ in range(512)))
        assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in answers)


async def test_a_hundred_replicas_fit_into_one_process(tmp_path: Path) -> None:
    folder = adapter(tmp_path, "abc")
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(Sim()) for _ in range(100)]
        for sim in sims:
            async with client_of(sim) as client:
                assert await client.says(await client.loaded(folder, "x"), tokens=3) == "abc"
        assert all(list(sim.loaded) == ["x"] for sim in sims)
