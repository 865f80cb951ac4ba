"""Replicas that answer anything: every framing in odd forms, answers that break off, that are malformed, early or spoiled.

A whole answer comes to the client that asked for it, unchanged but for the name. What breaks off or is malformed is
an error of the gateway's or an answer without an end. A request is sent twice at most, and only when the replica closed
an idle connection as it was used again.
"""

import asyncio
import json
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from tests.fuzz.arena import EVIL, SERVED, Arena, Deed, Found, Got, cut, framed, read_answer, spoiled
from tests.proxy.fake_replica import Call, Line
from tests.proxy.rig import Client

ERRORS = (500, 502, 503, 504)


class Kind(Enum):
    WHOLE = auto()
    CUT = auto()  # breaks off
    BAD = auto()  # is no answer
    TAIL = auto()  # whole, and then more than that
    SPOILED = auto()


@dataclass
class Plan:
    """What the replica writes for one request, and what the client may make of it."""

    kind: Kind
    status: int
    data: bytes
    body: bytes = b""  # as the client has to see it
    end: str = ""  # "", "fin" or "rst"
    early: bool = False
    until_end: bool = False  # the body ends with the connection
    pieces: list[bytes] = field(default_factory=list)


async def run_case(arena: Arena, number: str, random: Random) -> None:
    client = await arena.rig.client()
    try:
        for n in range(random.choice((1, 2, 4))):
            if not await _ask(arena, client, f"{number}-{n}", random):
                return
    except TimeoutError:
        raise Found(f"no end of the answer to {number}") from None
    finally:
        client.close()


async def _ask(arena: Arena, client: Client, case: str, random: Random) -> bool:
    """One request; whether the connection is still good."""
    model = random.choice(("alpha", "beta"))
    plan = _plan(case, model, random)
    arena.deeds[case] = _deed(plan, random)
    pad = "x" * random.choice((0, 0, 0, 70_000, 1_000_000 if plan.early else 0))
    client.post({"model": model, "pad": pad}, target=random.choice(("/v1/completions", "/v1/messages")), x_fuzz=case)
    if random.random() < 0.08:
        await asyncio.sleep(random.choice((0, 0.001, 0.005)))
        random.choice((client.close, client.reset))()
        return False
    got, rest = await read_answer(client.reader, b"")
    if rest.strip(b"\r\n"):  # empty lines that come apart from the end of a spoiled answer are let pass
        raise Found(f"bytes behind the answer to {case}: {rest[:200]!r}")
    if arena.calls(case) or got is None or got.status != 502:  # else the idle connection closed late: it is not tried again
        _check(case, plan, got)
    if len(arena.calls(case)) > (2 if plan.kind is not Kind.WHOLE else 1):
        raise Found(f"{case} was sent {len(arena.calls(case))} times")
    return got is not None and got.whole and got.headers.get("connection") != "close"


def _deed(plan: Plan, random: Random) -> Deed:
    async def deed(call: Call, line: Line) -> None:
        if not plan.early:
            call.body = await line.read(int(call.header("content-length") or 0))
        for piece in plan.pieces:
            call.write(piece)
            await asyncio.sleep(random.choice((0, 0, 0.001)))
        if plan.early and plan.end == "fin":  # closing with bytes unread would be a reset
            call.body = await line.read(int(call.header("content-length") or 0))
        if plan.end == "rst":
            call.reset()
        elif plan.end == "fin":
            call.close()
        if plan.end:
            await line.closed.wait()
            raise EOFError
        if plan.early:
            call.body = await line.read(int(call.header("content-length") or 0))

    return deed


def _check(case: str, plan: Plan, got: Got | None) -> None:
    def fail(why: str) -> None:
        raise Found(f"{case}, {plan.kind.name}: {why}: {got} for {plan.data[:400]!r} ended by {plan.end!r}")

    if got is None:
        fail("no answer")
        return
    named = got.headers.get("x-fuzz")
    if named is not None and named != case and plan.kind is not Kind.SPOILED:
        fail("another's answer")
    if plan.kind is Kind.SPOILED:
        return
    if EVIL in got.body or EVIL.decode() in str(got.headers):
        fail("what was smuggled")
    own_error = named is None and got.status in ERRORS and b'"error"' in got.body
    if plan.kind is Kind.WHOLE:
        if (got.status, got.body, got.whole) != (plan.status, plan.body, True):
            fail("not as sent")
    elif plan.kind is Kind.TAIL:
        if not own_error and (got.status, got.body) != (plan.status, plan.body) and got.whole:
            fail("neither whole nor an error")
    elif plan.kind is Kind.CUT:
        if not own_error and got.whole and not (plan.until_end and plan.end == "fin"):
            fail("told as complete")
        begun = _without_event(got.body)
        if begun.rpartition(b'"')[2] in SERVED.encode():  # broke off within the name
            begun = begun.rpartition(b'"')[0]
        if not own_error and not plan.body.startswith(begun):
            fail("not a beginning of what was sent")
    elif plan.kind is Kind.BAD and not own_error and got.whole:
        fail("a malformed answer was passed on")


def _without_event(body: bytes) -> bytes:
    """What came before the gateway's own error event; it may have been set off from half an event."""
    for lead in (b"\n\nevent: error\ndata: ", b"event: error\ndata: ", b"\n\ndata: ", b"data: "):
        before, found, after = body.rpartition(lead)
        if found and after.startswith(b'{"error"'):
            return before
    return body


# answers


def _plan(case: str, model: str, random: Random) -> Plan:
    dice = random.random()
    plan = _bad(case, random) if dice < 0.15 else _whole(case, model, random)
    if 0.15 <= dice < 0.35:
        _break_off(plan, random)
    elif 0.35 <= dice < 0.5:
        plan.kind, plan.data, plan.end = Kind.SPOILED, spoiled(plan.data, random), random.choice(("fin", "rst"))
    elif 0.5 <= dice < 0.6 and not plan.until_end and len(plan.data) < 50_000:
        plan.kind = Kind.TAIL
        plan.data += random.choice((_evil_answer(), EVIL, b"\r\n" + _evil_answer(), b"0\r\n\r\n", b"\0"))
        plan.end = random.choice(("", "fin", "rst"))
    elif 0.6 <= dice < 0.65:
        plan.early, plan.end = True, random.choice(("", "fin")) or plan.end
    elif 0.65 <= dice < 0.7:
        plan.end = "fin"  # and the next request may meet it
    plan.pieces = cut(plan.data, random)
    if plan.kind is Kind.TAIL:  # what comes by itself later may be the answer to the next request: nobody could tell
        plan.pieces = [plan.data]
    return plan


def _evil_answer() -> bytes:
    return b"HTTP/1.1 200 OK\r\nx-fuzz: " + EVIL + b"\r\ncontent-length: 9\r\n\r\n" + EVIL


def _break_off(plan: Plan, random: Random) -> None:
    plan.kind, plan.end = Kind.CUT, random.choice(("fin", "rst"))
    plan.data = plan.data[: random.randrange(len(plan.data))]


def _content(model: str, random: Random) -> tuple[bytes, bytes, bytes]:
    """Content type, body, and the body as the client has to see it."""
    served = SERVED if model == "beta" else model
    filler = "x" * random.choice((0, 1, 30, 3000, 100_000)) + random.choice(("", '"', "\\", "ü", '"model":"' + served + '"'))
    kind = random.choice((b"application/json", b"text/event-stream; charset=utf-8", b"application/octet-stream"))
    if kind == b"application/octet-stream":
        body = random.randbytes(random.choice((0, 1, 100, 200_000)))
        return kind, body, body

    def text(name: str) -> bytes:
        one = json.dumps({"model": name, "text": filler}, separators=random_separators, ensure_ascii=False)
        if kind == b"application/json":
            return one.encode()
        return (f"data: {one}\n\n" * count + "data: [DONE]\n\n").encode()

    random_separators = random.choice(((",", ":"), (", ", ": ")))
    count = random.choice((1, 3, 20)) if len(filler) < 5000 else 1
    return kind, text(served), text(model)


def _whole(case: str, model: str, random: Random) -> Plan:
    kind, body, shown = _content(model, random)
    status = random.choice((200, 200, 200, 201, 400, 404, 429, 500, 503, 204, 304))
    fields = [b"x-fuzz: " + case.encode(), b"Content-Type: " + kind]
    fields += random.choice(
        ([], [b"x-empty:"], [b"x-long: " + b"y" * 3000], [b"connection: x-drop", b"x-drop: 1"], [b"keep-alive: timeout=5"])
    )
    version, end, until_end = 1, "", False
    if status in (204, 304):
        body = shown = rest = b""
    else:
        framing = random.choice(("length", "chunked", "chunked", "end"))
        rest = body
        if framing == "length":
            fields.append(b"Content-Length: %d" % len(body))
        elif framing == "chunked":
            fields.append(random.choice((b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked")))
            rest = framed(body, random, trailer=random.choice((b"", b"t: 1\r\n", b"x-fuzz: " + EVIL + b"\r\n")))
        else:
            version, end, until_end = random.randrange(2), "fin", True
    if not end and random.random() < 0.1:
        fields.append(b"Connection: close")
        end = "fin"
    random.shuffle(fields)
    interim = random.choice(
        (
            b"",
            b"",
            b"",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\ncontent-length: 3\r\n\r\n" * 2,
        )
    )
    head = b"HTTP/1.%d %d Some Reason\r\n" % (version, status) + b"\r\n".join(fields) + b"\r\n\r\n"
    return Plan(Kind.WHOLE, status, interim + head + rest, shown, end, until_end=until_end)


def _bad(case: str, random: Random) -> Plan:
    """No answer, whatever way it is cut."""
    ok = b"HTTP/1.1 200 OK\r\nx-fuzz: " + case.encode() + b"\r\n"
    chunked = b"transfer-encoding: chunked\r\n"
    data = random.choice(
        (
            ok + chunked + b"content-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            ok + b"content-length: 5\r\n" + chunked + b"\r\n5\r\nhello\r\n0\r\n\r\n",
            ok + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
            ok + b"content-length: +2\r\n\r\nab",
            ok + b"content-length: 99999999999999999999999\r\n\r\nab",
            ok + b"transfer-encoding: gzip\r\n\r\nxx",
            ok + b"transfer-encoding: chunked, gzip\r\n\r\nxx",
            ok + b"x: y\r\n z\r\ncontent-length: 1\r\n\r\na",
            ok + b"x: \0\r\ncontent-length: 1\r\n\r\na",
            ok.replace(b"\r\n", b"\n") + b"content-length: 1\n\na",
            ok + b"x: " + b"y" * 200_000,
            ok + b"content-length : 1\r\n\r\na",
            ok
            + chunked
            + b"\r\n"
            + random.choice((b"g", b"+5", b"0x5", b"-1", b"f" * 17, b"5\n", b""))
            + b"\r\nhello\r\n0\r\n\r\n",
            ok + chunked + b"\r\n2\r\nhello\r\n0\r\n\r\n",
            ok + chunked + b"\r\n5\r\nhello\r\n5\nhello\n0\n\n",
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" + EVIL,
            b"HTTP/1.1 100 Continue\r\n\r\n" * 4000,
            b"HTTP/1.1 099 Low\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"\0" * 50,
        )
    )
    return Plan(Kind.BAD, 502, data, end=random.choice(("fin", "rst")))
