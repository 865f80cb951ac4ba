"""Which endpoint answers which path, behind the API key and the faults of the moment."""

import asyncio
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress

from replica.sim.body import form
from replica.sim.desk import Desk
from replica.sim.endpoints import chat, completions, messages, pooling, responses, text
from replica.sim.engine import DEATH_NOTE, EngineDead
from replica.sim.errors import Refused, detail, internal, json_reply
from replica.sim.http import Cut, How, Reply, Request, Stream
from replica.sim.journal import Call
from replica.sim.options import Faults

Endpoint = Callable[[Desk, Request], Awaitable[Reply | Stream]]
GENERATING: Mapping[str, Endpoint] = {
    "/v1/chat/completions": chat.chat,
    "/v1/completions": completions.complete,
    "/v1/messages": messages.message,
    "/v1/messages/count_tokens": messages.count_tokens,
    "/v1/responses": responses.respond,
    "/tokenize": text.tokenize,
    "/detokenize": text.detokenize,
}
POOLING: Mapping[str, Endpoint] = {
    "/v1/embeddings": pooling.embed,
    "/pooling": pooling.pool,
    "/classify": pooling.classify,
    "/score": pooling.score,
    "/v1/score": pooling.score,
    "/rerank": pooling.rerank,
    "/v1/rerank": pooling.rerank,
    "/v2/rerank": pooling.rerank,
    "/v1/audio/transcriptions": pooling.transcribe,
    "/v1/audio/translations": pooling.transcribe,
}
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")


def authorised(request: Request, api_key: str | None) -> bool:
    if api_key is None or request.method == "OPTIONS" or not request.path.startswith(_GUARDED):
        return True
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), api_key.encode())


def unauthorised() -> Refused:
    return Refused(json_reply({"error": "Unauthorized"}, 401))


class InferenceRoutes:
    """`spoil` is told when a fault hit a call, `die` how the replica is to end."""

    def __init__(
        self,
        desk: Desk,
        *,
        faults: Callable[[], Faults],
        spoil: Callable[[], None],
        die: Callable[[str], None],
        note: Callable[[], None],
    ) -> None:
        self._desk = desk
        self._endpoints = {**GENERATING, **(POOLING if desk.options.pooling else {})}
        self._faults = faults
        self._spoil = spoil
        self._die = die
        self._note = note

    def known(self, path: str) -> bool:
        return path in self._endpoints

    async def answer(self, request: Request, call: Call) -> Reply | Stream:
        """Raises Refused and Cut."""
        if request.method != "POST":
            raise detail(405, "Method Not Allowed")
        call.model = _model_of(call, request)
        faults = self._faults() if self._faults().concerns(call.model or "") else Faults()
        self._apply_before(faults, call.model)
        try:
            answer = await self._endpoints[request.path](self._desk, request)
        except EngineDead as problem:
            raise internal(DEATH_NOTE) from problem
        finally:
            self._note()
        if isinstance(answer, Stream):
            return Stream(self._counted(answer.chunks, call, faults), answer.content_type, answer.headers)
        return answer

    def _apply_before(self, faults: Faults, model: str | None) -> None:
        if faults.die_on_request is not None:
            self._desk.names.resolve(model)  # a request that is refused runs nothing
            self._spoil()
            self._die(faults.die_on_request)
            if faults.die_on_request == "kill":
                raise Cut(How.RST)
        if faults.close_before_answer is not None:
            self._spoil()
            raise Cut(How(faults.close_before_answer))
        if faults.status is not None:
            self._spoil()
            raise spoilt(faults.status, faults.body)

    async def _counted(self, chunks: AsyncGenerator[bytes, None], call: Call, faults: Faults) -> AsyncGenerator[bytes, None]:
        limit, how = faults.rst_after_chunks, How.RST
        if limit is None:
            limit, how = faults.fin_after_chunks, How.FIN
        try:
            async for chunk in chunks:
                if limit is not None and call.chunks >= limit:
                    self._spoil()
                    call.cut = True
                    # what was written leaves first, so that the client has its chunks before the cut
                    await asyncio.sleep(0.02)
                    raise Cut(how)
                call.chunks += 1
                self._note()
                yield chunk
        finally:
            await chunks.aclose()
            self._note()


def spoilt(status: int, body: str | None) -> Refused:
    """A fault's answer: its own body, JSON or not, else vLLM's shape."""
    if body is None:
        return Refused(json_reply({"error": {"message": "fault", "type": "Fault", "param": None, "code": status}}, status))
    media = "application/json" if body.lstrip().startswith(("{", "[")) else "text/plain; charset=utf-8"
    return Refused(Reply(status, body.encode(), media))


def _model_of(call: Call, request: Request) -> str | None:
    if request.path.startswith("/v1/audio/"):
        with suppress(Refused):
            return form(request).get("model")
        return None
    model = call.body.get("model") if isinstance(call.body, dict) else None
    return model if isinstance(model, str) else None
