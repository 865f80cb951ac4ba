"""Inference endpoints: shapes, names, errors and streams, as vLLM 0.32 has them."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from tests.contract.subject import Client, Subject, completion, new_name, repeated, text_of
from tests.waiting import until_true

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
UNKNOWN = "The model `nosuch` does not exist. Valid aliases: tiny, alias."


@pytest.fixture
async def abc(client: Client, subject: Subject) -> str:
    """An adapter that says abc."""
    return await client.loaded(subject.adapter("abc"))


async def test_a_completion(client: Client, abc: str) -> None:
    answer = await client.complete(abc, tokens=5)
    body = answer.json()
    assert (body["object"], body["model"]) == ("text_completion", abc)
    assert re.fullmatch(r"cmpl-[0-9a-f]{16}", body["id"])
    choice = body["choices"][0]
    assert (choice["index"], choice["text"], choice["finish_reason"]) == (0, "abcab", "length")
    assert body["usage"]["prompt_tokens"] == 5 and body["usage"]["completion_tokens"] == 5
    assert body.keys() == {
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
        "kv_transfer_params", "ec_transfer_params", "metrics",
    }  # fmt: skip


async def test_a_chat_completion(client: Client, abc: str) -> None:
    body = (await client.post("/v1/chat/completions", {"model": abc, **CHAT})).json()
    assert (body["object"], body["model"]) == ("chat.completion", abc)
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{16}", body["id"])
    choice = body["choices"][0]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "abc")
    assert (choice["finish_reason"], body["usage"]["prompt_tokens"]) == ("length", 21)
    assert choice.keys() == {
        "index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts",
    }  # fmt: skip


async def test_json_is_compact_and_not_escaped(client: Client, subject: Subject) -> None:
    name = await client.loaded(subject.adapter("abc"), f"ünï-{new_name()}")
    answer = await client.complete(name)
    assert f'"model":"{name}"' in answer.text
    assert (answer.headers["content-type"], answer.headers["server"]) == ("application/json", "uvicorn")
    await client.unload(name)


async def test_stop_texts_end_an_answer(client: Client, abc: str) -> None:
    choice = (await client.complete(abc, tokens=20, stop="c")).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", "c")


async def test_several_prompts_and_copies_are_several_choices(client: Client, abc: str) -> None:
    body = (await client.post("/v1/completions", completion(abc, "x", 3) | {"prompt": ["Hello", "Hi"]})).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "abc"), (1, "abc")]


async def test_messages_have_anthropics_shape(client: Client, abc: str) -> None:
    body = (await client.post("/v1/messages", {"model": abc, **CHAT})).json()
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", abc)
    assert body["content"] == [{"type": "text", "text": "abc"}]
    assert body["stop_reason"] == "max_tokens"
    assert body["usage"] == {"input_tokens": 21, "output_tokens": 3}


async def test_a_stream_of_messages_is_named_events(client: Client, abc: str) -> None:
    answer = await client.post("/v1/messages", {"model": abc, **CHAT, "stream": True})
    events = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert list(dict.fromkeys(events)) == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    first = json.loads(answer.text.splitlines()[1].removeprefix("data: "))
    assert first["message"]["model"] == abc


async def test_responses_and_their_stream(client: Client, abc: str) -> None:
    body = {"model": abc, "input": "Hi", "max_output_tokens": 3, "temperature": 0}
    whole = (await client.post("/v1/responses", body)).json()
    assert (whole["object"], whole["model"], whole["status"]) == ("response", abc, "incomplete")
    assert whole["output"][0]["content"][0]["text"] == "abc"
    stream = await client.post("/v1/responses", body | {"stream": True})
    lines = [json.loads(line.removeprefix("data: ")) for line in stream.text.splitlines() if line.startswith("data: ")]
    assert [line["type"] for line in lines if "delta" not in line["type"]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [line["sequence_number"] for line in lines] == list(range(len(lines)))
    assert "".join(line["delta"] for line in lines if line["type"] == "response.output_text.delta") == "abc"
    assert lines[0]["response"].keys() == whole.keys()
    assert "[DONE]" not in stream.text


async def test_tokenize_and_back(client: Client, abc: str) -> None:
    plain = (await client.post("/tokenize", {"model": abc, "prompt": "Hi\n\u00e9"})).json()
    assert plain["count"] == 5 and plain["max_model_len"] == 512
    assert (await client.post("/detokenize", {"model": abc, "tokens": plain["tokens"]})).json() == {"prompt": "Hi\n\u00e9"}
    chat = (await client.post("/tokenize", {"model": abc, "messages": CHAT["messages"]})).json()
    assert (chat["count"], chat["tokens"][:8]) == (21, [3, 89, 87, 73, 86, 203, 44, 77])


@pytest.mark.parametrize("asked", [None, "", "tiny", "alias"])
async def test_without_a_model_or_by_an_alias_the_base_model_answers(client: Client, asked: str | None) -> None:
    answer = await client.complete(asked, tokens=2)
    assert answer.status_code == 200 and answer.json()["model"] == "tiny"


async def test_a_null_model_is_the_base_model(client: Client) -> None:
    answer = await client.post("/v1/completions", completion(None, "x", 2) | {"model": None})
    assert answer.json()["model"] == "tiny"


async def test_of_two_model_keys_the_last_wins(client: Client, abc: str) -> None:
    body = f'{{"model":"nosuch","model":"{abc}","prompt":"x","max_tokens":2}}'
    answer = await client.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.json()["model"] == abc


@pytest.mark.parametrize(
    "path, body",
    [
        pytest.param("/v1/completions", {"prompt": "x"}, id="completions"),
        pytest.param("/v1/chat/completions", CHAT, id="chat"),
        pytest.param("/v1/chat/completions", CHAT | {"stream": True}, id="chat-stream"),
        pytest.param("/v1/responses", {"input": "x"}, id="responses"),
        pytest.param("/tokenize", {"prompt": "x"}, id="tokenize"),
        pytest.param("/detokenize", {"tokens": [44]}, id="detokenize"),
    ],
)
async def test_an_unknown_model_is_404_with_param_model(client: Client, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, {"model": "nosuch", **body})
    error = {"message": UNKNOWN, "type": "NotFoundError", "param": "model", "code": 404}
    assert (answer.status_code, answer.json()) == (404, {"error": error})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_an_unknown_model_of_messages_has_anthropics_shape(client: Client, path: str) -> None:
    answer = await client.post(path, {"model": "nosuch", **CHAT})
    error = {"type": "NotFoundError", "message": UNKNOWN}
    assert (answer.status_code, answer.json()) == (404, {"type": "error", "error": error})


@pytest.mark.parametrize("change", [str.upper, lambda name: name + " ", lambda name: " " + name])
async def test_names_are_compared_whole(client: Client, abc: str, change: Any) -> None:
    assert (await client.complete(change(abc))).status_code == 404


@pytest.mark.parametrize(
    "path, body, error_type, param",
    [
        pytest.param("/v1/chat/completions", {"max_tokens": 3}, "Bad Request", "body.messages", id="no-messages"),
        pytest.param("/v1/completions", {"model": 7, "prompt": "x"}, "Bad Request", "body.model", id="number-as-model"),
        pytest.param("/v1/messages", CHAT, "Bad Request", "body.model", id="messages-without-model"),
        pytest.param("/v1/chat/completions", [], "Bad Request", "body", id="list"),
        pytest.param("/v1/completions", {"prompt": "x" * 600}, "BadRequestError", "input_tokens", id="prompt-too-long"),
        pytest.param(
            "/v1/completions",
            {"prompt": "x", "max_tokens": 5000},
            "BadRequestError",
            "max_tokens",
            id="too-many-tokens",
        ),
        pytest.param("/v1/completions", {"prompt": "x", "n": 0}, "BadRequestError", None, id="no-choices"),
    ],
)
async def test_bad_requests(client: Client, path: str, body: Any, error_type: str, param: str | None) -> None:
    answer = await client.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"], error["code"]) == (400, error_type, param, 400)


async def test_a_generating_model_has_no_embeddings(client: Client, abc: str) -> None:
    for path in ("/v1/embeddings", "/pooling", "/v1/score", "/rerank", "/classify"):
        answer = await client.post(path, {"model": abc, "input": "x"})
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"}), path


async def test_the_clients_request_id_becomes_part_of_the_answers_id(client: Client, abc: str) -> None:
    headers = {"x-request-id": "my-id"}
    answer = await client.http.post("/v1/completions", json=completion(abc, "x", 1), headers=headers)
    assert answer.json()["id"] == "cmpl-my-id"
    assert "x-request-id" not in answer.headers


async def test_a_streamed_completion(client: Client, abc: str) -> None:
    async with client.http.stream("POST", "/v1/completions", json=completion(abc, "Hi", 3, stream=True)) as answer:
        lines = [line async for line in answer.aiter_lines()]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert lines[1::2] == [""] * (len(lines) // 2) and lines[-2] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2:2]]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "abc"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert {chunk["model"] for chunk in chunks} == {abc} and len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0].keys() == {"id", "object", "created", "model", "choices"}
    assert chunks[-1].keys() == {"id", "object", "created", "model", "choices", "system_fingerprint"}


async def test_a_streamed_chat_with_usage(client: Client, abc: str) -> None:
    body = {"model": abc, **CHAT, "stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post("/v1/chat/completions", body)
    *lines, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    opening, *tokens, usage = [json.loads(line) for line in lines]
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in tokens) == "abc"
    assert (usage["choices"], usage["model"], done) == ([], abc, "[DONE]")
    assert usage["usage"] == {"prompt_tokens": 21, "total_tokens": 24, "completion_tokens": 3}


async def test_a_client_that_leaves_ends_the_work(client: Client, subject: Subject, abc: str) -> None:
    async with subject.client() as leaving, leaving.stream(abc, 400) as lines:
        assert text_of(await anext(aiter(lines))).startswith("a")
        assert await client.gauge("vllm:num_requests_running") == 1

    async def nothing_runs() -> bool:
        return await client.gauge("vllm:num_requests_running") == 0

    await until_true(nothing_runs, 1.5)


async def test_a_client_that_gives_up_waiting_ends_the_work(client: Client, subject: Subject, abc: str) -> None:
    async with subject.client() as leaving:
        with pytest.raises(httpx.ReadTimeout):
            await leaving.http.post("/v1/completions", json=completion(abc, "x", 400), timeout=0.3)

    async def nothing_runs() -> bool:
        return await client.gauge("vllm:num_requests_running") == 0

    await until_true(nothing_runs, 1.5)


async def test_an_idle_connection_is_closed_after_five_seconds(subject: Subject) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", subject.server.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(8):
        assert await reader.read() == b""
    assert 4.5 < loop.time() - began < 6
    writer.close()


async def test_a_chunked_request_body_is_read(client: Client, abc: str) -> None:
    async def body() -> Any:
        yield json.dumps(completion(abc, "x", 2)).encode()[:10]
        yield json.dumps(completion(abc, "x", 2)).encode()[10:]

    headers = {"content-type": "application/json"}
    answer = await client.http.post("/v1/completions", content=body(), headers=headers)
    assert answer.json()["choices"][0]["text"] == repeated("abc", 2)


async def test_metrics_that_a_router_reads_are_there_from_the_start(client: Client) -> None:
    text = (await client.http.get("/metrics")).text
    series = {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    labels = 'engine="0",model_name="tiny"'
    assert {
        "process_start_time_seconds",
        f"vllm:num_requests_running{{{labels}}}",
        f"vllm:num_requests_waiting{{{labels}}}",
        f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}}',
        f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}}',
        f"vllm:kv_cache_usage_perc{{{labels}}}",
        f"vllm:time_to_first_token_seconds_count{{{labels}}}",
    } <= series
