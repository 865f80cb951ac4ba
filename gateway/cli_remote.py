"""The admin API of one running gateway as the commands ask it; whatever goes wrong is one line for people.

Nothing is believed of the other side: an address may belong to something else, and a message of an error is text from
outside.
"""

from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import click
import httpx
import msgspec

from gateway.logs import escaped
from gateway.settings_kinds import Secret

TIMEOUT = 10.0  # seconds; an action may first wait for a scan of the directory
ACTION_TIMEOUT = 60.0
T = TypeVar("T")


class Absent(click.ClickException):
    """The gateway knows no such adapter or replica."""


class _Error(msgspec.Struct):
    message: str
    code: str


class _Envelope(msgspec.Struct):
    error: _Error


class Remote:
    """Ask with `read` and `told`, act with `order`; every trouble is a ClickException (exit code 1)."""

    def __init__(self, url: str, key: Secret | None, timeout: float = TIMEOUT) -> None:
        self.url = url
        self._has_key = key is not None
        headers = {"authorization": f"Bearer {key.reveal()}"} if key else {}
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)
        except (httpx.InvalidURL, ValueError):
            raise click.ClickException(f"{url!r} is no address: give --url http://HOST:PORT") from None

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def read(self, path: str) -> bytes:
        """The JSON document at `path`, as it came."""
        body = self._call("GET", path)
        self._decoded(path, body, Any)
        return body

    def told(self, path: str, shape: type[T]) -> T:
        return self._decoded(path, self._call("GET", path), shape)

    def order(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._decoded(path, self._call("POST", path, body), dict[str, Any])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        timeout = httpx.USE_CLIENT_DEFAULT if method == "GET" else ACTION_TIMEOUT
        try:
            answer = self._client.request(method, path, json=body, timeout=timeout)
        except httpx.ConnectError:
            raise click.ClickException(
                f"no gateway answers at {self.url}: start one (lora-gateway serve), or name another with --url"
            ) from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL):
            raise click.ClickException(f"{self.url!r} is no address: give --url http://HOST:PORT") from None
        except httpx.TimeoutException:
            raise click.ClickException(f"{self.url} gave no answer in time") from None
        except httpx.HTTPError as error:
            raise click.ClickException(f"{self.url} gave no answer: {type(error).__name__}") from None
        if answer.status_code != 200:
            raise self._refusal(path, answer)
        return answer.content

    def _refusal(self, path: str, answer: httpx.Response) -> click.ClickException:
        if answer.status_code == 401:
            remedy = "refused the admin key" if self._has_key else "wants its admin key: give --admin-api-key KEY or @FILE"
            return click.ClickException(f"the gateway at {self.url} {remedy}")
        try:
            error = msgspec.json.decode(answer.content, type=_Envelope).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            return click.ClickException(f"{self.url} is no LoRA gateway: {path} answered {answer.status_code}")
        return (Absent if answer.status_code == 404 else click.ClickException)(escaped(error.message))

    def _decoded(self, path: str, body: bytes, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise click.ClickException(f"{self.url} is no LoRA gateway: {path} answered something else") from None


def quoted(name: str) -> str:
    """A name as one part of a path: slashes, spaces and all else escaped."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="")
