"""Names put in and put back, only where a replica has an adapter under another name than the client's.

In a request `model` at the top level is replaced; every other value stays byte for byte. In an answer every value of a
`"model"` key that is the served name becomes the client's name, however the bytes were cut on their way. A quote inside a
JSON string is escaped, so `"model"` with a plain first quote and a colon behind is always a key.
"""

import json
import re

import msgspec

from gateway.core.errors import InvalidRequest

_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_WS = rb"[ \t\r\n]*"
# Every beginning of `"model": "NAME"` at the end of the data; the group is what there is of the name.
_KEY = rb'"(?:m(?:o(?:d(?:e(?:l(?:"' + _WS + rb"(?::" + _WS + rb'(?:"((?:[^"\\]|\\.)*\\?))?)?)?)?)?)?)?)?\Z'
_beginning = re.compile(rb"(?<!\\)" + _KEY, re.DOTALL).finditer
_CLOSED = (b"}\n\n", b"}", b"]\n\n", b"}\r\n\r\n")


def replace_model(body: bytes, name: str) -> bytes:
    """The JSON object `body` with `model` set to `name`; raises InvalidRequest where a key is no text."""
    try:
        fields = _top(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # keys that are not asked for were not looked at until now
        raise InvalidRequest(f"The body is not valid JSON: {error}") from None
    fields["model"] = msgspec.Raw(msgspec.json.encode(name))
    return msgspec.json.encode(fields)


class Names:
    """A served name and the client's name for it, prepared; for any number of answers."""

    __slots__ = ("closed", "find", "new", "spellings")

    def __init__(self, served: str, name: str) -> None:
        plain = msgspec.json.encode(served)[1:-1]
        escaped = json.dumps(served)[1:-1].encode()
        any_spelling = re.escape(plain) + b"|" + re.escape(escaped)
        self.spellings = (plain, escaped)
        self.new = msgspec.json.encode(name)[1:-1]
        self.find = re.compile(rb'"model"(?<!\\"model")' + _WS + b":" + _WS + b'"(' + any_spelling + b')"').search
        self.closed = () if set(b"}]") & set(plain) else _CLOSED


class NameRestorer:
    """Puts the client's name in the place of the served one in a JSON or SSE answer that comes in pieces."""

    __slots__ = ("_held", "_names")

    def __init__(self, names: Names) -> None:
        self._names = names
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What of the answer is certain now."""
        if self._held:
            data, self._held = self._held + data, b""
        settled = 0
        match = self._names.find(data)
        if match is not None:
            data, settled = self._restored(data, match)
        if data.endswith(self._names.closed):
            return data
        begun = self._begun(data, settled)
        self._held = data[begun:]
        return data[:begun]

    def flush(self) -> bytes:
        """What was held back, when the answer is over."""
        held, self._held = self._held, b""
        return held

    def _restored(self, data: bytes, match: "re.Match[bytes] | None") -> tuple[bytes, int]:
        """`data` with all names put back, and how far that went."""
        out: list[bytes] = []
        at = 0
        while match is not None:
            out += (data[at : match.start(1)], self._names.new)
            at = match.end(1)
            match = self._names.find(data, at)
        settled = sum(map(len, out))
        out.append(data[at:])
        return b"".join(out), settled

    def _begun(self, data: bytes, settled: int) -> int:
        """From where on the end of `data` may be the beginning of a name, or of an escaped quote."""
        for match in _beginning(data, settled):
            value = match[1]
            if value is None or any(spelling.startswith(value) for spelling in self._names.spellings):
                return match.start()
        return len(data) - 1 if data.endswith(b"\\") else len(data)
