"""What the contract is checked on: a simulated replica or a real vLLM, a process each, told apart by `kind` alone."""

import json
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from replica.tiny import make_adapter
from tests.engines import Server, free_port, real_server

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
# a real engine's pace on a small machine: what one of them may take the other may take too
TOKEN_SECONDS = "0.008"


@dataclass(frozen=True, slots=True)
class Subject:
    """A running replica and the material to load on it. Tests share it, so each takes names of its own."""

    kind: str  # "sim" or "vllm"
    server: Server
    model: Path
    folder: Path

    @asynccontextmanager
    async def client(self, **headers: str) -> AsyncIterator["Client"]:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=60, trust_env=False, headers=headers) as http:
            yield Client(http)

    def adapter(self, say: str | None = None, **options: Any) -> Path:
        """A new folder with an adapter."""
        return make_adapter(self.model, self.folder / new_name(), say=say, **options)


@dataclass(frozen=True, slots=True)
class Client:
    http: httpx.AsyncClient

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def load(self, name: str, path: Path | str) -> httpx.Response:
        return await self.post(LOAD, {"lora_name": name, "lora_path": str(path)})

    async def loaded(self, path: Path, name: str | None = None) -> str:
        """Load under a new name, which must work, and return the name."""
        name = name or new_name()
        answer = await self.load(name, path)
        assert answer.status_code == 200, answer.text
        return name

    async def unload(self, name: str) -> httpx.Response:
        return await self.post(UNLOAD, {"lora_name": name})

    async def complete(self, model: str | None, prompt: str = "Hello", tokens: int = 8, **more: Any) -> httpx.Response:
        return await self.post("/v1/completions", completion(model, prompt, tokens, **more))

    async def says(self, model: str, prompt: str = "Hello", tokens: int = 8) -> str:
        answer = await self.complete(model, prompt, tokens)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    @asynccontextmanager
    async def stream(self, model: str, tokens: int, **more: Any) -> AsyncIterator[AsyncIterator[str]]:
        """The `data:` lines of a streamed completion."""
        body = completion(model, "Hello", tokens, stream=True, **more)
        async with self.http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield (line.removeprefix("data: ") async for line in answer.aiter_lines() if line)

    async def models(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = (await self.http.get("/v1/models")).json()["data"]
        return entries

    async def gauge(self, start: str) -> float:
        """The sum of the series of /metrics that begin like this."""
        text = (await self.http.get("/metrics")).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))


def completion(model: str | None, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    return {**named, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}


def new_name() -> str:
    return f"a{uuid.uuid4().hex[:10]}"


def text_of(chunk: str) -> str:
    """The text in one `data:` line of a streamed completion."""
    return "".join(choice["text"] for choice in json.loads(chunk)["choices"])


def repeated(say: str, tokens: int) -> str:
    return (say * tokens)[:tokens]


def server(kind: str, model: Path, log: Path, *names: str, **settings: str | None) -> Server:
    """A replica of either kind, not started, with vLLM's own flags: `max_loras="2"`, `no_enable_lora=None`."""
    flags = [part for name, value in settings.items() for part in _flag(name, value)]
    if kind == "vllm":
        return real_server(model, log, "--served-model-name", *(names or ("tiny",)), *flags)
    port = free_port()
    return Server([*_sim(model, port, names or ("tiny",)), *flags], log, port=port)


def _sim(model: Path, port: int, names: Sequence[str]) -> list[str]:
    served = [part for name in names for part in ("--served-model-name", name)]
    setup = ["--max-model-len", "512", "--max-num-seqs", "16", "--token-seconds", TOKEN_SECONDS, "--generate-only"]
    start = [sys.executable, "-m", "replica.sim", "--port", str(port), "--model-root", str(model)]
    return [*start, *served, *setup]


def _flag(name: str, value: str | None) -> tuple[str, ...]:
    flag = "--" + name.replace("_", "-")
    return (flag,) if value is None else (flag, value)
