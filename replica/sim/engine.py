"""The engine behind one simulated replica: what it holds in memory, what it runs, and how it dies.

As in vLLM 0.32: everything happens in one loop, so a load stalls every stream; at most `max_loras` adapters run at once
and a request for one more waits while base requests pass; at most `max_cpu_loras` stay in memory and an evicted one is
read from disk again when it is next used, and if that fails the whole engine dies; the prefix cache is keyed by name
and path, so new bytes under an old name and path answer from the old ones for prompts longer than a block.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from replica.sim.adapter_files import AdapterMissing, AdapterRefused, Weights, read_adapter
from replica.sim.options import Faults, Options

BLOCK_TOKENS = 128
DEATH_NOTE = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineDead(Exception):
    """Every request that the engine had, and every later one, ends with this."""


@dataclass(frozen=True, slots=True)
class Lora:
    """One successful or attempted load: the number tells two loads under one name apart."""

    number: int
    name: str
    path: str


@dataclass(eq=False, slots=True)
class Sequence:
    """One running request; `weights` is None for the base model."""

    lora: Lora | None
    weights: Weights | None


class Engine:
    def __init__(self, options: Options, *, faults: Callable[[], Faults], died: Callable[[], None]) -> None:
        self._options = options
        self._faults = faults
        self._died = died
        self._hidden = _width(options.model_root)
        self.dead = False
        self.frozen = False
        self.running: set[Sequence] = set()
        self.waiting: list[Lora | None] = []
        self.first_token: Callable[[float], None] = lambda seconds: None  # told the time to each request's first token
        self._memory: OrderedDict[int, Weights] = OrderedDict()
        self._prefixes: dict[tuple[str, str, bytes], Weights] = {}
        self._loading = False
        self._one_load = asyncio.Lock()
        self._wakeup = asyncio.Event()

    def __repr__(self) -> str:
        state = "dead" if self.dead else "alive"
        return f"<Engine {state} running={len(self.running)} waiting={len(self.waiting)} memory={[*self._memory]}>"

    def notify(self) -> None:
        """Something that somebody waits for may have changed (faults, slots, a load's end, death)."""
        self._wakeup.set()
        self._wakeup = asyncio.Event()

    def die(self) -> None:
        if not self.dead:
            self.dead = True
            self.notify()
            self._died()

    async def load(self, lora: Lora) -> None:
        """Read the adapter inside the engine's loop; raises AdapterMissing, AdapterRefused, EngineDead."""
        async with self._one_load:
            await self._turn()
            await self._read(lora)
            running = {sequence.lora for sequence in self.running if sequence.lora}
            doubled = len({other.name for other in running}) < len(running)
            if doubled and len(running | {lora}) > self._options.max_loras:
                # two loads under one name run at once: vLLM loses track of their slots as soon as a third one comes
                self.die()
                raise EngineDead

    async def _read(self, lora: Lora) -> Weights:
        self._loading = True
        try:
            seconds = self._faults().load_seconds
            await self._pause(self._options.load_seconds if seconds is None else seconds)
            if not self.mounted(lora.path):
                raise AdapterMissing
            weights = read_adapter(Path(lora.path).expanduser(), max_rank=self._options.max_lora_rank, hidden=self._hidden)
        finally:
            self._loading = False
            self.notify()
        while len(self._memory) >= self._options.cached_loras:
            self._memory.popitem(last=False)
        self._memory[lora.number] = weights
        return weights

    def mounted(self, path: str) -> bool:
        roots = self._options.adapter_dirs
        return not roots or any(Path(path).absolute().is_relative_to(root.absolute()) for root in roots)

    @asynccontextmanager
    async def sequence(self, lora: Lora | None, prompt: bytes) -> AsyncIterator[Sequence]:
        """One running request, from when it has a slot; raises EngineDead."""
        await self._slot(lora)
        sequence = Sequence(lora, None)
        self.running.add(sequence)
        try:
            if lora is not None:
                sequence.weights = self._answering(lora, prompt, await self._weights(lora))
            yield sequence
        finally:
            self.running.discard(sequence)
            self.notify()

    async def step(self, seconds: float) -> None:
        """The time of one token; raises EngineDead."""
        await asyncio.sleep(seconds)
        await self._turn()

    async def _slot(self, lora: Lora | None) -> None:
        ticket = lora
        self.waiting.append(ticket)
        try:
            while True:
                await self._turn()
                if self._fits(lora):
                    return
                await self._wakeup.wait()
        finally:
            self.waiting.remove(ticket)

    def _fits(self, lora: Lora | None) -> bool:
        if len(self.running) >= self._options.max_num_seqs:
            return False
        numbers = {sequence.lora.number for sequence in self.running if sequence.lora}
        return lora is None or lora.number in numbers or len(numbers) < self._options.max_loras

    async def _weights(self, lora: Lora) -> Weights:
        weights = self._memory.get(lora.number)
        if weights is not None:
            self._memory.move_to_end(lora.number)
            return weights
        async with self._one_load:
            await self._turn()
            if lora.number in self._memory:
                return self._memory[lora.number]
            try:
                return await self._read(lora)
            except (AdapterMissing, AdapterRefused) as error:
                self.die()  # the engine reads inside its step, where nothing catches
                raise EngineDead from error

    def _answering(self, lora: Lora, prompt: bytes, weights: Weights) -> Weights:
        if len(prompt) <= BLOCK_TOKENS:
            return weights
        return self._prefixes.setdefault((lora.name, lora.path, prompt[:BLOCK_TOKENS]), weights)

    async def _turn(self) -> None:
        """Wait until the engine's loop goes round: not frozen, not inside a load."""
        while not self.dead and (self._loading or self.frozen or self._faults().hang):
            await self._wakeup.wait()
        if self.dead:
            raise EngineDead

    async def _pause(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not self.dead and (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.wait_for(self._wakeup.wait(), left)
            except TimeoutError:
                return
        if self.dead:
            raise EngineDead


def _width(model_root: str) -> int | None:
    """The hidden size of the base model, if its folder is really there."""
    try:
        width = json.loads((Path(model_root) / "config.json").read_text())["hidden_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return width if isinstance(width, int) else None
