"""Values for tests of the core: adapters and replicas as the control loop would have published them."""

from dataclasses import replace

from gateway.core.adapters import Adapter, Catalog, Home
from gateway.core.replica import LoraSupport, ModelEntry, Observation, Phase, Replica, Roots

ROOTS = Roots("/adapters", "/adapters/.lora-gateway")


def adapter(name: str, version: int = 1, *, home: Home = Home.LINK, base: str | None = "base-a", rank: int = 8) -> Adapter:
    digest = f"{version:012x}"
    path = f"/adapters/{name}"
    load_path = path if home is Home.OWN_PATH else f"/adapters/.lora-gateway/{name}@{digest}"
    return Adapter(name, digest, path, load_path, home, base, rank, 1000)


def catalog(*adapters: Adapter) -> Catalog:
    return Catalog({a.name: a for a in adapters})


def replica(
    number: int = 1, held: dict[str, str] | None = None, *, bases: tuple[str, ...] = ("base-a",), ready: bool = True
) -> Replica:
    """`held`: path by served name."""
    entries = [ModelEntry(base, f"/models/{base}", None) for base in bases]
    entries += [ModelEntry(name, path, bases[0]) for name, path in (held or {}).items()]
    record = Replica(f"r{number}:8000", f"http://r{number}:8000").adopting(Observation.of(entries, ROOTS), ())
    if not ready:
        return record
    return replace(record, phase=Phase.READY, reason="", lora=LoraSupport.SUPPORTED)
