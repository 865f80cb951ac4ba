"""An adapter directory with its scanner, whose steady clock moves only when a test says so, and a disk that can fail."""

import os
from pathlib import Path

from gateway.control.files import Disk, Entry
from gateway.control.scanner import Scanner
from gateway.control.snapshots import Snapshots
from gateway.control.validation import Rules
from gateway.core.adapters import Catalog, RejectedState
from tests.adapters import write_adapter

OLD = 60.0  # an age at which files are believed at once


class FailingDisk(Disk):
    """The real disk, but for what a test puts into `errors` (by the end of the path) and `emptied` (whole paths)."""

    def __init__(self) -> None:
        self.errors: dict[str, list[OSError]] = {}
        self.emptied: set[str] = set()
        self.calls = 0

    def fail(self, path_end: str, number: int, times: int = 1) -> None:
        self.errors.setdefault(path_end, []).extend(OSError(number, os.strerror(number)) for _ in range(times))

    def listing(self, folder: str) -> list[Entry]:
        self._meet(folder)
        return [] if folder in self.emptied else super().listing(folder)

    def stat(self, path: str) -> os.stat_result:
        self.calls += 1
        self._meet(f"stat {path}")
        return super().stat(path)

    def open(self, path: str) -> int:
        self._meet(f"open {path}")
        return super().open(path)

    def _meet(self, what: str) -> None:
        for end, errors in self.errors.items():
            if what.endswith(end) and errors:
                raise errors.pop(0)


class Shelf:
    def __init__(self, root: Path, *, snapshots: bool = True, rules: Rules | None = None, mode: str = "link") -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.now = 1000.0
        self.disk = FailingDisk()
        self.home = root / ".lora-gateway"
        self.snapshots = Snapshots(root, self.home, mode, 3600.0) if snapshots else None
        self.scanner = Scanner(
            root,
            depth=2,
            rules=rules or Rules(),
            snapshots=self.snapshots,
            steady=lambda: self.now,
            layer=self.disk,
        )

    def put(self, name: str, *, seed: int = 0, age: float = OLD) -> Path:
        return write_adapter(self.root / name, seed=seed, age=age)

    def scan(self, later: float = 0.0) -> Catalog:
        self.now += later
        return self.scanner.scan()

    def settled(self) -> Catalog:
        """Enough looks, far enough apart, for anything that can be believed."""
        for _ in range(3):
            self.scan(0.6)
        return self.scan(0.6)

    @property
    def names(self) -> list[str]:
        return list(self.scanner.catalog.adapters)

    def digest(self, name: str) -> str:
        return self.scanner.catalog.adapters[name].digest

    def reason(self, name: str) -> str:
        rejected = self.scanner.catalog.rejected.get(name)
        return rejected.reason if rejected else ""

    def state(self, name: str) -> RejectedState | None:
        rejected = self.scanner.catalog.rejected.get(name)
        return rejected.state if rejected else None
