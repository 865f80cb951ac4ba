"""One set of assertions, two subjects: every test runs on a simulated replica and, marked `vllm`, on a real one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from replica.tiny import make_model
from tests.contract.subject import Client, Subject, server
from tests.engines import STARTS_WITHIN

KINDS = [
    pytest.param("sim", id="sim"),
    pytest.param("vllm", id="vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(600)]),
]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("contract") / "model")


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def subject(kind: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """The shared replica: two base names, two slots, four adapters in memory, ranks up to 16."""
    folder = tmp_path_factory.mktemp(f"contract-{kind}")
    running = server(kind, model, folder / "server.log", "tiny", "alias", max_loras="2", max_cpu_loras="4", max_lora_rank="16")
    running.start()
    try:
        asyncio.run(running.healthy(STARTS_WITHIN))
        yield Subject(kind, running, model, folder)
    finally:
        running.stop()


@pytest.fixture
async def client(subject: Subject) -> AsyncIterator[Client]:
    async with subject.client() as client:
        yield client
