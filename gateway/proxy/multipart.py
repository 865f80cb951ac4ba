"""A multipart form that is read while it comes: the `model` field, wherever it stands, and where its value lies.

The body goes to the replica byte for byte; only when the replica has the adapter under another name is the value
replaced in its place. Of several `model` fields the last counts, as for vLLM; a file of that name is no field.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.core.errors import GatewayError, InvalidRequest
from gateway.proxy.spool import IN_MEMORY, Span, Spool

MAX_MODEL = 65536  # bytes of a `model` field
MAX_PARTS = 1000  # as many as vLLM's own framework takes


@dataclass(slots=True)
class _Part:
    """The part that is being read, and what is known of all so far."""

    name: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    disposition: bytes = b""
    is_model: bool = False
    starts_at: int = 0
    content: bytearray = field(default_factory=bytearray)


class Form:
    """One body: `feed` it, `finish`, then read. What is wrong with it is told by `read_model`, not before."""

    def __init__(self, content_type: bytes) -> None:
        self._spool = Spool()
        self._part = _Part()
        self._chunk = b""
        self._ended = False
        self._parts = 0
        self._spans: list[Span] = []
        self._model = b""
        self._error: GatewayError | None = None
        self._parser: MultipartParser | None = None
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind == b"multipart/form-data" and boundary:
            try:
                self._parser = self._parser_for(boundary)
            except FormParserError as error:
                self._give_up(InvalidRequest(f"The multipart form is broken: {error}"))
        else:
            self._give_up(InvalidRequest("The body must be a multipart/form-data form with a boundary."))

    def feed(self, data: bytes) -> None:
        if self._parser is None or not data:
            return
        self._chunk = data
        try:
            self._parser.write(data)
            self._spool.write(data)
        except FormParserError as error:
            self._give_up(InvalidRequest(f"The multipart form is broken: {error}"))
        except InvalidRequest as error:
            self._give_up(error)
        except OSError as error:
            reason = f"The body could not be kept in a temporary file ({error.strerror}): see TMPDIR."
            self._give_up(GatewayError(reason))

    def finish(self) -> None:
        """That was the whole body."""
        if self._parser is not None and not self._ended:
            self._give_up(InvalidRequest("The multipart form is broken: its last boundary is missing."))
        self._parser, self._chunk = None, b""

    def close(self) -> None:
        """It is not needed any more."""
        self._parser = None
        self._spool.close()

    def read_model(self) -> str | None:
        """The model of a finished form; None when absent or empty. Raises GatewayError when it is no form."""
        if self._error is not None:
            raise self._error
        try:
            return self._model.decode() or None
        except UnicodeDecodeError:
            raise InvalidRequest("The form field 'model' must be UTF-8 text.", param="model") from None

    def body(self, model: str | None = None) -> tuple[int, bytes | Iterator[bytes]]:
        """Its length and the bytes, in pieces when they are many; with `model` as the value of that field."""
        spool = self._spool
        spans, name = (self._spans, model.encode()) if model is not None else ([], b"")
        length = spool.size + sum(start - end + len(name) for start, end in spans)
        pieces = spool.pieces(spans, name)
        return length, pieces if spool.size > IN_MEMORY else b"".join(pieces)

    def _give_up(self, error: GatewayError) -> None:
        self._error = error
        self.close()

    # parser

    def _parser_for(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
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

    def _on_part_begin(self) -> None:
        self._part = _Part()
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequest(f"The multipart form may have {MAX_PARTS} parts.")

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
        if not part.is_model:
            return
        if not part.content:  # what looked like a boundary at the end of the chunk before is told from the parser's own copy
            part.starts_at = self._spool.size + (start if data is self._chunk else -end)
        part.content += data[start:end]
        if len(part.content) > MAX_MODEL:
            raise InvalidRequest(f"The form field 'model' may have {MAX_MODEL} bytes.", param="model")

    def _on_part_end(self) -> None:
        part = self._part
        if part.is_model:
            self._model = bytes(part.content)
            if part.content:
                self._spans.append((part.starts_at, part.starts_at + len(part.content)))

    def _on_end(self) -> None:
        self._ended = True
