"""The whole product on two real vLLM replicas: the gateway as a process of its own, adapters as folders on the disk.

One fleet for the whole file (a replica takes most of a minute to start), steps in order, each leaving the fleet whole.
Every adapter says a text of its own, so an answer shows which adapter, and which revision of it, gave it. Base answers
are asked for only while nothing else runs: the CPU build mixes adapters into base requests of the same batch.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from replica.tiny import make_adapter, make_model, trap_code
from tests.engines import Server, free_port, real_server
from tests.waiting import until_true

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

OLD, NEW = "SQL;", "table"
LONG = "Tell me all about it. " * 14  # more than two blocks of the prefix cache
STARTS_WITHIN = 300.0
LINGER = 5


class Fleet:
    """Two real replicas and a gateway process."""

    def __init__(self, root: Path) -> None:
        self.model, self.adapters = root / "model", root / "adapters"
        make_model(self.model)
        self.put("sql", OLD)
        self.put("poet", "rhyme")
        self.replicas = [
            real_server(self.model, root / f"replica-{n}.log", "--max-loras", "4", "--max-cpu-loras", "4") for n in (1, 2)
        ]
        port = free_port()
        command = [sys.executable, "-m", "gateway", "serve", "--adapter-dir", str(self.adapters), "--port", str(port)]
        command += [
            "--unload-linger",
            str(LINGER),
            "--scan-interval",
            "1",
            "--drift-interval",
            "3",
            "--probe-interval",
            "0.5",
        ]
        for replica in self.replicas:
            command += ["--replica", replica.url]
        self.gateway = Server(command, root / "gateway.log", port=port)
        self.client = httpx.AsyncClient(base_url=self.gateway.url, timeout=120, trust_env=False)

    def put(self, name: str, say: str) -> None:
        make_adapter(self.model, self.adapters / name, say=say)

    @property
    def ids(self) -> list[str]:
        return [f"127.0.0.1:{replica.port}" for replica in self.replicas]

    async def ask(self, model: str, prompt: str = "Hello", tokens: int = 8) -> tuple[str, str]:
        """The text, and the replica that gave it."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        answer = await self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return answer.json()["choices"][0]["text"], answer.headers["x-lora-gateway-replica"]

    async def everywhere(self, model: str, says: str, prompt: str = "Hello") -> None:
        """Each replica answers with the adapter's own text."""
        seen: set[str] = set()

        async def all_seen() -> bool:
            answers = await asyncio.gather(*(self.ask(model, prompt) for _ in range(4)))
            for text, replica in answers:
                assert text.startswith(says[: len(text)]), f"{model} on {replica} answered {text!r}"
                seen.add(replica)
            return len(seen) == len(self.replicas)

        await until_true(all_seen, 60, f"{model} from both replicas, not only {seen}")

    async def status(self) -> dict[str, Any]:
        document: dict[str, Any] = (await self.client.get("/admin/status")).json()
        return document

    async def settled(self, seconds: float = 60) -> None:
        """Both replicas are ready and hold every adapter at its current revision, and nothing else of ours."""

        async def holds() -> bool:
            status = await self.status()
            wanted = sorted(f"{row['name']}@{row['revision']}" for row in status["adapters"] if row["state"] == "ready")
            return all(replica["phase"] == "ready" and replica["held"] == wanted for replica in status["replicas"]) and len(
                wanted
            ) == len(status["adapters"])

        try:
            await until_true(holds, seconds)
        except AssertionError:
            raise AssertionError(json.dumps(await self.status(), indent=1) + self.gateway.tail()) from None

    async def start(self) -> None:
        for server in (*self.replicas, self.gateway):
            server.start()
        await asyncio.gather(*(replica.healthy(STARTS_WITHIN) for replica in self.replicas))
        await until_true(self._gateway_ready, 30, "the gateway is ready")

    async def _gateway_ready(self) -> bool:
        try:
            return (await self.client.get("/readyz")).status_code == 200
        except httpx.HTTPError:
            return False

    async def stop(self) -> None:
        await self.client.aclose()
        for server in (self.gateway, *self.replicas):
            await asyncio.to_thread(server.stop)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def test_before_anything_is_asked_every_adapter_is_listed_and_the_base_model_answers(fleet: Fleet) -> None:
    models = (await fleet.client.get("/v1/models")).json()["data"]
    assert [(m["id"], m["parent"]) for m in models] == [("tiny", None), ("poet", "tiny"), ("sql", "tiny")]
    text, _ = await fleet.ask("tiny")
    assert text


async def test_every_adapter_answers_with_its_own_text_on_both_replicas(fleet: Fleet) -> None:
    await fleet.everywhere("sql", OLD * 2)
    await fleet.everywhere("poet", "rhyme" * 2)
    await fleet.settled()


async def test_the_openai_client_gets_plain_and_streamed_answers(fleet: Fleet) -> None:
    async with openai.AsyncOpenAI(base_url=f"{fleet.gateway.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        plain = await client.chat.completions.create(model="sql", messages=messages, max_tokens=8, temperature=0)
        assert plain.model == "sql"
        assert plain.choices[0].message.content == OLD * 2
        stream = await client.chat.completions.create(model="sql", messages=messages, max_tokens=8, temperature=0, stream=True)
        chunks = [chunk async for chunk in stream]
        assert {chunk.model for chunk in chunks} == {"sql"}
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == OLD * 2


async def test_a_folder_dropped_in_is_served_when_it_is_named(fleet: Fleet) -> None:
    fleet.put("legal", "clause")
    assert (await fleet.ask("legal", tokens=6))[0] == "clause"
    await fleet.everywhere("legal", "clauseclause")
    await fleet.settled()


async def test_new_bytes_under_an_old_name_answer_long_prompts_too_on_both_replicas(fleet: Fleet) -> None:
    """vLLM keys its prefix cache by name and path: unload and load of the same would answer from the old bytes."""
    assert trap_code(OLD) != trap_code(NEW), "an answer from the old cache must be recognisable"
    await fleet.everywhere("sql", OLD * 2, LONG)
    fleet.put("sql", NEW)

    async def flipped() -> bool:
        text, _ = await fleet.ask("sql", LONG, tokens=5)
        assert text in (NEW, OLD + OLD[:1]), f"neither revision says {text!r}"
        return text == NEW

    await until_true(flipped, 30, "the new revision answers")
    await fleet.settled()
    await fleet.everywhere("sql", NEW * 2, LONG)
    await fleet.everywhere("sql", NEW * 2)


async def test_a_stream_on_the_old_revision_is_finished_by_it(fleet: Fleet) -> None:
    body = {"model": "poet", "prompt": "Hello", "max_tokens": 300, "temperature": 0, "stream": True}
    said = ""
    async with fleet.client.stream("POST", "/v1/completions", json=body) as stream:
        replaced = False
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert chunk["model"] == "poet"
                said += chunk["choices"][0]["text"] if chunk["choices"] else ""
            if said and not replaced:
                fleet.put("poet", "merci")
                replaced = True
    assert said == ("rhyme" * 60)[: len(said)]
    assert len(said) == 300
    await fleet.everywhere("poet", "mercimerci")
    await fleet.settled()


async def test_a_killed_replica_gets_its_adapters_again_and_nobody_hears_of_it(fleet: Fleet) -> None:
    victim = fleet.replicas[0]
    await asyncio.to_thread(victim.kill)
    answers = [await fleet.ask("sql") for _ in range(10)]
    assert {replica for _, replica in answers} == {fleet.ids[1]}
    victim.start()
    restarting = asyncio.create_task(victim.healthy(STARTS_WITHIN))
    while not restarting.done():
        assert (await fleet.ask("sql"))[0] == (NEW * 2)[:8]
    await restarting
    await fleet.settled()
    await fleet.everywhere("sql", NEW * 2, LONG)
    await fleet.everywhere("legal", "clauseclause")


async def test_junk_is_refused_with_its_reason_and_heals(fleet: Fleet) -> None:
    make_adapter(fleet.model, fleet.adapters / "big", say="wide", rank=64)
    body = {"model": "big", "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    refused = await fleet.client.post("/v1/completions", json=body)
    assert refused.status_code == 400, refused.text
    message = refused.json()["error"]["message"]
    assert message.startswith("Failed to load LoRA adapter 'big': ")
    assert "--max-lora-rank 64" in message
    assert (await fleet.ask("sql"))[0] == (NEW * 2)[:8]
    fleet.put("big", "wide")

    async def healed() -> bool:
        return (await fleet.client.post("/v1/completions", json=body)).status_code == 200

    await until_true(healed, 30, "the adapter is served once its files are right")
    assert (await fleet.ask("big", tokens=4))[0] == "wide"


async def test_a_removed_folder_is_unknown_and_its_adapter_is_unloaded(fleet: Fleet) -> None:
    shutil.rmtree(fleet.adapters / "big")

    async def unknown() -> bool:
        return (await fleet.client.post("/v1/completions", json={"model": "big", "prompt": "x"})).status_code == 404

    await until_true(unknown, 30, "the removed adapter is unknown")
    await fleet.settled()


async def test_deleted_files_kill_no_engine_even_when_the_adapter_was_evicted(fleet: Fleet) -> None:
    """vLLM reads an evicted adapter again from its path, and dies when the files are gone: it reads the snapshot."""
    others = {f"other-{number}": "abcde"[number:] + "xyz" for number in range(4)}
    for name, says in {"removed": "brisk", **others}.items():
        fleet.put(name, says)
        await fleet.everywhere(name, says * 2)
    await fleet.settled()
    served = [
        next(name for name, revision in replica["served_names"].items() if revision.startswith("removed@"))
        for replica in (await fleet.status())["replicas"]
    ]
    shutil.rmtree(fleet.adapters / "removed")
    for replica, name in zip(sorted(fleet.replicas, key=lambda r: f"127.0.0.1:{r.port}"), served, strict=True):
        async with httpx.AsyncClient(base_url=replica.url, timeout=60, trust_env=False) as direct:
            for model in (*others, "legal"):  # one more than the engine keeps in memory
                held = await direct.post("/v1/completions", json={"model": model, "prompt": "Hello", "max_tokens": 1})
                assert held.status_code == 200, held.text
            body = {"model": name, "prompt": "Hello", "max_tokens": 5, "temperature": 0}
            cold = await direct.post("/v1/completions", json=body)
            assert cold.status_code == 200, cold.text
            assert cold.json()["choices"][0]["text"] == "brisk"
            assert (await direct.get("/health")).status_code == 200
    await fleet.settled()
    assert all(replica.running for replica in fleet.replicas)


async def test_weights_cut_short_in_place_under_a_loaded_adapter_kill_no_engine(fleet: Fleet) -> None:
    """The engine maps the file, and dies of reading beyond its new end. A link shares the bytes, so the guard must see it."""
    fleet.put("cut", "merci")
    await fleet.everywhere("cut", "merci" * 2)
    await fleet.settled()
    for model in ("other-0", "other-1", "other-2", "other-3"):  # out of the slots, still in memory
        await fleet.everywhere(model, {f"other-{n}": "abcde"[n:] + "xyz" for n in range(4)}[model])
    os.truncate(fleet.adapters / "cut" / "adapter_model.safetensors", 0)
    answer = await fleet.client.post("/v1/completions", json={"model": "cut", "prompt": "Hello", "max_tokens": 5})
    assert answer.status_code in (400, 503), answer.text
    await fleet.everywhere("other-0", "abcdexyz")
    assert all(replica.running for replica in fleet.replicas)
    fleet.put("cut", "clause")

    async def whole() -> bool:
        answer = await fleet.client.post("/v1/completions", json={"model": "cut", "prompt": "Hello", "max_tokens": 1})
        return answer.status_code == 200

    await until_true(whole, 30, "the new files are served")
    await fleet.everywhere("cut", "clause")
