"""`/v1/messages` and its token count: Anthropic's shapes, errors of unknown models too."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from replica.sim.body import json_object, optional_text, require, whole_number
from replica.sim.desk import Desk, event, request_id, stops_of
from replica.sim.endpoints.chat import messages_of
from replica.sim.engine import DEATH_NOTE, EngineDead
from replica.sim.errors import Refused, json_reply, unknown_model_text
from replica.sim.generation import Task, whole
from replica.sim.http import Reply, Request, Stream
from replica.sim.tokens import chat_prompt

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


async def message(desk: Desk, request: Request) -> Reply | Stream:
    body = json_object(request)
    require(body, "model", "messages", "max_tokens")
    model, prompt = _model(desk, body), _prompt(body)
    task = desk.task(model, prompt, whole_number(body, "max_tokens", None), stops_of({"stop": body.get("stop_sequences")}))
    answer_id = request_id(request, "chatcmpl")
    if body.get("stream"):
        return Stream(_events(desk, task, answer_id))
    result = await whole(desk.tokens(task))
    return json_reply(
        {
            "id": answer_id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": result.text}],
            "model": task.shown_model,
            "stop_reason": "stop_sequence" if result.stop else _STOP_REASONS[result.finish],
            "usage": {"input_tokens": len(prompt), "output_tokens": result.count},
        }
    )


async def count_tokens(desk: Desk, request: Request) -> Reply:
    body = json_object(request)
    require(body, "model", "messages")
    _model(desk, body)
    length = len(_prompt(body))
    return json_reply({"input_tokens": length, "context_management": {"original_input_tokens": length}})


def _model(desk: Desk, body: dict[str, Any]) -> str | None:
    model = optional_text(body, "model")
    if model and model not in desk.options.model_names and model not in desk.names.loaded:
        text = unknown_model_text(model, desk.options.model_names)
        raise Refused(json_reply({"type": "error", "error": {"type": "NotFoundError", "message": text}}, 404))
    return model


def _prompt(body: dict[str, Any]) -> bytes:
    system = body.get("system")
    return chat_prompt([*([{"role": "system", "content": system}] if system else []), *messages_of(body)])


async def _events(desk: Desk, task: Task, answer_id: str) -> AsyncGenerator[bytes, None]:
    opening: dict[str, Any] = {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": task.shown_model,
    }
    opening |= {
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": len(task.prompt), "output_tokens": 0},
    }
    count, reason = 0, "max_tokens"
    try:
        async with aclosing(desk.tokens(task)) as tokens:
            async for token in tokens:
                if not count:
                    yield event({"type": "message_start", "message": opening})
                    block = {"type": "text", "text": ""}
                    yield event({"type": "content_block_start", "content_block": block, "index": 0})
                count, reason = token.count, _STOP_REASONS[token.finish or "length"]
                delta = {"type": "text_delta", "text": token.text}
                yield event({"type": "content_block_delta", "delta": delta, "index": 0})
    except EngineDead:
        yield event({"type": "error", "error": {"type": "InternalServerError", "message": DEATH_NOTE}})
        return
    yield event({"type": "content_block_stop", "index": 0})
    ending: dict[str, Any] = {"stop_reason": reason, "stop_sequence": None}
    used = {"input_tokens": len(task.prompt), "output_tokens": count}
    yield event({"type": "message_delta", "delta": ending, "usage": used})
    yield event({"type": "message_stop"})
