"""The `model` field of a multipart form, wherever it stands, and where its value lies in the body.

The body goes to the replica byte for byte; only when the replica has the adapter under another name is the value
replaced in its place. Of several `model` fields the last counts, as for vLLM; a file of that name is no field.
"""

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.core.errors import InvalidRequest


@dataclass(slots=True)
class _Part:
    """The part that is being read, and what is known of all so far."""

    name: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    disposition: bytes = b""
    is_model: bool = False
    starts_at: int = -1
    content: bytearray = field(default_factory=bytearray)


class Form:
    """A whole form. `model` is None when absent or empty; raises InvalidRequest when it is no form."""

    def __init__(self, content_type: bytes, body: bytes) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidRequest("The body must be a multipart/form-data form with a boundary.")
        self._body = body
        self._part = _Part()
        self._ended = False
        self._spans: list[tuple[int, int]] = []
        try:
            self._parse(boundary)
        except FormParserError as error:
            raise InvalidRequest(f"The multipart form is broken: {error}") from None
        if not self._ended:
            raise InvalidRequest("The multipart form is broken: its last boundary is missing.")
        self.model = self._model()

    def with_model(self, name: str) -> bytes:
        """The body with the value of `model` replaced."""
        out: list[bytes] = []
        at = 0
        for start, end in self._spans:
            out += (self._body[at:start], name.encode())
            at = end
        out.append(self._body[at:])
        return b"".join(out)

    def _parse(self, boundary: bytes) -> None:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": lambda data, start, end: self._part.name.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._part.value.extend(data[start:end]),
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )
        parser.write(self._body)
        parser.finalize()

    def _model(self) -> str | None:
        if not self._spans:
            return None
        start, end = self._spans[-1]
        try:
            return self._body[start:end].decode() or None
        except UnicodeDecodeError:
            raise InvalidRequest("The form field 'model' must be UTF-8 text.", param="model") from None

    def _on_part_begin(self) -> None:
        self._part = _Part()

    def _on_header_end(self) -> None:
        part = self._part
        if part.name.lower() == b"content-disposition":
            part.disposition = bytes(part.value)
        part.name.clear()
        part.value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._part.disposition)
        self._part.is_model = options.get(b"name") == b"model" and b"filename" not in options

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part.is_model:
            if part.starts_at < 0:
                part.starts_at = start
            part.content += data[start:end]

    def _on_part_end(self) -> None:
        part = self._part
        if not part.is_model:
            return
        start = max(part.starts_at, 0)
        end = start + len(part.content)
        if self._body[start:end] != part.content:
            raise InvalidRequest("The form field 'model' cannot be read.", param="model")
        self._spans.append((start, end))

    def _on_end(self) -> None:
        self._ended = True
