"""Every test of the data path that takes `setup` runs on both adapters and on both event loops."""

import asyncio
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
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if "setup" in getattr(item, "fixturenames", ()):
        factories["uvloop"] = uvloop.new_event_loop
    return factories
