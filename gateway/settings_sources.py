"""Where the settings of one start come from: flag over environment variable over key of the YAML file over default.

The first wrong value, unknown key or contradiction ends the reading with one line for people that names the setting,
where it came from, the value (never that of a key) and what is allowed. Empty variables and keys of the file without a
value count as not set.
"""

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.settings import ENV_PREFIX, TABLE, Setting, Settings

CONFIG_ENV = ENV_PREFIX + "CONFIG"
# Ours, but no settings of `serve`: the configuration file, the address `status` asks, the demo's and tests' engine.
_OTHER_ENV = re.compile(ENV_PREFIX + "(CONFIG|URL|CACHE|VLLM_.*)")
# A Kubernetes Service called lora-gateway gives every pod of its namespace variables with our prefix, even ..._PORT.
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?$")
_SERVICE_PORT = re.compile(r"(tcp|udp|sctp)://")


class SettingsError(Exception):
    """One line for people: what is wrong with which setting."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was written, where, and the folder where its relative paths start."""

    value: object
    place: str
    folder: Path


def read(flags: Mapping[str, object], environ: Mapping[str, str], config: str | None = None) -> Settings:
    """`flags`: what was given on the command line, by field name. Raises SettingsError."""
    values = parsed(given(flags, environ, config))
    for row in TABLE:
        if row.required and row.field not in values:
            raise SettingsError(f"{row.name} is required: give {row.flag} {row.kind.metavar} ({row.kind.allowed})")
    settings = Settings(**values)
    _cross_check(settings, values)
    return settings


def given(flags: Mapping[str, object], environ: Mapping[str, str], config: str | None = None) -> dict[str, Given]:
    """What is set anywhere, by field, from where it counts. Raises SettingsError for an unknown name or a bad file."""
    here = Path.cwd()
    file = config or environ.get(CONFIG_ENV) or ""
    in_file = _file_values(file, "--config" if config else CONFIG_ENV) if file else {}
    in_env = _env_values(environ, here)
    in_flags = {
        row.field: Given(flags[row.field], f"the flag {row.flag}", here) for row in TABLE if flags.get(row.field) is not None
    }
    return {**in_file, **in_env, **in_flags}


def parsed(values: Mapping[str, Given]) -> dict[str, Any]:
    """The values themselves, by field. Raises SettingsError for the first wrong one."""
    return {row.field: _parsed(row, values[row.field]) for row in TABLE if row.field in values}


def _parsed(row: Setting, given: Given) -> Any:
    if not row.many:
        return _one(row, given, given.value)
    items = given.value
    if isinstance(items, str):
        items = re.split(r"[,\s]+", items.strip(", \t\n"))
    if not isinstance(items, list | tuple):
        items = [items]
    return tuple(_one(row, given, item) for item in items)


def _one(row: Setting, given: Given, value: object) -> object:
    try:
        result = row.kind.parse(value, given.folder)
    except ValueError as error:
        raise SettingsError(f"{_naming(row, given, value)} must be {error}") from None
    if row.built is not None and result not in row.built:
        raise SettingsError(f"{_naming(row, given, value)}: {row.limit}")
    return result


def _naming(row: Setting, given: Given, value: object) -> str:
    shown = "the value" if row.kind.secret else re.sub(r"//[^/]*@", "//***@", repr(value))
    if len(shown) > 200:
        shown = shown[:200] + "..."
    return f"{row.name}: {shown} from {given.place}"


def _guess(word: str, known: list[str], shape: Callable[[str], str] = str) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {shape(close[0])}?)" if close else ""


def _env_values(environ: Mapping[str, str], here: Path) -> dict[str, Given]:
    rows = {row.env: row for row in TABLE}
    values = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or _OTHER_ENV.fullmatch(name) or not text.strip() or _service_link(name, text):
            continue
        if name not in rows:
            raise SettingsError(f"unknown environment variable {name!r:.200}{_guess(name, list(rows))}")
        values[rows[name].field] = Given(text, f"the environment variable {name}", here)
    return values


def _service_link(name: str, text: str) -> bool:
    return bool(_SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_PORT.match(text)))


class _Loader(yaml.SafeLoader):
    """YAML's safe subset; a key that stands twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, count in Counter(map(str, keys)).items():
            if count > 1:
                raise SettingsError(f"config: the key {key!r:.200} stands twice, from line {node.start_mark.line + 1} on")
        return super().construct_mapping(node, deep)


def _file_values(file: str, place: str) -> dict[str, Given]:
    path = Path(os.path.abspath(Path(file).expanduser()))  # noqa: PTH100 (links stay as they are written)
    rows = {row.name: row for row in TABLE}
    values: dict[str, Given] = {}
    for key, value in _document(path, f"{file!r:.200} from {place}"):
        name = str(key).replace("_", "-")
        if name not in rows:
            raise SettingsError(f"unknown key {str(key)!r:.200} in {path}{_guess(name, list(rows))}")
        if rows[name].field in values:
            raise SettingsError(f"{name}: stands twice in {path}, once with dashes and once with underscores")
        if value is not None:
            values[rows[name].field] = Given(value, f"the key {key} in {path}", path.parent)
    return values


def _document(path: Path, named: str) -> Iterator[tuple[object, object]]:
    try:
        # The text may hold keys: of a syntax error only the place is told.
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise SettingsError(f"config: {named} cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = re.sub(r"'.*'", "'...'", str(error.problem), flags=re.DOTALL)
        raise SettingsError(f"config: {named} is not YAML{line}: {problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        raise SettingsError(f"config: {named} is not YAML text") from None
    if document is None:
        return iter(())
    if not isinstance(document, dict):
        raise SettingsError(f"config: {named} must hold `setting: value` lines")
    return iter(document.items())


def _cross_check(settings: Settings, given: Mapping[str, object]) -> None:
    """What one setting says about another."""
    sources = ("replica", "replicas_file", "replica_dns", "replica_kubernetes")
    if not any(getattr(settings, name) for name in sources):
        flags = ", ".join(row.flag for row in TABLE if row.field in sources and row.built is None)
        raise SettingsError(f"no replica is named: give at least one of {flags}")
    places = Counter(address.id for address in settings.replica)
    for place, count in places.items():
        if count > 1:
            raise SettingsError(f"replica: {place} is named {count} times, each replica may be named once")
    if "holders" in given and settings.placement != "spread":
        raise SettingsError("holders: works only with --placement spread")
    if settings.snapshot_dir == settings.adapter_dir or settings.snapshot_dir in settings.adapter_dir.parents:
        raise SettingsError("snapshot-dir: may neither be the adapter directory nor hold it")
    inside = settings.snapshot_dir.is_relative_to(settings.adapter_dir)
    if not inside and settings.replica_adapter_dir != settings.adapter_dir:
        raise SettingsError(
            "snapshot-dir: must lie below --adapter-dir when --replica-adapter-dir differs, or no replica would find it"
        )
