"""Which replicas there are: sources that yield whole sets of addresses. A source that fails keeps its last set."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import structlog
import yaml

from gateway.control.plain_yaml import parse_yaml
from gateway.core.addresses import Address

log = structlog.get_logger("gateway.discovery")
_FILE_LOOK = 1.0  # seconds between looks at the file's time stamp


class Source(Protocol):
    """Yields the whole set whenever it may have changed."""

    def addresses(self) -> AsyncIterator[frozenset[Address]]: ...


class StaticSource:
    def __init__(self, addresses: Iterable[Address]) -> None:
        self._addresses = frozenset(addresses)

    async def addresses(self) -> AsyncIterator[frozenset[Address]]:
        yield self._addresses


class FileSource:
    """A YAML or JSON file: a list of URLs, or Prometheus file_sd groups (`targets`, label `__scheme__`).

    Looked at each second, read again when it changed and at least each `interval` seconds.
    """

    def __init__(self, path: Path, interval: float) -> None:
        self._path, self._interval = path, interval
        self.trouble = ""

    async def addresses(self) -> AsyncIterator[frozenset[Address]]:
        last: frozenset[Address] | None = None
        while True:
            stamp = await asyncio.to_thread(self._stamp)
            found = await asyncio.to_thread(self._read)
            if found is not None and found != last:
                last = found
                yield found
            waited = 0.0
            while waited < self._interval and await asyncio.to_thread(self._stamp) == stamp:
                step = min(_FILE_LOOK, self._interval - waited)
                await asyncio.sleep(step)
                waited += step

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> frozenset[Address] | None:
        try:
            found = parse_replicas(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            self._complain(error.strerror or "cannot be read")
        except (ValueError, yaml.YAMLError) as error:
            self._complain(" ".join(str(error).split()))
        else:
            self.trouble = ""
            return found
        return None

    def _complain(self, reason: str) -> None:
        if reason != self.trouble:
            log.warning("the replicas file cannot be used; keeping the last replicas", reason=reason)
        self.trouble = reason


class DnsSource:
    """Every address of a host name is a replica; resolved again each `interval` seconds by the system's resolver."""

    def __init__(self, host: str, port: int, interval: float, resolve: "Resolve | None" = None) -> None:
        self._host, self._port, self._interval = host, port, interval
        self._resolver = resolve or resolve_by_system

    async def addresses(self) -> AsyncIterator[frozenset[Address]]:
        last: frozenset[Address] | None = None
        while True:
            found = await self._resolve()
            if found and found != last:
                last = found
                yield found
            await asyncio.sleep(self._interval)

    async def _resolve(self) -> frozenset[Address]:
        try:
            hosts = await self._resolver(self._host, self._port)
        except (OSError, UnicodeError) as error:
            log.warning("the replicas' name cannot be resolved; keeping the last replicas", name=self._host, reason=str(error))
            return frozenset()
        return frozenset(Address.parse(f"http://[{h}]:{self._port}" if ":" in h else f"http://{h}:{self._port}") for h in hosts)


Resolve = Callable[[str, int], Awaitable[Iterable[str]]]


async def resolve_by_system(host: str, port: int) -> set[str]:
    """Every address, of both families. Raises OSError."""
    rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {str(row[4][0]) for row in rows}


def parse_replicas(text: str) -> frozenset[Address]:
    """The addresses in a replicas file; raises ValueError that says which entry is wrong."""
    document = parse_yaml(text)
    if not isinstance(document, list):
        raise ValueError("the file must hold a list of URLs, or of groups with 'targets'")
    return frozenset(address for entry in document for address in _entry(entry))


def _entry(entry: Any) -> list[Address]:
    if isinstance(entry, str):
        return [_address(entry)]
    if isinstance(entry, dict) and isinstance(entry.get("targets"), list):
        labels = entry.get("labels")
        scheme = labels.get("__scheme__", "http") if isinstance(labels, dict) else "http"
        return [_address(target if "://" in str(target) else f"{scheme}://{target}") for target in entry["targets"]]
    raise ValueError(f"an entry is neither a URL nor a group with 'targets': {str(entry)[:80]!r}")


def _address(text: Any) -> Address:
    try:
        return Address.parse(str(text))
    except ValueError as error:
        raise ValueError(f"{str(text)[:80]!r}: {error}") from error
