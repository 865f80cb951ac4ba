"""Why a folder cannot be served now: two exceptions that carry a sentence for people and one word for the metric.

The sentence tells the remedy and holds no path. Codes are a fixed set, so they may be metric labels:
config, lfs_pointer, not_lora, field, rank, weights_missing, weights_short, weights_corrupt, no_lora_tensors, shape,
not_finite, pickle, sharded, outside, not_a_file, name, unreadable, changing, duplicate, pin.
"""


class Refused(Exception):
    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class Incomplete(Refused):
    """Files are still being written, or not there yet: heals by itself."""


class Invalid(Refused):
    """Complete but wrong: somebody has to change the files."""


def quoted(value: object, limit: int = 60) -> str:
    """A value from a file, short and printable: files are hostile and reasons end up in logs, JSON and terminals."""
    text = ascii(value) if isinstance(value, str | bytes) else ascii(value if _is_small(value) else type(value).__name__)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _is_small(value: object) -> bool:
    """Whether printing costs nothing: not a big number (quadratic to print) and not a container (deep or long)."""
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 256)
