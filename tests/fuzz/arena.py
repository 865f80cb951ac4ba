"""One gateway and one replica that all cases of a run share, a reader of answers, and what must hold after each batch.

Answers are read by h11, which shares no code with the gateway's parser. A request names its case in `x-fuzz`; the replica
looks up there what to do. What a message smuggles is marked EVIL and must never be seen by itself on the other side.
"""

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import h11

from gateway.proxy.datapath import Limits
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import Call, FakeReplica, Line, replica
from tests.proxy.rig import Client, Rig, Seat, Table, gateway
from tests.waiting import until

PATIENCE = 10.0  # seconds after which silence is a hang
MAX_BODY = 4 << 20
SERVED = "beta@0123456789ab"  # what the replica has for `beta`; `alpha` is served under its own name
EVIL = b"evil-7c1f"

Deed = Callable[[Call, Line], Awaitable[None]]


class Found(AssertionError):
    """The gateway did what it must not do."""


@dataclass(frozen=True)
class Got:
    """One answer as a client understands it. Not `whole`: the connection ended before the answer did."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool


@dataclass
class Arena:
    adapter: str
    rig: Rig
    fake: FakeReplica
    deeds: dict[str, Deed] = field(default_factory=dict)
    seen: list[tuple[str, Call]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def serve(self, line: Line) -> None:
        """In place of the replica's own loop: a case may answer before it has read the body."""
        try:
            while True:
                head = (await line.read_until(b"\r\n\r\n")).decode("latin-1")
                first, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
                call = Call(
                    line, first.split(" ")[1], [(n.lower(), v.strip(" \t")) for n, v in (f.split(": ", 1) for f in fields)]
                )
                case = call.header("x-fuzz") or ""
                self.seen.append((case, call))
                if EVIL.decode() in head:
                    self.faults.append(f"a smuggled request reached the replica: {head!r}")
                await self.deeds.get(case, _plain)(call, line)
        except EOFError:
            line.transport.close()
        except (ValueError, IndexError) as error:
            self.faults.append(f"the replica got what is no request: {error!r}")

    def calls(self, case: str) -> list[Call]:
        return [call for seen, call in self.seen if seen == case]

    async def settled(self) -> None:
        """Nothing is open, nothing was reported to the loop, and the gateway answers."""
        try:
            await self.rig.quiet(PATIENCE)
            await until(lambda: self.fake.open_lines == sum(len(p.open) for p in self.rig.path.pools), PATIENCE)
        except AssertionError as error:
            raise Found(f"not quiet: {error}; replica's connections {self.fake.open_lines}, {self.rig.path.pools}") from None
        gc.collect()  # reports exceptions of tasks that nobody awaited
        await asyncio.sleep(0)
        if self.faults:
            raise Found("; ".join(self.faults))
        client = await self.rig.client()
        client.post({"model": "alpha"}, x_fuzz="plain")
        got, _ = await read_answer(client.reader, b"")
        client.close()
        if got is None or got.status != 200:
            raise Found(f"a plain request is answered with {got}")
        await self.rig.quiet(PATIENCE)
        self.deeds.clear()
        self.seen.clear()
        self.fake.lines[:] = [line for line in self.fake.lines if not line.closed.is_set()]
        self.rig.tally.codes.clear()
        self.rig.tally.first_bytes.clear()
        self.rig.table.told.clear()


async def _plain(call: Call, line: Line) -> None:
    call.body = await line.read(int(call.header("content-length") or 0))
    call.answer(b"{}")


@asynccontextmanager
async def arena(adapter: str) -> AsyncIterator[Arena]:
    async with replica() as fake:
        seats = {"alpha": [Seat(fake.id, fake.url, "alpha")], "beta": [Seat(fake.id, fake.url, SERVED)]}
        async with gateway(Setup(adapter), Table(seats), Limits(max_body_bytes=MAX_BODY)) as rig:
            place = Arena(adapter, rig, fake)
            fake.serve = place.serve  # type: ignore[method-assign]
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: place.faults.append(f"{context}"))
            yield place


async def read_answer(reader: asyncio.StreamReader, rest: bytes, seconds: float = PATIENCE) -> tuple[Got | None, bytes]:
    """The next answer and what came behind it; None when the connection ended before one began. TimeoutError: silence."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    parser.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    if rest:
        parser.receive_data(rest)
    status, headers, body, ended = 0, dict[str, str](), bytearray(), False
    try:
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = b"" if ended else await _some(reader, seconds)
                ended = ended or not data
                parser.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {n.decode(): v.decode("latin-1") for n, v in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Got(status, headers, bytes(body), True), parser.trailing_data[0]
            elif isinstance(event, h11.ConnectionClosed):
                return None, b""
    except h11.RemoteProtocolError as error:
        if not ended:
            raise Found(f"the gateway's answer is no HTTP: {error}") from None
        return (Got(status, headers, bytes(body), False) if status else None), b""


async def _some(reader: asyncio.StreamReader, seconds: float) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(65536), seconds)
    except (ConnectionError, RuntimeError):  # uvloop raises the latter where a closed connection is to read on
        return b""


async def write_in_pieces(client: Client, pieces: list[bytes], random: Random) -> None:
    for piece in pieces:
        if client.writer.is_closing():
            return
        client.write(piece)
        await asyncio.sleep(random.choice((0, 0, 0, 0.001)))


def cut(data: bytes, random: Random) -> list[bytes]:
    """`data` in up to eight pieces, at times byte by byte."""
    if len(data) < 400 and random.random() < 0.05:
        return [data[i : i + 1] for i in range(len(data))]
    marks = sorted({0, len(data), *(random.randint(0, len(data)) for _ in range(random.choice((0, 0, 1, 2, 7))))})
    return [data[start:stop] for start, stop in itertools.pairwise(marks)]


def spoiled(data: bytes, random: Random) -> bytes:
    """`data` with a few bytes changed, lost, doubled or added."""
    out = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(out) + 1)
        size = random.choice((1, 1, 2, 5))
        change: Any = random.choice(("flip", "drop", "twice", "add"))
        if change == "flip" and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif change == "drop":
            del out[at : at + size]
        elif change == "twice":
            out[at:at] = out[at : at + size * 4]
        else:
            out[at:at] = random.choice((b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0\r\n\r\n", b"\xff", b"chunked", b"9" * 20))
    return bytes(out)


def framed(body: bytes, random: Random, *, trailer: bytes = b"") -> bytes:
    """`body` in chunks of random sizes, at times with extensions."""
    out = []
    for piece in cut(body, random):
        if piece:
            extension = random.choice((b"", b"", b";x", b";a=b", b';q="c;d"'))
            size = random.choice((b"%x", b"%X", b"00%x")) % len(piece)
            out.append(size + extension + b"\r\n" + piece + b"\r\n")
    return b"".join(out) + b"0\r\n" + trailer + b"\r\n"
