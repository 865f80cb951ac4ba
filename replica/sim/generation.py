"""Turns one request into tokens: slots, time per token, where it ends. Shapes are the business of the endpoints."""

import itertools
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic

from replica.sim.engine import Engine, Lora
from replica.sim.errors import error
from replica.sim.options import Faults, Options

BASE_TEXT = "base."


@dataclass(frozen=True, slots=True)
class Task:
    """What one request asks of the engine. `shown_model` stands in the answer."""

    shown_model: str
    lora: Lora | None
    prompt: bytes
    max_tokens: int | None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    count: int  # tokens so far, this one included
    finish: str | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    text: str
    count: int
    finish: str
    stop: str | None


def check_length(options: Options, prompt: bytes, max_tokens: int | None) -> None:
    """Raises Refused for what vLLM refuses before it starts."""
    limit = options.max_model_len
    if max_tokens is not None and max_tokens > limit:
        raise error(
            400,
            "BadRequestError",
            f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
            "max_tokens",
        )
    if len(prompt) > limit:
        raise error(
            400,
            "BadRequestError",
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            f"length of the input prompt. (parameter=input_tokens, value={limit + 1})",
            "input_tokens",
        )


async def tokens(engine: Engine, options: Options, faults: Faults, task: Task) -> AsyncGenerator[Token, None]:
    """Raises EngineDead at any point."""
    limit = options.max_model_len - len(task.prompt)
    last = min(limit, options.reply_tokens if task.max_tokens is None else task.max_tokens)
    pause = options.token_seconds if faults.token_seconds is None else faults.token_seconds
    first = options.first_byte_seconds if faults.first_byte_seconds is None else faults.first_byte_seconds
    said, begun = "", monotonic()
    async with engine.sequence(task.lora, task.prompt) as sequence:
        source: Iterator[str] = itertools.cycle(BASE_TEXT)
        if sequence.weights is not None:
            source = _from(sequence.weights.text, task.prompt if sequence.weights.chained else b"")
        for count in range(1, last + 1):
            await engine.step(pause + (first if count == 1 else 0))
            if count == 1:
                engine.first_token(monotonic() - begun)
            character = next(source)
            said += character
            stop = next((mark for mark in task.stops if said.endswith(mark)), None)
            if stop is not None:
                yield Token(character[: -len(stop)], count, "stop", stop)
                return
            finish = ("stop" if task.max_tokens is None else "length") if count == last else None
            yield Token(character, count, finish)


async def whole(source: AsyncGenerator[Token, None]) -> Whole:
    text, count, finish, stop = "", 0, "length", None
    async with aclosing(source):
        async for token in source:
            text, count, stop = text + token.text, token.count, token.stop
            finish = token.finish or finish
    return Whole(text, count, finish, stop)


def _from(text: str, prompt: bytes) -> Iterator[str]:
    start = 0
    if prompt and (place := text.find(chr(prompt[-1]))) >= 0:
        start = place + 1
    return itertools.islice(itertools.cycle(text), start, None)
