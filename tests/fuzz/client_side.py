"""Clients that send anything: whole requests in odd forms, what can be read in two ways, what is spoiled, what breaks off.

A good request is answered with its own answer and reaches the replica once, byte for byte. What must be refused is
refused and reaches nobody. Of what is spoiled at random only this is known: nobody hangs, nothing is mixed up.
"""

import asyncio
import json
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from tests.fuzz.arena import EVIL, MAX_BODY, SERVED, Arena, Deed, Found, Got, cut, framed, read_answer, spoiled, write_in_pieces
from tests.proxy.fake_replica import Call, Line
from tests.proxy.rig import Client

EVIL_REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-fuzz: " + EVIL + b'\r\ncontent-length: 17\r\n\r\n{"model":"alpha"}'
)
BRIEF = 0.05  # seconds to look for answers to what may be no whole request


class Kind(Enum):
    GOOD = auto()
    REFUSED = auto()
    SPOILED = auto()


@dataclass(frozen=True)
class Message:
    kind: Kind
    data: bytes
    case: str = ""  # empty: the framework answers it, not the replica
    body: bytes = b""
    last: bool = False  # the connection ends after its answer


async def run_case(arena: Arena, number: str, random: Random) -> None:
    strict = arena.adapter == "protocol"
    messages = [_message(f"{number}-{i}", random, strict=strict) for i in range(random.choice((1, 1, 2, 4)))]
    for message in messages:
        if message.case:
            arena.deeds[message.case] = _expecting(arena, message)
    client = await arena.rig.client()
    try:
        # uvicorn's own protocol tells what is malformed before it has answered what was sent ahead of it,
        # and resets a connection when bytes are unread
        if random.random() < 0.15:
            await _leave_early(client, b"".join(m.data for m in messages), random)
        elif random.random() < 0.4 and (strict or all(m.kind is Kind.GOOD and not m.last for m in messages)):
            await _ahead(client, messages, random)
        else:
            await _in_turn(client, messages, random, strict=strict)
    except TimeoutError:
        raise Found(f"no answer: {[(m.kind.name, m.data[:300]) for m in messages]}") from None
    finally:
        client.close()
    for message in messages:
        times = len(arena.calls(message.case)) if message.case else 0
        if times > (message.kind is not Kind.REFUSED) and message.kind is not Kind.SPOILED:
            raise Found(f"{message.kind.name} reached the replica {times} times: {message.data[:300]!r}")


def _expecting(arena: Arena, message: Message) -> Deed:
    async def deed(call: Call, line: Line) -> None:
        call.body = body = await line.read(int(call.header("content-length") or 0))
        if message.kind is Kind.GOOD and not _same(body, message.body):
            arena.faults.append(f"the body came as {body[:200]!r} of {message.data[:300]!r}")
        name = message.case.encode()
        call.answer(json.dumps({"id": message.case}).encode(), more=b"x-fuzz: " + name + b"\r\n")

    return deed


def _same(came: bytes, sent: bytes) -> bool:
    if came == sent:
        return True
    if b"--XyZ" in sent:
        return came == sent.replace(b"\r\n\r\nbeta\r\n", b"\r\n\r\n" + SERVED.encode() + b"\r\n")
    expected = json.loads(sent)
    return bool(expected["model"] == "beta" and json.loads(came) == expected | {"model": SERVED})


# how a client goes about it


async def _leave_early(client: Client, data: bytes, random: Random) -> None:
    await write_in_pieces(client, cut(data[: random.randint(0, len(data))], random), random)
    if random.random() < 0.3 and not client.writer.is_closing():
        client.writer.write_eof()
        await asyncio.sleep(0.001)
    if random.random() < 0.5 and not client.writer.is_closing():
        client.reset()


async def _in_turn(client: Client, messages: list[Message], random: Random, *, strict: bool) -> None:
    rest = b""
    for message in messages:
        await write_in_pieces(client, cut(message.data, random), random)
        if message.kind is Kind.SPOILED:
            await _drain(client, rest)
            return
        got, rest = await read_answer(client.reader, rest)
        if not strict and got is None and message.kind is Kind.REFUSED:
            return
        _check(message, got)
        if message.last or message.kind is Kind.REFUSED:
            await _ends(client, rest)
            return
        if rest:
            raise Found(f"bytes behind the answer: {rest[:200]!r}")


async def _ahead(client: Client, messages: list[Message], random: Random) -> None:
    await write_in_pieces(client, cut(b"".join(m.data for m in messages), random), random)
    rest = b""
    for n, message in enumerate(messages):
        if message.kind is Kind.SPOILED:
            await _drain(client, rest)
            return
        got, rest = await read_answer(client.reader, rest)
        if got is None and n:
            return  # only the first of those that came together has to be answered
        if got is not None and n and message.kind is Kind.REFUSED and got.status == 200:
            raise Found(f"answered with 200: {message.data[:300]!r}")
        _check(message, got)
        if message.last or message.kind is Kind.REFUSED:
            await _ends(client, rest)
            return


def _check(message: Message, got: Got | None) -> None:
    status, headers = (got.status, got.headers) if got is not None else (0, {})
    if message.kind is Kind.REFUSED:
        if not 400 <= status < 500:
            raise Found(f"{status} for what must be refused: {message.data[:300]!r}")
    elif not message.case:
        if status not in (404, 405):
            raise Found(f"{status} for a path that does not exist: {message.data[:300]!r}")
    elif status != 200 or headers.get("x-fuzz") != message.case:
        raise Found(f"{got} for {message.case}: {message.data[:300]!r} ... {message.data[-100:]!r}")


async def _ends(client: Client, rest: bytes) -> None:
    got, _ = await read_answer(client.reader, rest)
    if got is not None:
        raise Found(f"one answer too many: {got}")


async def _drain(client: Client, rest: bytes) -> None:
    try:
        while True:
            got, rest = await read_answer(client.reader, rest, BRIEF)
            if got is None or not got.whole:
                return
    except TimeoutError:
        return


# messages


def _message(case: str, random: Random, *, strict: bool) -> Message:
    dice = random.random()
    if dice < 0.2:
        return _refused(case, random, strict=strict)
    if dice < 0.4:
        good = _good(f"spoiled-{case}", random, trap=False, strict=strict)
        return Message(Kind.SPOILED, spoiled(good.data, random), good.case)
    return _good(case, random, strict=strict)


def _body(random: Random, *, trap: bool) -> tuple[bytes, bytes, bytes]:
    """Target, content type and body."""
    model = random.choice(("alpha", "beta"))
    pad = "x" * random.choice((0, 0, 10, 1000, 70_000))
    text = EVIL_REQUEST.decode() if trap else ""
    if random.random() < 0.25:
        pad *= random.choice((1, 1, 20))  # too large for the memory
        parts = [b'name="model"\r\n\r\n' + model.encode(), b'name="file"; filename="a"\r\n\r\n\r\n--Xy' + (text + pad).encode()]
        random.shuffle(parts)
        form = b"".join(b"--XyZ\r\ncontent-disposition: form-data; " + part + b"\r\n" for part in parts) + b"--XyZ--\r\n"
        return b"/v1/audio/transcriptions", b"multipart/form-data; boundary=XyZ", form
    target = random.choice((b"/v1/completions", b"/v1/chat/completions?a=b", b"/tokenize"))
    return target, b"application/json", json.dumps({"model": model, "pad": pad, "text": text}).encode()


def _good(case: str, random: Random, *, trap: bool = True, strict: bool) -> Message:
    if random.random() < 0.1:
        data = random.choice(
            (b"GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n", b"POST /no HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab")
        )
        return Message(Kind.GOOD, data)
    target, kind, body = _body(random, trap=trap)
    old, close = random.random() < 0.1, random.random() < 0.1
    fields = [b"host: a", b"Content-Type:" + kind, b"X-FUZZ: \t" + case.encode() + b" "]
    fields += random.choice(
        ([], [b"x-empty:"], [b"x-long: " + b"y" * 3000], [b"connection: x-drop", b"x-drop: 1"], [b"expect: 100-continue"])
    )
    if close:
        fields.append(b"Connection: close")
    if old or random.random() < 0.5:
        fields.append(b"content-length: %d" % len(body))
        rest = body
    else:
        fields.append(random.choice((b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked")))
        rest = framed(body, random, trailer=random.choice(TRAILERS if strict else TRAILERS[:-1]))
    random.shuffle(fields)
    head = b"POST %b HTTP/1.%d\r\n" % (target, 0 if old else 1) + b"\r\n".join(fields) + b"\r\n\r\n"
    lead = random.choice((b"", b"", b"", b"\r\n"))
    return Message(Kind.GOOD, lead + head + rest, case, body, last=old or close)


TRAILERS = (b"", b"t: 1\r\n", b"host: b\r\nx-fuzz: other\r\n")  # uvicorn's own protocol takes them as header fields
LENGTHS = (b"+%d", b"-%d", b"0x%d", b"%d, %d", b"%d %d", b"%d\x0b", b"1%d00000000000000000000")
CODINGS = (
    b"xchunked",
    b"chunked, gzip",
    b"identity",
    b"chunked\x0b",
    b'"chunked"',
    b"chunked;q=1",
    b"gzip, chunked",
    b",chunked",
    b"chunked, chunked",
)
BAD_FIELDS = (
    b"x: y\r\n z",
    b"x: \0",
    b"x: a\rb",
    b"x y: z",
    b"no colon",
    b": empty",
    b"x: y\nz: 1",
    b"host: b",
    b"content-encoding: gzip",
)
BAD_CHUNKS = (
    b"+5\r\nhello\r\n",
    b"0x5\r\nhello\r\n",
    b"-1\r\n",
    b"fffffffffffffffff\r\n",
    b"5\nhello\n",
    b"4\r\nhello\r\n",
    b"\r\n",
    b"g\r\n",
    b" 5\r\nhello\r\n",
)


def _refused(case: str, random: Random, *, strict: bool) -> Message:
    """A request that has to be refused whatever comes behind it; what it smuggles lies in the body.

    Where not `strict`, only framing counts: uvicorn's own protocol goes on behind a refusal of any other kind.
    """
    body = b'{"model":"alpha"}'
    length, chunked = b"content-length: %d" % len(body), b"transfer-encoding: chunked"
    fields = [b"host: a", b"x-fuzz: " + case.encode()]
    rest, line, end = body + EVIL_REQUEST, b"POST /v1/completions HTTP/1.1", b"\r\n"
    fault = random.randrange(9 if strict else 6)
    if fault == 0:
        fields += [length, chunked]
        rest = framed(body, random) + EVIL_REQUEST
    elif fault == 1:
        fields += [length, random.choice((length, b"content-length: 0", b"Content-Length: 3"))]
    elif fault == 2:
        form = random.choice(LENGTHS)
        fields.append(b"content-length: " + form % ((len(body),) * form.count(b"%d")))
    elif fault == 3:
        fields.append(b"transfer-encoding: " + random.choice(CODINGS if strict else CODINGS[:-3]))
        rest = framed(body, random) + EVIL_REQUEST
    elif fault == 4:
        fields += [length, random.choice(BAD_FIELDS if strict else BAD_FIELDS[:-3])]
    elif fault == 5:
        fields.append(chunked)
        rest = framed(b'{"mod', random).removesuffix(b"0\r\n\r\n") + random.choice(BAD_CHUNKS) + EVIL_REQUEST
    elif fault == 6:
        fields += [length, b"x: " + b"y" * 70_000] if random.random() < 0.5 else [length, *([b"x: y"] * 201)]
    elif fault == 7:
        fields.append(length)
        line = random.choice(
            (
                b"POST http://b/v1/completions HTTP/1.1",
                b"POST /v1/completions HTTP/2.0",
                b"POST /v1/completions",
                b"POST  HTTP/1.1",
            )
        )
    else:
        fields.append(b"content-length: %d" % (MAX_BODY + 1) if random.random() < 0.5 else b"content-length : 17")
    random.shuffle(fields)
    return Message(Kind.REFUSED, line + end + end.join(fields) + end + end + rest, case)
