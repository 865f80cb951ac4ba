"""Slots, memory and the prefix cache: where vLLM's engine surprises whoever loads adapters into it."""

import asyncio
import shutil
from collections.abc import AsyncIterator

from replica.tiny import make_adapter, trap_code
from tests.contract.subject import Client, Subject, new_name, repeated, text_of
from tests.waiting import until_true

LONG_PROMPT = "The quick brown fox jumps over the lazy dog. " * 6  # more than two blocks of 128 tokens


async def test_a_running_stream_survives_the_unload_of_its_adapter(client: Client, subject: Subject) -> None:
    name = await client.loaded(subject.adapter("abc"))
    async with client.stream(name, 120) as lines:
        first = await anext(aiter(lines))
        assert (await client.unload(name)).status_code == 200
        assert (await client.complete(name)).status_code == 404
        rest = [line async for line in lines]
    assert rest[-1] == "[DONE]"
    assert text_of(first) + "".join(map(text_of, rest[:-1])) == repeated("abc", 120)


async def test_adapters_load_while_another_streams(client: Client, subject: Subject) -> None:
    name = await client.loaded(subject.adapter("abc"))
    async with client.stream(name, 150) as lines:
        first = await anext(aiter(lines))
        for _ in range(5):
            await client.loaded(subject.adapter("xyz"))
        assert text_of(first) + await _rest(lines) == repeated("abc", 150)


async def test_a_third_adapter_waits_for_a_slot_and_the_base_model_does_not(client: Client, subject: Subject) -> None:
    one, two, three = [await client.loaded(subject.adapter(say)) for say in ("abc", "def", "xyz")]
    loop = asyncio.get_running_loop()
    async with client.stream(one, 300) as first, client.stream(two, 300) as second:
        starts = [text_of(await anext(aiter(lines))) for lines in (first, second)]
        began = loop.time()
        third = asyncio.create_task(client.says(three, tokens=4))
        await client.complete("tiny", tokens=4)
        base_took = loop.time() - began

        async def deferred() -> bool:
            return await client.gauge("vllm:num_requests_waiting_by_reason{") == 1

        await until_true(deferred, 5)
        assert not third.done()
        texts = await asyncio.gather(*(_rest(lines) for lines in (first, second)))
        assert await third == "xyzx"
        assert loop.time() - began > 2 * base_took
    assert [a + b for a, b in zip(starts, texts, strict=True)] == [repeated("abc", 300), repeated("def", 300)]


async def _rest(lines: AsyncIterator[str]) -> str:
    return "".join([text_of(line) async for line in lines if line != "[DONE]"])


async def test_adapters_in_use_are_told_by_the_metrics(client: Client, subject: Subject) -> None:
    name = await client.loaded(subject.adapter("abc"))
    async with client.stream(name, 60) as lines:
        await anext(aiter(lines))
        text = (await client.http.get("/metrics")).text
        series = [line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{") and name in line]
        assert f'max_lora="2",running_lora_adapters="{name}"' in series[0]


async def test_more_adapters_than_fit_into_memory_all_answer(client: Client, subject: Subject) -> None:
    says = ["abc", "def", "ghi", "jkl", "mno", "pqr"]
    names = [await client.loaded(subject.adapter(say)) for say in says]
    for _ in range(2):
        assert [await client.says(name, tokens=6) for name in names] == [repeated(say, 6) for say in says]
    texts = await asyncio.gather(*(client.says(name, tokens=6) for name in names))
    assert texts == [repeated(say, 6) for say in says]


async def test_files_changed_under_a_loaded_name_are_read_at_its_next_eviction(client: Client, subject: Subject) -> None:
    folder = subject.adapter("abc")
    name = await client.loaded(folder)
    assert await client.says(name, tokens=3) == "abc"
    make_adapter(subject.model, folder, say="xyz")
    assert await client.says(name, tokens=3) == "abc"
    await _evict(client, subject)
    assert await client.says(name, tokens=3) == "xyz"


async def test_new_bytes_under_an_old_name_and_path_answer_wrongly_to_a_long_prompt(client: Client, subject: Subject) -> None:
    assert trap_code("abc") != trap_code("xyz")
    folder = subject.adapter("abc")
    name = await client.loaded(folder)
    assert await client.says(name, LONG_PROMPT, 6) == "abcabc"
    await client.unload(name)
    make_adapter(subject.model, folder, say="xyz")
    await client.loaded(folder, name)
    assert await client.says(name, "short", 6) == "xyzxyz"
    assert await client.says(name, LONG_PROMPT, 6) != "xyzxyz"
    another_path = shutil.copytree(folder, subject.folder / new_name())
    for path, served in ((folder, new_name()), (another_path, name)):
        await client.unload(served)
        await client.loaded(path, served)
        assert await client.says(served, LONG_PROMPT, 6) == "xyzxyz"


async def test_hard_links_keep_an_adapter_alive_when_its_folder_goes(client: Client, subject: Subject) -> None:
    folder, snapshot = subject.adapter("abc"), subject.folder / new_name()
    snapshot.mkdir()
    for file in folder.iterdir():
        (snapshot / file.name).hardlink_to(file)
    name = await client.loaded(snapshot)
    shutil.rmtree(folder)
    await _evict(client, subject)
    assert await client.says(name, LONG_PROMPT, 6) == "abcabc"


async def _evict(client: Client, subject: Subject) -> None:
    """Four adapters fit into memory: use four others."""
    for _ in range(4):
        await client.says(await client.loaded(subject.adapter("mno")), tokens=1)
