"""The model list that clients see: the same whichever replica or gateway answers."""

from typing import Any

from gateway.core.bases import Fit
from gateway.core.registry import Registry


def model_list(registry: Registry) -> list[dict[str, Any]]:
    """Base models, then static LoRAs, then every valid adapter by name, whether loaded yet or not, then aliases."""
    catalog, bases = registry.catalog, registry.bases
    roots: dict[str, str] = {}
    statics: dict[str, str] = {}
    for replica in registry.replicas():
        for name in replica.base_models:
            roots.setdefault(name, replica.seen.base_roots[0] if replica.seen.base_roots else name)
        for name in replica.seen.static:
            statics.setdefault(name, replica.base_models[0] if replica.base_models else "")
    rows = [_entry(name, roots.get(name, name), None) for name in bases.names]
    rows += [
        _entry(name, name, parent or None)
        for name, parent in sorted(statics.items())
        if name not in catalog.adapters and name not in bases.names
    ]
    for name, adapter in sorted(catalog.adapters.items()):
        if name not in bases.names and bases.fit(adapter) is not Fit.NONE and adapter.revision not in registry.lost:
            entry = _entry(name, adapter.path, bases.parent(adapter), created=adapter.made_at)
            rows.append(entry | {"revision": adapter.digest})
    rows += [
        _entry(name, str(alias), None)
        for name, alias in sorted(catalog.aliases.items())
        if name not in bases.names and name not in catalog.adapters and name not in catalog.rejected and name not in statics
    ]
    return rows


def _entry(name: str, root: str, parent: str | None, created: int = 0) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "lora-gateway",
        "root": root,
        "parent": parent,
    }
