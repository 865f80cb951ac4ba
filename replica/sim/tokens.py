"""The tiny model's tokenizer: one token per byte of text, two special ones around chat turns.

A prompt is kept as bytes, one per token; the special tokens stand in it as bytes 3 and 4, their own ids.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_FIRST = 5  # ids below are special
_PLAIN = (*range(33, 127), *range(161, 173), *range(174, 256))
_ORDER = (*_PLAIN, *(byte for byte in range(256) if byte not in _PLAIN))
_IDS = {byte: _FIRST + place for place, byte in enumerate(_ORDER)}
TURN_START, TURN_END = 3, 4


def text_prompt(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def chat_prompt(messages: Sequence[Mapping[str, Any]]) -> bytes:
    turns = b"".join(
        b"%c%b\n%b%c\n" % (TURN_START, _text(message.get("role")), _text(message.get("content")), TURN_END)
        for message in messages
    )
    return turns + b"%cassistant\n" % TURN_START


def ids_of(prompt: bytes, *, chat: bool) -> list[int]:
    special = {TURN_START, TURN_END} if chat else frozenset[int]()
    return [byte if byte in special else _IDS[byte] for byte in prompt]


def from_ids(ids: Sequence[int]) -> bytes:
    return bytes(_ORDER[number - _FIRST] for number in ids if _FIRST <= number < _FIRST + len(_ORDER))


def _text(content: Any) -> bytes:
    """Plain text, or the text parts of a list of parts."""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content.encode("utf-8", "replace") if isinstance(content, str) else b""
