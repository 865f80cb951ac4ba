"""`/v1/responses`."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from replica.sim.body import json_object, optional_text, require, whole_number
from replica.sim.desk import Desk, event, now, request_id
from replica.sim.engine import DEATH_NOTE, EngineDead
from replica.sim.errors import json_reply
from replica.sim.generation import Task, whole
from replica.sim.http import Reply, Request, Stream
from replica.sim.tokens import chat_prompt


async def respond(desk: Desk, request: Request) -> Reply | Stream:
    body = json_object(request)
    model = optional_text(body, "model")
    require(body, "input")
    prompt = _prompt(body)
    task = desk.task(model, prompt, whole_number(body, "max_output_tokens", None))
    answer = _Answer(task, body, request_id(request, "resp").replace("-", "_", 1), f"msg_{secrets.token_hex(8)}")
    if body.get("stream"):
        return Stream(_events(desk, task, answer))
    result = await whole(desk.tokens(task))
    return json_reply(answer.finished(result.text, result.count, result.finish))


class _Answer:
    """The response object at its stages."""

    def __init__(self, task: Task, body: dict[str, Any], answer_id: str, item_id: str) -> None:
        self.item_id = item_id
        self._prompt = len(task.prompt)
        self._fixed = {
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": task.shown_model,
            "object": "response",
        }
        self._start = {"id": answer_id, "created_at": now()}
        self._max_tokens = task.max_tokens
        self._temperature = body.get("temperature", 1.0)

    def begun(self) -> dict[str, Any]:
        return self._whole(None, [], "in_progress", None)

    def finished(self, text: str, count: int, finish: str) -> dict[str, Any]:
        cut = finish == "length"
        status = "incomplete" if cut else "completed"
        details = {"reason": "max_output_tokens"} if cut else None
        return self._whole(details, [self.item("completed", text)], status, self._usage(count))

    def item(self, status: str, text: str | None) -> dict[str, Any]:
        content = [] if text is None else [part(text)]
        item = {"id": self.item_id, "content": content, "role": "assistant", "status": status}
        return item | {"type": "message", "phase": None}

    def _whole(
        self, incomplete: dict[str, Any] | None, output: list[Any], status: str, usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        settings = {"parallel_tool_calls": True, "temperature": self._temperature, "tool_choice": "none", "tools": []}
        limits = {"top_p": 1.0, "background": False, "max_output_tokens": self._max_tokens, "max_tool_calls": None}
        rest = {"previous_response_id": None, "prompt": None, "reasoning": None, "service_tier": "auto"}
        ending = {"status": status, "text": None, "top_logprobs": None, "truncation": "disabled", "usage": usage}
        tail = {"user": None, "presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": None}
        tail |= {"ec_transfer_params": None, "input_messages": None, "output_messages": None}
        begin = {**self._start, "incomplete_details": incomplete, **self._fixed, "output": output}
        return {**begin, **settings, **limits, **rest, **ending, **tail}

    def _usage(self, count: int) -> dict[str, Any]:
        cached = {"cached_tokens": 0, "cache_write_tokens": 0}
        reasoning = {"reasoning_tokens": 0, "tool_output_tokens": 0}
        return {
            "input_tokens": self._prompt,
            "input_tokens_details": cached | {"input_tokens_per_turn": [], "cached_tokens_per_turn": []},
            "output_tokens": count,
            "output_tokens_details": reasoning | {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
            "total_tokens": self._prompt + count,
        }


def part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _prompt(body: dict[str, Any]) -> bytes:
    given = body["input"]
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else [*given]
    instructions = body.get("instructions")
    return chat_prompt([*([{"role": "system", "content": instructions}] if instructions else []), *turns])


async def _events(desk: Desk, task: Task, answer: _Answer) -> AsyncGenerator[bytes, None]:
    number = 0

    def numbered(kind: str, content: dict[str, Any]) -> bytes:
        nonlocal number
        number += 1
        return event(dict(sorted({**content, "sequence_number": number - 1, "type": kind}.items())))

    place = {"item_id": answer.item_id, "output_index": 0}
    yield numbered("response.created", {"response": answer.begun()})
    yield numbered("response.in_progress", {"response": answer.begun()})
    text, count, finish = "", 0, "length"
    try:
        async with aclosing(desk.tokens(task)) as tokens:
            async for token in tokens:
                if not count:
                    added = {"item": answer.item("in_progress", None), "output_index": 0}
                    yield numbered("response.output_item.added", added)
                    empty = part("") | {"logprobs": []}
                    yield numbered("response.content_part.added", {"content_index": 0, **place, "part": empty})
                text, count, finish = text + token.text, token.count, token.finish or finish
                delta = {"content_index": 0, "delta": token.text, **place, "logprobs": []}
                yield numbered("response.output_text.delta", delta)
    except EngineDead:
        yield numbered("error", {"code": "InternalServerError", "message": DEATH_NOTE, "param": None})
        return
    yield numbered("response.output_text.done", {"content_index": 0, **place, "logprobs": [], "text": text})
    yield numbered("response.content_part.done", {"content_index": 0, **place, "part": part(text)})
    done = {"item": answer.item("completed", text), "output_index": 0}
    yield numbered("response.output_item.done", done)
    yield numbered("response.completed", {"response": answer.finished(text, count, finish)})
