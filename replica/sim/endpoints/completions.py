"""`/v1/completions`: text in, text out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from replica.sim.body import json_object, optional_text, require, whole_number
from replica.sim.desk import Desk, data, ending_in_done, now, request_id, stops_of
from replica.sim.errors import error, json_reply
from replica.sim.generation import Task, Token, whole
from replica.sim.http import Reply, Request, Stream
from replica.sim.tokens import from_ids, text_prompt

FINGERPRINT = "vllm-0.32.0-simulated"
_NOTHING_MORE = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


async def complete(desk: Desk, request: Request) -> Reply | Stream:
    body = json_object(request)
    model = optional_text(body, "model")
    require(body, "prompt")
    prompts = _prompts(body["prompt"])
    max_tokens = whole_number(body, "max_tokens", 16)
    copies = choices_of(body) * len(prompts)
    task = desk.task(model, prompts[0], max_tokens, stops_of(body))
    answer_id = request_id(request, "cmpl")
    if body.get("stream"):
        return Stream(ending_in_done(_chunks(desk, task, body, answer_id, copies)))
    result = await whole(desk.tokens(task))
    choice = {
        "text": result.text,
        "logprobs": None,
        "finish_reason": result.finish,
        "stop_reason": result.stop,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }
    return json_reply(
        {
            "id": answer_id,
            "object": "text_completion",
            "created": now(),
            "model": task.shown_model,
            "choices": [{"index": index} | choice for index in range(copies)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": full_usage(sum(map(len, prompts)), result.count * copies),
            **_NOTHING_MORE,
        }
    )


def choices_of(body: dict[str, Any]) -> int:
    count = whole_number(body, "n", 1) or 0
    if count < 1:
        raise error(400, "BadRequestError", f"n must be at least 1, got {count}.")
    return count


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def full_usage(prompt: int, completion: int) -> dict[str, Any]:
    return usage(prompt, completion) | {"prompt_tokens_details": None, "completion_tokens_details": None}


def last_extras(body: dict[str, Any], token: Token) -> dict[str, Any]:
    """Without a usage chunk the last chunk of a choice carries the fingerprint."""
    options = body.get("stream_options") or {}
    return {} if options.get("include_usage") or token.finish is None else {"system_fingerprint": FINGERPRINT}


def running_usage(body: dict[str, Any], task: Task, token: Token) -> dict[str, Any]:
    options = body.get("stream_options") or {}
    return {"usage": usage(len(task.prompt), token.count)} if options.get("continuous_usage_stats") else {}


def final_usage(body: dict[str, Any], task: Task, head: dict[str, Any], count: int) -> list[bytes]:
    if not (body.get("stream_options") or {}).get("include_usage"):
        return []
    return [data({**head, "choices": [], "usage": usage(len(task.prompt), count), "system_fingerprint": FINGERPRINT})]


async def _chunks(desk: Desk, task: Task, body: dict[str, Any], answer_id: str, copies: int) -> AsyncGenerator[bytes, None]:
    head = {"id": answer_id, "object": "text_completion", "created": now(), "model": task.shown_model}
    count = 0
    async with aclosing(desk.tokens(task)) as tokens:
        async for token in tokens:
            count = token.count
            for index in range(copies):
                choice = {
                    "index": index,
                    "text": token.text,
                    "logprobs": None,
                    "finish_reason": token.finish,
                    "stop_reason": token.stop,
                    "prompt_token_ids": None,
                    "token_ids": None,
                }
                extras = running_usage(body, task, token) | last_extras(body, token)
                yield data({**head, "choices": [choice], **extras})
    for chunk in final_usage(body, task, head, count * copies):
        yield chunk


def _prompts(prompt: Any) -> list[bytes]:
    """A text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [text_prompt(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(entry, int) for entry in prompt):
            return [from_ids(prompt)]
        return [one for entry in prompt for one in _prompts(entry)]
    raise error(400, "BadRequestError", "prompt must be a text, token ids, or a list of them")
