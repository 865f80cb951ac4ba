"""The digest of an adapter's content: the same on every host, mount and path, whatever the dates of the files.

It covers the canonical config, the safetensors header, all sizes and a sample of every tensor's bytes. Reading all the
bytes of 1,000 adapters on a network share would take minutes, and training changes every block. Pickles are never
opened as such: their size and sampled blocks count.
"""

import hashlib
import json

from gateway.control.safetensors_frame import Frame
from gateway.core.adapters import DIGEST_LENGTH


class Digest:
    """Collects the parts of one adapter; each is framed with its length, so no two contents run together alike."""

    def __init__(self, config: bytes) -> None:
        self._hash = hashlib.sha256()
        self.add(config)

    def add(self, part: bytes) -> None:
        self._hash.update(len(part).to_bytes(8, "little"))
        self._hash.update(part)

    def add_frame(self, frame: Frame) -> None:
        """The header by its meaning: writers order its keys as they like."""
        self.add(json.dumps(dict(frame.metadata), sort_keys=True).encode())
        for tensor in frame.tensors:
            self.add(repr(tensor).encode("utf-8", "backslashreplace"))

    def add_size(self, name: str, size: int) -> None:
        self.add(f"{name} {size}".encode())

    def text(self) -> str:
        return self._hash.hexdigest()[:DIGEST_LENGTH]
