"""What a person can do about a reason: the flag of vLLM, or of the training, that it is about."""

import re

from gateway.core.adapters import Adapter

_RANK = re.compile(r"rank", re.IGNORECASE)


def with_remedy(reason: str, adapter: Adapter) -> str:
    """The replica's own words, the adapter's rank where it matters, and the way out."""
    lowered = reason.lower()
    if _RANK.search(reason) and ("max" in lowered or "greater" in lowered):
        return (
            f"{reason} The adapter's rank is {adapter.rank}: start the replicas with "
            f"--max-lora-rank {_allowed(adapter.rank)} or train it with a smaller rank."
        )
    if "modules_to_save" in lowered:
        return f"{reason} Train it without modules_to_save, or merge it into the base model."
    if "dora" in lowered:
        return f"{reason} Train it without use_dora, or merge it into the base model."
    if "bias" in lowered:
        return f'{reason} Train it with bias="none".'
    if "size of tensor" in lowered or "expected target modules" in lowered:
        return f"{reason} It does not fit the replicas' base model: check which model it was trained on."
    return reason


def _allowed(rank: int) -> int:
    """The smallest value that vLLM's --max-lora-rank takes and that is enough."""
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)
