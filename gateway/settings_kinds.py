"""The kinds of values that settings have: how each is read and what is allowed, in words.

A kind reads the text of a flag or an environment variable as well as a plain YAML value; it raises ValueError with what
is allowed, never with the value: the reader of the settings names that, unless it is a key. Relative paths start at the
folder given by the caller: the working directory, or where the configuration file lies.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.core.addresses import Address

YEAR = 31_536_000
_UNITS = {"": 1, "b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30}
_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0"})


class Secret:
    """A key that never shows itself in a repr, a log line or an error; `reveal()` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True)
class Kind:
    """`metavar`, `allowed` and `unit` are for people; a `switch` is a flag without a value."""

    metavar: str
    allowed: str
    parse: Callable[[object, Path], object]  # (value, the folder where relative paths start)
    unit: str = ""
    zero: str = ""  # what 0 means
    switch: bool = False
    secret: bool = False


def _text(value: object, allowed: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise ValueError(allowed)
    return str(value).strip()


def _whole(value: object, low: int, high: int, allowed: str) -> int:
    text = _text(value, allowed)
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise ValueError(allowed)
    return int(text)


def whole(low: int = 0, high: int = 10**9, *, zero: str = "") -> Kind:
    """A whole number; `zero` says what 0 means."""
    allowed = f"a whole number from {low} to {high}" + (f" (0: {zero})" if zero else "")
    return Kind("N", allowed, lambda value, _: _whole(value, low, high, allowed), zero=zero)


def words_or_whole(words: dict[str, int | None], low: int, high: int = 10**9) -> Kind:
    """A whole number, or a word that stands for a value."""
    allowed = f"{', '.join(words)} or a whole number from {low} to {high}"

    def parse(value: object, _: Path) -> int | None:
        text = _text(value, allowed).lower()
        return words[text] if text in words else _whole(text, low, high, allowed)

    return Kind("N", allowed, parse)


def seconds(low: float = 0, *, zero: str = "") -> Kind:
    allowed = f"a number of seconds from {low:g} to {YEAR}" + (f" (0: {zero})" if zero else "")

    def parse(value: object, _: Path) -> float:
        try:
            number = float(_text(value, allowed))
        except ValueError:
            raise ValueError(allowed) from None
        if math.isnan(number) or not low <= number <= YEAR:
            raise ValueError(allowed)
        return number

    return Kind("S", allowed, parse, unit="seconds", zero=zero)


def size(*, zero: str) -> Kind:
    allowed = f"a number of bytes, or one with KiB, MiB or GiB behind it (0: {zero})"

    def parse(value: object, _: Path) -> int:
        match = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", _text(value, allowed).lower())
        if match is None or match[2] not in _UNITS:
            raise ValueError(allowed)
        return int(match[1]) * _UNITS[match[2]]

    return Kind("N", allowed, parse, unit="bytes", zero=zero)


def origin() -> Kind:
    """What a browser sends as Origin, or `*` for all."""
    allowed = "* or an origin such as https://app.example.com (no path)"

    def parse(value: object, _: Path) -> str:
        text = _text(value, allowed).lower()
        if text != "*" and not re.fullmatch(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?", text):
            raise ValueError(allowed)
        return text

    return Kind("ORIGIN", allowed, parse)


def choice(*values: str) -> Kind:
    allowed = " or ".join((", ".join(values[:-1]), values[-1]))

    def parse(value: object, _: Path) -> str:
        if value is False and "off" in values:  # YAML reads a bare `off` as false
            return "off"
        text = _text(value, allowed).lower()
        if text not in values:
            raise ValueError(allowed)
        return text

    return Kind("|".join(values), allowed, parse)


def switch() -> Kind:
    allowed = "true or false"

    def parse(value: object, _: Path) -> bool:
        word = str(value).strip().lower()
        if word not in _YES | _NO:
            raise ValueError(allowed)
        return word in _YES

    return Kind("", allowed, parse, switch=True)


def _path(value: object, folder: Path, allowed: str) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(allowed)
    try:
        return Path(os.path.abspath(folder / Path(value).expanduser()))  # noqa: PTH100 (links stay as they are written)
    except RuntimeError:
        raise ValueError(f"{allowed} (there is no such home directory)") from None


def directory() -> Kind:
    """A directory that exists and can be read."""
    allowed = "a directory that exists and can be read"

    def parse(value: object, folder: Path) -> Path:
        path = _path(value, folder, allowed)
        if not path.is_dir():
            raise ValueError(f"{allowed}; {'this is a file' if path.exists() else 'there is none at ' + str(path)}")
        if not os.access(path, os.R_OK | os.X_OK):
            raise ValueError(f"{allowed}; this one may not be read by user {os.geteuid()}")
        return path

    return Kind("DIR", allowed, parse)


def file() -> Kind:
    """A file that exists and can be read."""
    allowed = "a file that exists and can be read"

    def parse(value: object, folder: Path) -> Path:
        path = _path(value, folder, allowed)
        if not path.is_file():
            raise ValueError(f"{allowed}; there is none at {path}")
        if not os.access(path, os.R_OK):
            raise ValueError(f"{allowed}; this one may not be read by user {os.geteuid()}")
        return path

    return Kind("FILE", allowed, parse)


def path() -> Kind:
    allowed = "a path"
    return Kind("DIR", allowed, lambda value, folder: _path(value, folder, allowed))


def far_path() -> Kind:
    """A path on another machine: nothing about it can be looked up here."""
    allowed = "an absolute path, as the replicas see it"

    def parse(value: object, _: Path) -> Path:
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
            raise ValueError(allowed)
        return Path(os.path.normpath(value))

    return Kind("DIR", allowed, parse)


def host() -> Kind:
    allowed = "a host name or an IP address to listen on"

    def parse(value: object, _: Path) -> str:
        text = _text(value, allowed).removeprefix("[").removesuffix("]")
        if not re.fullmatch(r"[A-Za-z0-9._:%-]+", text):
            raise ValueError(allowed)
        return text

    return Kind("HOST", allowed, parse)


def url() -> Kind:
    """A replica's address."""
    allowed = "http://HOST:PORT or https://HOST:PORT"

    def parse(value: object, _: Path) -> Address:
        try:
            return Address.parse(_text(value, allowed))
        except ValueError as error:
            raise ValueError(allowed if str(error) == allowed else f"{allowed}: {error}") from None

    return Kind("URL", allowed, parse)


def matching(metavar: str, pattern: str, allowed: str) -> Kind:
    """A text of a given shape."""
    compiled = re.compile(pattern)

    def parse(value: object, _: Path) -> str:
        text = _text(value, allowed)
        if not compiled.fullmatch(text):
            raise ValueError(allowed)
        return text

    return Kind(metavar, allowed, parse)


def key() -> Kind:
    """A key, or `@FILE` to read it from a file."""
    allowed = "a key of visible ASCII characters, or @FILE to read it from a file"

    def parse(value: object, folder: Path) -> Secret:
        if not isinstance(value, str):  # 0123 in YAML is a number, and another one
            raise ValueError(f"{allowed}; in a YAML file put quotes around it")
        text = value.strip()
        if text.startswith("@"):
            try:
                text = _path(text[1:], folder, allowed).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                raise ValueError(f"{allowed}; the file after the @ cannot be read: {why}") from None
        if not re.fullmatch(r"[!-~]{1,4096}", text):
            raise ValueError(allowed)
        return Secret(text)

    return Kind("KEY", allowed, parse, secret=True)
