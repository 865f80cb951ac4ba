"""The arrows between the modules, read from the source: who may import whom, and where a broad catch may stand."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLANES = {"control", "proxy", "admin"}
# The first word of a module's name below `gateway` (cli_status belongs to cli) -> what it may import below `gateway`.
ARROWS = {
    "core": {"core"},
    "metrics": {"metrics", "core"},
    "tracing": {"core"},
    "control": {"control", "metrics", "core"},
    "proxy": {"proxy", "metrics", "core"},
    "admin": {"admin", "metrics", "core"},
    "logs": set[str](),
    "settings": {"settings", "cli", "core"},  # cli: the docs page words defaults as the help does
    "check": {"control", "core"},
    "publishing": {"publishing", "check", "control", "core"},
    "app": {*PLANES, "metrics", "tracing", "core", "settings"},
    "demo": {"demo", "logs", "core"},
    "cli": {"cli", "app", "check", "publishing", "demo", "settings", "logs", "process"},
    "process": {"app", "settings", "logs", "proxy"},
    "__main__": {"cli"},
}
# What would give the decisions a clock, files or a network of their own.
NOT_IN_CORE = {
    "httpx",
    "starlette",
    "uvicorn",
    "structlog",
    "time",
    "datetime",
    "os",
    "pathlib",
    "socket",
    "ssl",
    "threading",
}
NO_NETWORK = {
    "CancelledError",
    "Event",
    "Future",
    "Task",
    "get_running_loop",
    "timeout",
}  # all of asyncio that core may use
# a pass of the control loop, the process, the exception table of the data path
BROAD_CATCHES = {"gateway/control/reconciler.py", "gateway/process.py", "gateway/proxy/exchange.py"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, at its top or inside a function."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(path: Path) -> str:
    first = path.relative_to(ROOT / "gateway").parts[0].removesuffix(".py")
    return first if first.startswith("__") else first.split("_")[0]


def layers_imported(path: Path) -> set[str]:
    names = [name.split(".") for name in imported(path)]
    words = {name[1] for name in names if name[0] == "gateway" and not name[1].startswith("__version")}
    return {word if word.startswith("__") else word.split("_")[0] for word in words}


@pytest.mark.parametrize("path", sources("gateway"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_inwards(path: Path) -> None:
    allowed = ARROWS.get(layer(path), set())
    assert layers_imported(path) <= allowed, f"{layer(path)} may import {sorted(allowed)}"


def test_the_product_does_not_need_the_replica_nor_the_replica_the_product() -> None:
    borrowing = {str(p.relative_to(ROOT)) for p in sources("gateway") if any(n.startswith("replica") for n in imported(p))}
    assert {path for path in borrowing if not path.startswith("gateway/demo")} == set()
    assert [path for path in sources("replica") if any(name.startswith("gateway") for name in imported(path))] == []


@pytest.mark.parametrize("path", sources("gateway/core"), ids=lambda path: path.name)
def test_core_has_no_clock_no_files_and_no_network(path: Path) -> None:
    assert {name.split(".")[0] for name in imported(path)} & NOT_IN_CORE == set()
    used = {
        node.attr
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asyncio"
    }
    assert used <= NO_NETWORK


def broad(node: ast.AST) -> bool:
    """Whether it swallows any exception: not when it raises it again as its last act."""
    if isinstance(node, ast.ExceptHandler):
        names = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        last = node.body[-1]
        return any(_is_any(name) for name in names) and not (isinstance(last, ast.Raise) and last.exc is None)
    return isinstance(node, ast.Call) and "suppress" in ast.unparse(node.func) and any(map(_is_any, node.args))


def _is_any(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Name) and node.id in ("Exception", "BaseException"))


def test_broad_catches_stand_in_their_places_only() -> None:
    places = {
        str(p.relative_to(ROOT)) for d in ("gateway", "replica") for p in sources(d) if any(map(broad, ast.walk(tree(p))))
    }
    assert places <= BROAD_CATCHES


def test_nothing_rebinds_a_global() -> None:
    places = [
        p for d in ("gateway", "replica") for p in sources(d) if any(isinstance(n, ast.Global) for n in ast.walk(tree(p)))
    ]
    assert places == []
