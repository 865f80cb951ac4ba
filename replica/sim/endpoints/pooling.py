"""Embeddings, pooling, classes, scores, ranks, transcripts: what other kinds of models serve, in vLLM's shapes.

Numbers are derived from the adapter's text and the input, so they tell adapters apart as a generated text does.
"""

import hashlib
from typing import Any

from replica.sim.body import form, json_object, optional_text, require
from replica.sim.desk import Desk, now, request_id
from replica.sim.endpoints.completions import full_usage
from replica.sim.errors import error, json_reply
from replica.sim.generation import Task
from replica.sim.http import Reply, Request
from replica.sim.tokens import text_prompt

_WIDTH = 8


async def embed(desk: Desk, request: Request) -> Reply:
    task, inputs = _prepared(desk, request, "input")
    text = await desk.one_pass(task)
    rows = [{"index": index, "object": "embedding", "embedding": _vector(text, one)} for index, one in enumerate(inputs)]
    return json_reply(_listed(request, "embd", task, rows, inputs))


async def pool(desk: Desk, request: Request) -> Reply:
    task, inputs = _prepared(desk, request, "input")
    text = await desk.one_pass(task)
    rows = [{"index": index, "object": "pooling", "data": [_vector(text, one)]} for index, one in enumerate(inputs)]
    return json_reply(_listed(request, "pool", task, rows, inputs))


async def classify(desk: Desk, request: Request) -> Reply:
    task, inputs = _prepared(desk, request, "input")
    text = await desk.one_pass(task)
    rows = []
    for index, one in enumerate(inputs):
        first = abs(_vector(text, one)[0])
        label = "LABEL_0" if first >= 0.5 else "LABEL_1"
        rows.append({"index": index, "label": label, "probs": [first, 1 - first], "num_classes": 2})
    return json_reply(_listed(request, "classify", task, rows, inputs))


async def score(desk: Desk, request: Request) -> Reply:
    body = json_object(request)
    first, second = ("queries", "documents") if "queries" in body else ("text_1", "text_2")
    require(body, first, second)
    left, right = _inputs(body[first]), _inputs(body[second])
    task = desk.task(optional_text(body, "model"), text_prompt(left[0]), None)
    text = await desk.one_pass(task)
    pairs = [(left[index % len(left)], one) for index, one in enumerate(right)]
    rows = [{"index": index, "object": "score", "score": _closeness(text, *pair)} for index, pair in enumerate(pairs)]
    return json_reply(_listed(request, "score", task, rows, [*left, *right]))


async def rerank(desk: Desk, request: Request) -> Reply:
    body = json_object(request)
    require(body, "query", "documents")
    query, documents = _inputs(body["query"])[0], _inputs(body["documents"])
    task = desk.task(optional_text(body, "model"), text_prompt(query), None)
    text = await desk.one_pass(task)
    results = [
        {
            "index": index,
            "document": {"text": one, "multi_modal": None},
            "relevance_score": _closeness(text, query, one),
        }
        for index, one in enumerate(documents)
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    count = sum(map(len, [query, *documents]))
    usage = {"prompt_tokens": count, "total_tokens": count}
    shown = results[: body.get("top_n") or None]
    return json_reply({"id": request_id(request, "score"), "model": task.shown_model, "usage": usage, "results": shown})


async def transcribe(desk: Desk, request: Request) -> Reply:
    """The whole answer is one text: what the adapter says."""
    fields = form(request)
    task = desk.task(fields.get("model"), b"", None)
    text = await desk.one_pass(task)
    if fields.get("response_format") == "text":
        return json_reply(text)
    return json_reply({"text": text, "usage": {"type": "duration", "seconds": 1}})


def _prepared(desk: Desk, request: Request, field: str) -> tuple[Task, list[str]]:
    body = json_object(request)
    model = optional_text(body, "model")
    if "messages" in body:
        inputs = [str(body["messages"])]
    else:
        require(body, field)
        inputs = _inputs(body[field])
    return desk.task(model, text_prompt(inputs[0]), None), inputs


def _inputs(given: Any) -> list[str]:
    inputs = [str(one) for one in given] if isinstance(given, list) else [str(given)]
    if not inputs:
        raise error(400, "BadRequestError", "the input is empty")
    return inputs


def _listed(request: Request, prefix: str, task: Task, rows: list[Any], inputs: list[str]) -> dict[str, Any]:
    head = {"id": request_id(request, prefix), "object": "list", "created": now(), "model": task.shown_model}
    return head | {"data": rows, "usage": full_usage(sum(map(len, inputs)), 0)}


def _vector(text: str, given: str) -> list[float]:
    digest = hashlib.sha256(f"{text}\n{given}".encode("utf-8", "replace")).digest()
    return [round(byte / 127.5 - 1, 6) for byte in digest[:_WIDTH]]


def _closeness(text: str, one: str, other: str) -> float:
    return round((_vector(text, f"{one}\n{other}")[0] + 1) / 2, 6)
