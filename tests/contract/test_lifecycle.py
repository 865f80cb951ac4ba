"""How a replica starts, refuses, drains and dies. Each test has a replica of its own."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from replica.serve import launch
from tests.contract.subject import LOAD, Client, Subject, completion, new_name, repeated, server, text_of
from tests.engines import Server, free_port
from tests.waiting import until_true

DEATH = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@asynccontextmanager
async def own(running: Server, kind: str, model: Path, folder: Path) -> AsyncIterator[Subject]:
    running.start()
    try:
        await running.healthy()
        yield Subject(kind, running, model, folder)
    finally:
        await asyncio.to_thread(running.stop)


async def test_an_adapter_whose_files_went_kills_the_engine_once_it_was_evicted(kind: str, model: Path, tmp_path: Path) -> None:
    running = server(kind, model, tmp_path / "log", max_loras="2", max_cpu_loras="2")
    async with own(running, kind, model, tmp_path) as subject, subject.client() as client:
        started = await client.gauge("process_start_time_seconds")
        folder = subject.adapter("abc")
        doomed, other = await client.loaded(folder), await client.loaded(subject.adapter("xyz"))
        shutil.rmtree(folder)
        assert await client.says(doomed, tokens=3) == "abc"
        for _ in range(2):
            await client.says(await client.loaded(subject.adapter("mno")), tokens=1)
        async with client.stream(other, 400) as lines:
            assert text_of(await anext(aiter(lines))).startswith("x")
            answer = await client.complete(doomed)
            error = {"message": DEATH, "type": "InternalServerError", "param": None, "code": 500}
            assert (answer.status_code, answer.json()) == (500, {"error": error})
            rest = [line async for line in lines]
        assert rest[-1] == "[DONE]"
        assert httpx.Response(200, text=rest[-2]).json() == {"error": error}
        assert await running.ended(20) == 0  # an engine's death is no failure to whoever supervises the process
        with pytest.raises(httpx.ConnectError):
            await client.http.get("/health")

        running.start()
        await running.healthy()
        assert [entry["id"] for entry in await client.models()] == ["tiny"]
        assert await client.gauge("process_start_time_seconds") > started


async def test_behind_an_api_key_and_draining_after_sigterm(kind: str, model: Path, tmp_path: Path) -> None:
    running = server(kind, model, tmp_path / "log", api_key="s3cret", shutdown_timeout="30")
    async with own(running, kind, model, tmp_path) as subject:
        async with subject.client() as stranger:
            for answer in (
                await stranger.http.get("/v1/models"),
                await stranger.complete("tiny"),
                await stranger.load("x", "/x"),
                await stranger.http.post("/v1/nosuch", headers={"authorization": "Bearer wrong"}),
                await stranger.http.get("/v1/models", headers={"x-api-key": "s3cret"}),
            ):
                assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
            assert (await stranger.http.get("/health")).status_code == 200
            assert (await stranger.http.get("/metrics")).status_code == 200
            assert (await stranger.post("/tokenize", {"prompt": "x"})).status_code == 200
            bearer = {"authorization": "bearer s3cret"}
            assert (await stranger.http.get("/v1/models", headers=bearer)).status_code == 200
        # a connection on which a draining replica has refused something is closed: none is used twice here
        async with subject.client(authorization="Bearer s3cret", connection="close") as client:
            await _drains(client, subject)


async def _drains(client: Client, subject: Subject) -> None:
    name = await client.loaded(subject.adapter("abc"))
    async with client.stream(name, 450) as lines:
        first = await anext(aiter(lines))
        subject.server.terminate()

        async def refuses() -> bool:
            return (await client.complete(name, tokens=1)).status_code == 500

        await until_true(refuses, 3)
        answer = await client.complete(name, tokens=1)
        assert answer.json()["error"]["message"] == "cannot schedule new futures after shutdown"
        answer = await client.post("/v1/completions", completion(name, "x", 4, stream=True))
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")
        await _closes_the_connection_without_saying_so(client, subject, name)
        answer = await client.load(new_name(), subject.adapter("xyz"))
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "Server shutting down")
        assert (await client.http.get("/health")).status_code == 200
        assert name in [entry["id"] for entry in await client.models()]
        rest = [line async for line in lines]
    assert rest[-1] == "[DONE]"
    assert text_of(first) + "".join(map(text_of, rest[:-1])) == repeated("abc", 450)
    await subject.server.ended(30)


async def _closes_the_connection_without_saying_so(client: Client, subject: Subject, name: str) -> None:
    body = json.dumps(completion(name, "x", 1)).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Authorization: {client.http.headers['authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", subject.server.port)
    writer.write(head.encode() + body)
    async with asyncio.timeout(3):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 500 ") and b"\r\nconnection: " not in answer.lower()


async def test_without_lora_loads_are_500_and_every_alias_answers(kind: str, model: Path, tmp_path: Path) -> None:
    running = server(kind, model, tmp_path / "log", "one", "two", no_enable_lora=None)
    async with own(running, kind, model, tmp_path) as subject, subject.client() as client:
        answer = await client.load(new_name(), subject.adapter("abc"))
        message = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, message)
        assert [entry["id"] for entry in await client.models()] == ["one", "two"]
        assert (await client.complete("two", tokens=2)).json()["model"] == "one"


async def test_without_run_time_loading_there_is_no_load_endpoint(kind: str, model: Path, tmp_path: Path) -> None:
    running = _without_runtime_loading(kind, model, tmp_path / "log")
    async with own(running, kind, model, tmp_path) as subject, subject.client() as client:
        answer = await client.post(LOAD, {"lora_name": "x", "lora_path": str(subject.adapter("abc"))})
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
        assert (await client.unload("x")).json() == {"detail": "Not Found"}
        assert (await client.complete("tiny", tokens=2)).status_code == 200


def _without_runtime_loading(kind: str, model: Path, log: Path) -> Server:
    if kind == "sim":
        return server(kind, model, log, no_runtime_lora=None)
    port = free_port()
    arguments = [str(model), "--cpu-lean", "--port", str(port), "--served-model-name", "tiny"]
    wanted = launch(arguments, os.environ)
    environment = {**wanted.environment, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "False"}
    return Server(wanted.command, log, port=port, environment=environment)


async def test_killed_and_started_again_on_its_port_it_has_forgotten_everything(kind: str, model: Path, tmp_path: Path) -> None:
    running = server(kind, model, tmp_path / "log")
    async with own(running, kind, model, tmp_path) as subject, subject.client() as client:
        name = await client.loaded(subject.adapter("abc"))
        async with client.stream(name, 400) as lines:
            await anext(aiter(lines))
            running.kill()
            with pytest.raises(httpx.HTTPError):
                async for _ in lines:
                    pass
        with pytest.raises(httpx.ConnectError):
            await client.http.get("/health")
        running.start()
        await running.healthy()
        assert [entry["id"] for entry in await client.models()] == ["tiny"]
        assert (await client.complete(name)).status_code == 404
        await client.loaded(subject.adapter("xyz"), name)
        assert await client.says(name, tokens=3) == "xyz"
