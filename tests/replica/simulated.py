"""Clients of simulated replicas in this process, and adapters for them made without numpy."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from replica.sim import Sim
from tests.adapters import config, lora_tensors, safetensors_bytes
from tests.contract.subject import Client, new_name


def adapter(root: Path, say: str | None = None, seed: int = 0) -> Path:
    """A new folder below `root` with an adapter that says a text, or one derived from its bytes."""
    folder = root / new_name()
    folder.mkdir()
    metadata = {"say": say} if say else None
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(lora_tensors(seed=seed), metadata))
    (folder / "adapter_config.json").write_text(json.dumps(config()))
    return folder


@asynccontextmanager
async def client_of(sim: Sim, **headers: str) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=sim.url, timeout=10, trust_env=False, headers=headers) as http:
        yield Client(http)
