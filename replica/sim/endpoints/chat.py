"""`/v1/chat/completions`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from replica.sim.body import json_object, optional_text, require, whole_number
from replica.sim.desk import Desk, data, ending_in_done, now, request_id, stops_of
from replica.sim.endpoints.completions import (
    FINGERPRINT,
    choices_of,
    final_usage,
    full_usage,
    last_extras,
    running_usage,
)
from replica.sim.errors import invalid, json_reply
from replica.sim.generation import Task, Token, whole
from replica.sim.http import Reply, Request, Stream
from replica.sim.tokens import chat_prompt

_MESSAGE_REST = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
_CHOICE_REST = {"token_ids": None, "routed_experts": None}


async def chat(desk: Desk, request: Request) -> Reply | Stream:
    body = json_object(request)
    model = optional_text(body, "model")
    prompt = chat_prompt(messages_of(body))
    max_tokens = whole_number(body, "max_completion_tokens", None) or whole_number(body, "max_tokens", None)
    copies = choices_of(body)
    task = desk.task(model, prompt, max_tokens, stops_of(body))
    answer_id = request_id(request, "chatcmpl")
    if body.get("stream"):
        return Stream(ending_in_done(_chunks(desk, task, body, answer_id, copies)))
    result = await whole(desk.tokens(task))
    choice = {
        "message": {"role": "assistant", "content": result.text} | _MESSAGE_REST,
        "logprobs": None,
        "finish_reason": result.finish,
        "stop_reason": result.stop,
    }
    return json_reply(
        {
            "id": answer_id,
            "object": "chat.completion",
            "created": now(),
            "model": task.shown_model,
            "choices": [{"index": index} | choice | _CHOICE_REST for index in range(copies)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": full_usage(len(prompt), result.count * copies),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def messages_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    require(body, "messages")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise invalid(("list_type", "body.messages", "Input should be a valid list", messages))
    return [message for message in messages if isinstance(message, dict)]


async def _chunks(desk: Desk, task: Task, body: dict[str, Any], answer_id: str, copies: int) -> AsyncGenerator[bytes, None]:
    head = {"id": answer_id, "object": "chat.completion.chunk", "created": now(), "model": task.shown_model}
    count = 0
    async with aclosing(desk.tokens(task)) as tokens:
        async for token in tokens:
            count = token.count
            for index in range(copies):
                if token.count == 1:
                    yield data({**head, "choices": [_opening(index)], "prompt_token_ids": None, "prompt_text": None})
                extras = running_usage(body, task, token) | last_extras(body, token)
                yield data({**head, "choices": [_choice(index, token)], **extras})
    for chunk in final_usage(body, task, head, count * copies):
        yield chunk


def _opening(index: int) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _choice(index: int, token: Token) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": token.text}, "logprobs": None, "finish_reason": token.finish}
    ending = {} if token.finish is None else {"stop_reason": token.stop}
    return {**choice, **ending, "token_ids": None}
