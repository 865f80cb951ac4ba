"""The pins: names that an operator keeps on one revision, in `state.yaml` beside the snapshots.

Every gateway that shares the directory follows the file; one writes it aside and renames it, under a lock where the
filesystem has locks. The file holds nothing else.
"""

import fcntl
import os
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from gateway.control.followed_file import FollowedFile
from gateway.control.verdicts import quoted
from gateway.core.adapters import Revision

NAME = "state.yaml"
LOCK_WAIT = 5.0  # seconds
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_PINS: Mapping[str, str] = MappingProxyType({})


class Pins:
    """Adapter names and the digests they are kept on. All methods block."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._file = FollowedFile(home / NAME, home, parse_pins, _NO_PINS)

    def __repr__(self) -> str:
        return f"<Pins {len(self._file.value)}>"

    def read(self) -> Mapping[str, str]:
        """Name -> digest; the last good ones while the file is wrong. Never raises."""
        return self._file.read()

    @property
    def trouble(self) -> str:
        return self._file.trouble

    def set(self, name: str, digest: str | None) -> None:
        """Keep `name` on `digest`, or (None) let it follow the directory again.

        OSError where the file cannot be written, ValueError while it is there but wrong: it is never overwritten then.
        """
        with self._locked():
            self._file.read()
            if self.trouble:
                raise ValueError(f"{NAME} {self.trouble}")
            pins = {**self._file.value, name: digest}
            text = yaml.safe_dump({"pins": {n: d for n, d in sorted(pins.items()) if d is not None}}, allow_unicode=True)
            aside = self._home / f".{NAME}-{uuid.uuid4().hex[:12]}"
            try:
                with aside.open("w", encoding="utf-8") as file:
                    file.write("# kept by the gateways: pin and unpin with `lora-gateway adapters`\n" + text)
                    file.flush()
                    os.fsync(file.fileno())
                aside.rename(self._home / NAME)
            finally:
                aside.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time; without locks (some network shares) the last writer wins.

        The file is opened like everything here: not through a link, not waiting for a pipe's other end, and not for ever.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._home / f".{NAME}.lock", _LOCK_FLAGS, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(lock).st_mode):
                raise ValueError(f".{NAME}.lock is not a regular file: remove it")
            _lock(lock, time.monotonic() + LOCK_WAIT)
            yield
        finally:
            os.close(lock)


def _lock(descriptor: int, end: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise ValueError(f"another process has held .{NAME}.lock for {LOCK_WAIT:g} s: try again") from None
            time.sleep(0.02)
            continue
        except OSError:
            pass
        return


def parse_pins(document: Any) -> Mapping[str, str]:
    pins = document.get("pins") if isinstance(document, dict) else None
    if document is None or (isinstance(document, dict) and pins is None):
        return _NO_PINS
    if not isinstance(pins, dict):
        raise ValueError("must hold a mapping `pins` of adapter names to revisions")
    for name, digest in pins.items():
        if (
            not isinstance(name, str)
            or not isinstance(digest, str)
            or Revision.parse(f"{name}@{digest}") != Revision(name, digest)
        ):
            raise ValueError(f"the pin of {quoted(name)} must be a revision of 12 hex digits in quotes, not {quoted(digest)}")
    return MappingProxyType(dict(pins))
