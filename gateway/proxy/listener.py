"""Accepts clients, many in one turn of the event loop: uvloop's own server takes one a turn, so that under load new
clients wait behind every open stream.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

AT_ONCE = 64  # connections accepted in one turn of the loop
RESOURCE_PAUSE = 0.5  # seconds to wait when there are no file descriptors left


class Listener:
    """Hands each connection that comes in on `listening` to a protocol of `factory`; the socket stays the caller's."""

    def __init__(self, listening: socket.socket, factory: Callable[[], asyncio.Protocol], backlog: int = 4096) -> None:
        self._listening, self._factory, self._backlog = listening, factory, backlog
        self._starting: set[asyncio.Task[object]] = set()
        self._open = False

    def start(self) -> None:
        self._listening.setblocking(False)
        self._listening.listen(self._backlog)
        self._open = True
        self._watch()

    def close(self) -> None:
        """Accept no more; connections that are open stay so."""
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._listening.fileno())

    def _watch(self) -> None:
        if self._open:
            asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(AT_ONCE):
            try:
                client, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors or memory: the backlog holds the clients meanwhile
                loop.remove_reader(self._listening.fileno())
                loop.call_later(RESOURCE_PAUSE, self._watch)
                return
            client.setblocking(False)
            task = loop.create_task(self._open_connection(client))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _open_connection(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, client)
        except OSError:
            client.close()

    def __repr__(self) -> str:
        return f"<Listener {'open' if self._open else 'closed'} starting={len(self._starting)}>"
