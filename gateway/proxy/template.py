"""The head of a message that a connection has accepted once: an equal one need not be parsed again.

Equal means byte for byte, but for the digits of Content-Length; and the message must have come whole, in one read. So
nothing is believed that a parser has not accepted in these very bytes. Everything else goes to the parser.
"""

import re
from typing import NamedTuple

PATIENCE = 8  # heads in a row that differ, after which a connection is no longer worth the learning
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})(?=\r\n)", re.IGNORECASE)
_NAMED = re.compile(rb"\r\ncontent-length", re.IGNORECASE)
_END = b"\r\n\r\n"


class Template(NamedTuple):
    before: bytes  # up to the digits of Content-Length
    behind: bytes  # from there to the end of the head

    @classmethod
    def of(cls, data: bytes, length: int) -> "Template | None":
        """From one whole message with a body of `length` bytes, which a parser has just accepted."""
        end = data.find(_END)
        head = data[: end + len(_END)]
        match = _LENGTH.search(head)
        if end < 0 or match is None or len(_NAMED.findall(head)) != 1 or len(data) - len(head) != length:
            return None
        return cls(head[: match.start(1)], head[match.end(1) :])

    def body_at(self, data: bytes) -> int:
        """Where the body begins, when `data` is exactly one whole message with this head; else 0."""
        before, behind = self
        if not data.startswith(before):
            return 0
        start = len(before)
        end = data.find(b"\r", start, start + 16)
        if end <= start or not data.startswith(behind, end):
            return 0
        digits, at = data[start:end], end + len(behind)
        return at if digits.isdigit() and int(digits) == len(data) - at else 0
