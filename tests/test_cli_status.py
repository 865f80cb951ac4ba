"""How the status fits a screen that is smaller than the fleet."""

from io import StringIO

import pytest
from rich.console import Console

from gateway.cli_status import AdapterRow, Document, GatewayRow, Place, ReplicaRow, tables


def lines(document: Document, height: int | None) -> list[str]:
    console = Console(file=StringIO(), width=160)
    console.print(tables(document, height))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def fleet(adapters: int, replicas: int) -> Document:
    places = {f"gpu-{n}:8000": Place("loaded") for n in range(replicas)}
    rows = [AdapterRow(f"a{n:04d}", state="ready", replicas=places) for n in range(adapters)]
    return Document(GatewayRow(ready=True), rows, [ReplicaRow(id, phase="ready") for id in places])


@pytest.mark.parametrize("height", [12, 24, 50])
def test_what_is_in_trouble_stands_on_any_screen_and_what_is_left_out_is_counted(height: int) -> None:
    document = fleet(1000, 50)
    document.adapters[700].state = "rejected"
    document.replicas[40].phase = "down"
    shown = lines(document, height)
    assert len(shown) <= height
    assert any("a0700" in line and "rejected" in line for line in shown)
    assert any("gpu-40:8000" in line and "down" in line for line in shown)
    told = [int(line.split()[1]) for line in shown if line.startswith("and ")]
    listed = [sum(line.startswith(word) for line in shown) for word in ("a0", "gpu-")]
    assert [left + there for left, there in zip(told, listed, strict=True)] == [1000, 50]


def test_a_screen_that_is_large_enough_shows_all_in_their_order() -> None:
    document = fleet(12, 3)
    document.adapters[7].state = "pending"
    assert lines(document, 60) == lines(document, None)
    assert [line.split()[0] for line in lines(document, 60) if line.startswith("a0")] == [f"a{n:04d}" for n in range(12)]
