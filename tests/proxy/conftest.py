"""Every test of the data path that takes `setup` runs on both adapters, on uvloop, which is what the gateway runs on.

TEST_ALL_LOOPS=1 runs them on asyncio's own loop too; tests/system runs the default adapter on that one in any case.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import uvloop


@dataclass(frozen=True)
class Setup:
    """What the gateway runs on."""

    adapter: str


@pytest.fixture(params=["protocol", "asgi"])
def setup(request: pytest.FixtureRequest) -> Setup:
    return Setup(request.param)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if "setup" not in getattr(item, "fixturenames", ()):
        return {"asyncio": asyncio.new_event_loop}
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if os.environ.get("TEST_ALL_LOOPS"):
        factories["asyncio"] = asyncio.new_event_loop
    return factories
