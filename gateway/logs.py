"""Log lines: structlog and the standard library's loggers through one formatter, to stderr.

What a client, a file name or a replica's answer puts into a value may be hostile: control characters are escaped, so
one event is one line and no terminal obeys it. Values under the names of keys are dropped, whoever logs them.
"""

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any

import structlog
from structlog.types import EventDict, WrappedLogger

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SECRET_NAME = re.compile(r"(.*_)?(authorization|api_?keys?|key|token|secret|password|cookie)", re.IGNORECASE)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]+")
_HIDDEN = "***"
_TALKATIVE = ("httpx", "httpcore", "watchfiles", "asyncio")  # a line for each call of a probe says nothing


def escaped(text: str) -> str:
    """The text with control characters, line ends and bidirectional marks as escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def configure(format: str, level: str) -> None:
    """Set up every logger of the process. `format`: auto (console on a terminal, else json), console or json."""
    as_json = format == "json" or (format == "auto" and not sys.stderr.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    before: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        *([structlog.stdlib.add_logger_name] if as_json else []),
        structlog.processors.TimeStamper(fmt="iso", utc=True) if as_json else structlog.processors.TimeStamper("%H:%M:%S"),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(before, as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # lines once, through the root
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _formatter(before: list[structlog.types.Processor], as_json: bool) -> logging.Formatter:
    renderer: structlog.types.Processor = structlog.processors.JSONRenderer()
    if not as_json:
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain, pad_event_to=0)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            hide_keys,
            escape_values,
            renderer,
        ],
    )


def hide_keys(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Drop the values of keys: those under such a name, also in nested mappings, and what follows `Bearer`."""
    return {name: _without_keys(name, value) for name, value in event.items()}


def _without_keys(name: str, value: Any) -> Any:
    if _SECRET_NAME.fullmatch(str(name).replace("-", "_")):
        return _HIDDEN
    if isinstance(value, str):
        return _BEARER.sub(rf"\1 {_HIDDEN}", value)
    if isinstance(value, Mapping):
        return {inner: _without_keys(str(inner), item) for inner, item in value.items()}
    return value


def escape_values(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape control characters in texts; other values are printed by repr, which does the same."""
    return {name: _plain(name, value) if isinstance(value, str) else value for name, value in event.items()}


def _plain(name: str, text: str) -> str:
    if name in ("exception", "stack"):  # many lines by nature: indented, none can pass for an event of its own
        return "\n".join("  " + escaped(line) for line in text.splitlines())
    return escaped(text)
