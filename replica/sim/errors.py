"""Error answers in the shapes of vLLM 0.32."""

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

from replica.sim.http import Reply

_BELOW_TOP = re.compile(r"/(?:home|lib|mnt|opt|root|srv|tmp|usr|var)(?:/[-.\w]+)+")
_FILE = re.compile(r"(?:/[-\w]+)+/[-\w]+\.\w+")


class Refused(Exception):
    """A request ends with this answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def compact(content: Any) -> bytes:
    """JSON as vLLM writes it: no spaces, non-ASCII as it is."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def json_reply(content: Any, status: int = 200) -> Reply:
    return Reply(status, compact(content))


def error(status: int, kind: str, message: str, param: str | None = None) -> Refused:
    return Refused(json_reply({"error": envelope(status, kind, message, param)}, status))


def envelope(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"message": _without_paths(message), "type": kind, "param": param, "code": status}


def internal(message: str) -> Refused:
    return error(500, "InternalServerError", message)


def draining() -> Refused:
    """An exception that nothing in vLLM catches: uvicorn closes the connection after it and does not say so."""
    reply = internal("cannot schedule new futures after shutdown").reply
    return Refused(dataclasses.replace(reply, then_close=True))


def detail(status: int, text: str) -> Refused:
    """FastAPI's own shape, for routes and methods that do not exist."""
    return Refused(json_reply({"detail": text}, status))


def unknown_model(model: str, aliases: Iterable[str]) -> Refused:
    return error(404, "NotFoundError", unknown_model_text(model, aliases), "model")


def unknown_model_text(model: str, aliases: Iterable[str]) -> str:
    return f"The model `{model}` does not exist. Valid aliases: {', '.join(aliases)}."


def invalid(*problems: tuple[str, str, str, Any], context: dict[str, str] | None = None) -> Refused:
    """400 for problems given as (type, location, message, input)."""
    lines = []
    for kind, location, message, value in problems:
        entry: dict[str, Any] = {"type": kind, "loc": location, "msg": message, "input": _shown(value)}
        lines.append(f"  {entry | ({'ctx': context} if context else {})}")
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
    return error(400, "Bad Request", "\n".join([f"{count}:", *lines]), problems[0][1])


def unsupported_media() -> Refused:
    text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return error(400, "Bad Request", text)


def _without_paths(message: str) -> str:
    """vLLM hides paths below the usual top folders, and any path that ends in a file name with an extension."""
    return _FILE.sub("<path>", _BELOW_TOP.sub("<path>", message)).strip()


def _shown(value: Any) -> str:
    return f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, (dict, list)) else str(value)
