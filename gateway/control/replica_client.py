"""vLLM's control API on one replica: health, models, load, unload, metrics; and what its answers mean.

The one place where the control plane talks HTTP and where httpx's errors end. Meanings are those of vLLM 0.32: a load
that is answered 400 or 500 "Call to add_lora method failed" is a verdict on the adapter, 404 "No adapter found" means
that the replica does not see the files, FastAPI's bare 404 that run-time loading is switched off.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.replica import ModelEntry

_REASON_LENGTH = 600
MAX_ANSWER = 32 * 1024 * 1024  # bytes: the model list of 10,000 adapters has 3 MB
_ABSOLUTE_PATH = re.compile(r"(?<![\w./~-])/(?:[^\s/'\"`,:;()\[\]]+/)+[^\s/'\"`,:;()\[\]]*")
_ALREADY = "has already been loaded"
_REFUSED_BY_ENGINE = "Call to add_lora method failed"


class Outcome(StrEnum):
    OK = "ok"
    ALREADY = "already"
    REJECTED = "rejected"
    MISSING = "missing"
    ERROR = "error"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    CREDENTIALS = "credentials"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a load or an unload."""

    outcome: Outcome
    reason: str = ""
    settled: bool = True  # False: it was not answered, so it may still take effect


@dataclass(frozen=True, slots=True)
class Probe:
    """`refused`: nobody listens there, so the process is gone; `mute`: no answer in time."""

    ok: bool
    reason: str = ""
    refused: bool = False
    mute: bool = False


@dataclass(frozen=True, slots=True)
class Vitals:
    """From a replica's own metrics: when its process started (wall clock), how many requests it runs, tokens it gave."""

    started_at: float | None
    running: int | None
    generated: float | None = None


class _Reply(NamedTuple):
    status: int
    content: bytes


class ReplicaError(Exception):
    """The replica gave no usable answer; `credentials` when it refused the gateway's key."""

    def __init__(self, reason: str, *, credentials: bool = False) -> None:
        super().__init__(reason)
        self.credentials = credentials


class _Row(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_Row]


class _Error(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error | str | None = None


_decode_models = msgspec.json.Decoder(_ModelList).decode
_decode_error = msgspec.json.Decoder(_ErrorBody).decode


class ReplicaClient:
    """One client per replica: a shared pool would poll every idle connection on each call. Times in seconds."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        connect_timeout: float,
        probe_timeout: float,
        load_timeout: float,
        shown: Mapping[str, str],
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(probe_timeout, connect=connect_timeout)
        # keep-alive below vLLM's five seconds, or every other probe meets a connection that has just been closed
        limits = httpx.Limits(max_keepalive_connections=2, keepalive_expiry=4.0)
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False, follow_redirects=False
        )
        self._load_timeout = httpx.Timeout(load_timeout, connect=connect_timeout)
        self._list_timeout = httpx.Timeout(max(10.0, probe_timeout), connect=connect_timeout)
        self._key = api_key
        self._shown = shown

    async def close(self) -> None:
        await self._http.aclose()

    async def probe(self) -> Probe:
        try:
            answer = await self._ask("GET", "/health", self._http.timeout)
        except httpx.ConnectError as error:
            return Probe(False, "connection refused" if _is_refused(error) else "cannot connect", _is_refused(error))
        except httpx.TimeoutException:
            return Probe(False, "no answer to /health in time", mute=True)
        except httpx.HTTPError as error:
            return Probe(False, f"/health: {type(error).__name__}")
        if answer.status == 200:
            return Probe(True)
        return Probe(False, f"/health answered {answer.status}")

    async def models(self) -> list[ModelEntry]:
        """Its model list; raises ReplicaError."""
        answer = await self._get("/v1/models")
        try:
            rows = _decode_models(answer.content).data
        except msgspec.MsgspecError as error:
            raise ReplicaError("/v1/models is not a model list") from error
        return [ModelEntry(row.id, row.root, row.parent) for row in rows]

    async def vitals(self) -> Vitals:
        """Raises ReplicaError."""
        answer = await self._get("/metrics")
        started: float | None = None
        running: int | None = None
        generated: float | None = None
        try:
            for family in text_string_to_metric_families(answer.content.decode("utf-8", "replace")):
                if family.name == "process_start_time_seconds":
                    started = family.samples[0].value
                elif family.name == "vllm:num_requests_running":
                    running = int(sum(sample.value for sample in family.samples))
                elif family.name == "vllm:generation_tokens":
                    generated = sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
        except (ValueError, IndexError, KeyError) as error:
            raise ReplicaError("/metrics is not in the Prometheus format") from error
        return Vitals(started, running, generated)

    async def token(self, model: str, seconds: float) -> bool:
        """Whether it generates: any answer in time says so, an error too (it may not generate text at all)."""
        body = {"model": model, "prompt": "a", "max_tokens": 1}
        try:
            await self._ask("POST", "/v1/completions", httpx.Timeout(seconds), body)
        except httpx.HTTPError:
            return False
        return True

    async def load(self, name: str, path: str) -> Answer:
        """Never raises: what went wrong is the answer. A load that timed out may still take effect."""
        return await self._control("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}, self._load_timeout)

    async def unload(self, name: str) -> Answer:
        """It deletes the name only: running requests finish. An unknown name is OK: that is the state wanted."""
        answer = await self._control("/v1/unload_lora_adapter", {"lora_name": name}, self._list_timeout)
        return Answer(Outcome.OK) if answer.outcome is Outcome.MISSING else answer

    async def _ask(self, method: str, path: str, timeout: httpx.Timeout, body: dict[str, Any] | None = None) -> _Reply:
        """One call, whole within the read timeout after the connect timeout, and not longer than MAX_ANSWER.

        httpx counts its timeout anew with each byte, and takes an answer of any length. Raises httpx.HTTPError.
        """
        content = bytearray()
        try:
            async with (
                asyncio.timeout((timeout.read or 0.0) + (timeout.connect or 0.0)),
                self._http.stream(method, path, json=body, timeout=timeout) as answer,
            ):
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > MAX_ANSWER:
                        raise httpx.RemoteProtocolError(f"more than {MAX_ANSWER} bytes")
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole answer to {path} in time") from None
        return _Reply(answer.status_code, bytes(content))

    async def _get(self, path: str) -> _Reply:
        try:
            answer = await self._ask("GET", path, self._list_timeout)
        except httpx.TimeoutException as error:
            raise ReplicaError(f"no answer to {path} in time") from error
        except httpx.HTTPError as error:
            raise ReplicaError(f"{path}: {type(error).__name__}") from error
        if answer.status in (401, 403):
            raise ReplicaError(f"it refused the gateway's credentials ({answer.status})", credentials=True)
        if answer.status != 200:
            raise ReplicaError(f"{path} answered {answer.status}")
        return answer

    async def _control(self, path: str, body: dict[str, Any], timeout: httpx.Timeout) -> Answer:
        try:
            answer = await self._ask("POST", path, timeout, body)
        except httpx.ConnectError:
            return Answer(Outcome.ERROR, "cannot connect")
        except httpx.TimeoutException:
            return Answer(Outcome.TIMEOUT, "no answer in time", settled=False)
        except httpx.HTTPError as error:
            return Answer(Outcome.ERROR, f"the connection broke ({type(error).__name__})", settled=False)
        return self._meaning(answer.status, answer.content)

    def _meaning(self, status: int, content: bytes) -> Answer:
        if status == 200:
            return Answer(Outcome.OK)
        text, enveloped = _message(content)
        reason = self._presentable(text) or f"status {status}"
        if status in (401, 403):
            return Answer(Outcome.CREDENTIALS, f"it refused the gateway's credentials ({status})")
        if status == 400:
            return Answer(Outcome.ALREADY if _ALREADY in text else Outcome.REJECTED, reason)
        if status == 404:
            return Answer(Outcome.MISSING if enveloped else Outcome.UNSUPPORTED, reason)
        if "LoRA is not enabled" in text:
            return Answer(Outcome.UNSUPPORTED, reason)
        if "shutting down" in text.lower() or "cannot schedule new futures after shutdown" in text:
            return Answer(Outcome.DRAINING, reason)
        if status == 500 and _REFUSED_BY_ENGINE in text and "[Errno" not in text:
            bare = reason.removeprefix(_REFUSED_BY_ENGINE).lstrip(": ")
            return Answer(Outcome.REJECTED, bare or "the engine gave no reason")
        return Answer(Outcome.ERROR, f"status {status}: {reason}")

    def _presentable(self, text: str) -> str:
        """One line, no control characters, no key, paths as the gateway's users know them or none at all."""
        for remote, shown in self._shown.items():
            text = text.replace(remote, shown)
        if self._key:
            text = text.replace(self._key, "***")
        text = _ABSOLUTE_PATH.sub("<path>", text)
        text = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(text.split())[:_REASON_LENGTH]


def _message(content: bytes) -> tuple[str, bool]:
    """The error's text, and whether it came in vLLM's own envelope."""
    try:
        error = _decode_error(content).error
    except (msgspec.MsgspecError, RecursionError):
        return content[:_REASON_LENGTH].decode("utf-8", "replace"), False
    if isinstance(error, _Error):
        return error.message, True
    return (error or content[:_REASON_LENGTH].decode("utf-8", "replace")), error is not None


def _is_refused(error: httpx.ConnectError) -> bool:
    """httpx keeps the system's error as the cause of a cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return True
        cause = cause.__cause__ or cause.__context__
    return "refused" in str(error).lower()
