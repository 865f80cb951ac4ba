"""A replica for large bodies, and how much memory the process of the tests has: the gateway, the client and the replica."""

import hashlib
import os
from pathlib import Path

from tests.proxy.fake_replica import Line


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Sieve:
    """A replica that reads slowly, keeps only a digest of the body, and sees how much memory the process has."""

    def __init__(self) -> None:
        self.length = self.peak = 0
        self.digest = hashlib.sha256()

    async def serve(self, line: Line) -> None:
        try:
            while True:
                await self._take(line)
        except EOFError:
            line.transport.close()

    async def _take(self, line: Line) -> None:
        head = (await line.read_until(b"\r\n\r\n")).lower()
        self.length = left = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.digest = hashlib.sha256()
        while left:
            piece = await line.read(min(left, 65536))
            line.transport.pause_reading()
            self.digest.update(piece)
            self.peak = max(self.peak, resident())
            left -= len(piece)
            line.transport.resume_reading()
        line.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
