"""The names that one simulated replica answers to: base model first, then adapters in the order of their loads."""

import asyncio
import secrets
import time
from collections import defaultdict
from typing import Any

from replica.sim.adapter_files import AdapterMissing, AdapterRefused
from replica.sim.body import json_object, require, text_field
from replica.sim.engine import DEATH_NOTE, Engine, EngineDead, Lora
from replica.sim.errors import error, internal, unknown_model
from replica.sim.http import Reply, Request
from replica.sim.options import Options


class Names:
    """`load` and `unload` hold a lock per name, as vLLM does, so of equal loads at once exactly one is answered 200."""

    def __init__(self, options: Options, engine: Engine) -> None:
        self._options = options
        self._engine = engine
        self._count = 0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.loaded: dict[str, Lora] = {}

    def __repr__(self) -> str:
        return f"<Names {[*self._options.model_names, *self.loaded]}>"

    def resolve(self, model: str | None) -> Lora | None:
        """The adapter, or None for the base model; raises Refused."""
        if not model or model in self._options.model_names:
            return None
        if model not in self.loaded:
            raise unknown_model(model, self._options.model_names)
        return self.loaded[model]

    def shown(self, lora: Lora | None) -> str:
        """Whatever alias was asked for, the answer names the first."""
        return lora.name if lora else self._options.model_names[0]

    async def load(self, request: Request) -> Reply:
        body = json_object(request)
        require(body, "lora_name", "lora_path")
        name, path = text_field(body, "lora_name"), text_field(body, "lora_path")
        in_place = body.get("load_inplace") is True
        async with self._locks[name]:
            self._check_load(name, path, in_place)
            if in_place and name in self.loaded:
                number = self.loaded[name].number
            else:
                self._count += 1
                number = self._count
            lora = Lora(number, name, path)
            await self._load(lora)
            self.loaded[name] = lora
        return Reply(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), None)

    async def unload(self, request: Request) -> Reply:
        body = json_object(request)
        require(body, "lora_name")
        name = text_field(body, "lora_name")
        async with self._locks[name]:
            if not name:
                raise error(400, "InvalidUserInput", "'lora_name' needs to be provided to unload a LoRA adapter.")
            if name not in self.loaded:
                raise error(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
            del self.loaded[name]
        return Reply(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), None)

    def cards(self, hidden: str | None) -> dict[str, Any]:
        options, base = self._options, self._options.model_names[0]
        bases = [_card(name, options.model_root, None, options.max_model_len) for name in options.model_names]
        loras = [_card(lora.name, lora.path, base, None) for lora in self.loaded.values()]
        shown = {None: [*bases, *loras], "adapters": bases, "all": []}[hidden]
        return {"object": "list", "data": shown}

    def _check_load(self, name: str, path: str, in_place: bool) -> None:
        if not name or not path:
            raise error(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._options.model_names:
            raise error(400, "InvalidUserInput", f"The lora adapter '{name}' conflicts with a served base model.")
        if not in_place and name in self.loaded:
            text = "If you want to load the adapter in place, set 'load_inplace' to True."
            raise error(400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded. {text}")

    async def _load(self, lora: Lora) -> None:
        failed = "Call to add_lora method failed: "
        if not self._options.enable_lora:
            raise internal(failed + "LoRA is not enabled. Use --enable-lora to enable LoRA.")
        try:
            await self._engine.load(lora)
        except AdapterMissing as problem:
            text = f"Loading lora {lora.name} failed: No adapter found for {lora.path}"
            raise error(404, "NotFoundError", text) from problem
        except AdapterRefused as problem:
            raise internal(failed + str(problem)) from problem
        except EngineDead as problem:
            raise internal(DEATH_NOTE) from problem


def _card(name: str, root: str, parent: str | None, length: int | None) -> dict[str, Any]:
    now = int(time.time())
    permission = {
        "id": f"modelperm-{secrets.token_hex(8)}",
        "object": "model_permission",
        "created": now,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {"id": name, "object": "model", "created": now, "owned_by": "vllm", "root": root, "parent": parent}
    return card | {"max_model_len": length, "permission": [permission]}
