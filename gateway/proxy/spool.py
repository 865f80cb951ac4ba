"""The body of a form: in memory while it is small, then in a temporary file without a name, which ends with its last user.

A large body is kept whole on purpose, not passed on while it comes: a replica is taken only when there is something for it
to do, the request can be sent to another one that is there, and the `model` field may stand behind the file.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress

IN_MEMORY = 1 << 20  # bytes; what is larger goes to a file in the directory for temporary files (TMPDIR)
PIECE = 65536  # bytes that are read at once
Span = tuple[int, int]


class Spool:
    """Bytes that are written once and read any number of times; OSError when the file cannot be written or read."""

    __slots__ = ("_file", "size")

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        self.size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def pieces(self, spans: list[Span], new: bytes) -> Iterator[bytes]:
        """All bytes in order, with `new` in place of each of `spans`."""
        at = 0
        for start, end in spans:
            yield from self._read(at, start)
            yield new
            at = end
        yield from self._read(at, self.size)

    def _read(self, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            self._file.seek(at)
            piece = self._file.read(min(PIECE, end - at))
            if not piece:
                raise OSError("the temporary file of a body is too short")
            at += len(piece)
            yield piece

    def close(self) -> None:
        with suppress(OSError):  # what could not be written is written again at the end
            self._file.close()

    def __del__(self) -> None:
        self.close()
