"""Puts what is remembered of all folders together into one catalog."""

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from gateway.control.folder_memory import FolderMemory
from gateway.core.adapters import Adapter, Catalog


def assemble(memories: Iterable[FolderMemory], trouble: str) -> Catalog:
    """Sorted by name; an adapter with the content of an earlier one says so."""
    ordered = sorted(memories, key=lambda memory: memory.found.name)
    first: dict[str, str] = {}
    adapters: dict[str, Adapter] = {}
    for memory in ordered:
        adapter = memory.adapter
        if adapter is None:
            continue
        twin = first.setdefault(adapter.digest, adapter.name)
        if twin != adapter.name:
            adapter = replace(adapter, warnings=(*adapter.warnings, f"same weights as {twin}"))
        adapters[adapter.name] = adapter
    rejected = {memory.found.name: memory.rejected for memory in ordered if memory.rejected is not None}
    return Catalog(MappingProxyType(adapters), MappingProxyType(rejected), trouble)
