"""What every inference endpoint needs of its replica: names, engine, options, the faults of the moment."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from replica.sim.engine import DEATH_NOTE, Engine, EngineDead
from replica.sim.errors import compact, draining, envelope, internal
from replica.sim.generation import BASE_TEXT, Task, Token, check_length, tokens
from replica.sim.http import Request
from replica.sim.names import Names
from replica.sim.options import Faults, Options

DONE = b"data: [DONE]\n\n"


class Desk:
    def __init__(self, options: Options, engine: Engine, names: Names, *, faults: Callable[[], Faults]) -> None:
        self.options = options
        self.engine = engine
        self.names = names
        self.draining = False
        self._faults = faults

    def __repr__(self) -> str:
        return f"<Desk draining={self.draining} {self.engine!r} {self.names!r}>"

    def task(self, model: str | None, prompt: bytes, max_tokens: int | None, stops: tuple[str, ...] = ()) -> Task:
        """Raises Refused: unknown model, too long, shutting down, dead."""
        lora = self.names.resolve(model)
        check_length(self.options, prompt, max_tokens)
        if self.engine.dead:
            raise internal(DEATH_NOTE)
        if self.draining:
            raise draining()
        return Task(self.names.shown(lora), lora, prompt, max_tokens, stops)

    def tokens(self, task: Task) -> AsyncGenerator[Token, None]:
        return tokens(self.engine, self.options, self._faults(), task)

    async def one_pass(self, task: Task) -> str:
        """What a model that does not generate takes: one step. Returns the text of the weights; raises EngineDead."""
        faults = self._faults()
        pause = self.options.token_seconds if faults.token_seconds is None else faults.token_seconds
        first = self.options.first_byte_seconds if faults.first_byte_seconds is None else faults.first_byte_seconds
        async with self.engine.sequence(task.lora, task.prompt) as sequence:
            await self.engine.step(pause + first)
            return sequence.weights.text if sequence.weights else BASE_TEXT


def request_id(request: Request, prefix: str) -> str:
    return f"{prefix}-{request.headers.get('x-request-id') or secrets.token_hex(8)}"


def now() -> int:
    return int(time.time())


def stops_of(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def data(content: dict[str, Any]) -> bytes:
    return b"data: " + compact(content) + b"\n\n"


def event(content: dict[str, Any]) -> bytes:
    return f"event: {content['type']}\n".encode() + data(content)


async def ending_in_done(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The engine's death inside a stream is an error event, a mark and a clean end, exactly like that."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
    except EngineDead:
        failure = {"error": envelope(500, "InternalServerError", DEATH_NOTE)}
        yield f"data: {json.dumps(failure)}\n\n".encode()
    yield DONE
