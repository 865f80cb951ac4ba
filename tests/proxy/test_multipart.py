"""The audio endpoints: a form whose `model` may stand anywhere."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.core.errors import InvalidRequest
from gateway.proxy.datapath import Limits
from gateway.proxy.multipart import Form
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import Call, Line, replica
from tests.proxy.rig import gateway, table
from tests.proxy.sieve import Sieve, resident
from tests.waiting import until

KIND = "multipart/form-data; boundary=XyZ"
PATH = "/v1/audio/transcriptions"


def form(*parts: tuple[str, bytes]) -> bytes:
    lines = [
        b"--XyZ\r\ncontent-disposition: form-data; " + head.encode() + b"\r\n\r\n" + data + b"\r\n" for head, data in parts
    ]
    return b"".join(lines) + b"--XyZ--\r\n"


def read(body: bytes, size: int = 1 << 20) -> Form:
    """The form, given in pieces of `size` bytes."""
    got = Form(KIND.encode())
    for at in range(0, len(body), size):
        got.feed(body[at : at + size])
    got.finish()
    return got


FILE = ('name="file"; filename="a.wav"\r\ncontent-type: audio/wav', os.urandom(3_000_000))
FORMAT = ('name="response_format"', b"json")
MODEL = ('name="model"', b"alpha")


@pytest.mark.parametrize(
    "parts", [(MODEL, FILE), (FILE, FORMAT, MODEL), (FILE, MODEL, FORMAT)], ids=["first", "last", "middle"]
)
async def test_multipart_the_form_arrives_byte_for_byte(setup: Setup, parts: tuple[tuple[str, bytes], ...]) -> None:
    body = form(*parts)
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(body, target=PATH, content_type=KIND)
        assert answer.status == 200
        call = fake.calls[0]
        assert hashlib.sha256(call.body).digest() == hashlib.sha256(body).digest()
        assert call.header("content-type") == KIND
        assert rig.tally.codes == [("alpha", PATH, 200)]


async def test_multipart_the_served_name_is_put_in_its_place(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake, served="alpha@0123456789ab")) as rig:
        assert (await rig.ask(form(FORMAT, MODEL, FORMAT), target=PATH, content_type=KIND)).status == 200
        assert fake.calls[0].body == form(FORMAT, ('name="model"', b"alpha@0123456789ab"), FORMAT)


# large ones


BLOCK = os.urandom(1 << 20)
BLOCKS = 40
TAIL = b"\r\n" + form(FORMAT)


@pytest.mark.parametrize("first", [True, False], ids=["model-first", "model-last"])
@pytest.mark.parametrize("served", ["alpha", "alpha@0123456789ab"], ids=["same-name", "renamed"])
async def test_multipart_a_large_upload_is_never_in_memory_as_a_whole(setup: Setup, first: bool, served: str) -> None:
    file = b'--XyZ\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    before, after = (form(MODEL).removesuffix(b"--XyZ--\r\n"), TAIL) if first else (b"", b"\r\n" + form(FORMAT, MODEL))
    length = len(before) + len(file) + BLOCKS * len(BLOCK) + len(after)
    sieve = Sieve()
    async with replica() as fake, gateway(setup, table(fake, served=served)) as rig:
        fake.serve = sieve.serve  # type: ignore[method-assign]
        assert (await rig.ask(form(MODEL), target=PATH, content_type=KIND)).status == 200  # what is imported once
        at_rest, sent = resident(), hashlib.sha256()
        client = await rig.client()
        client.post(before + file, target=PATH, content_type=KIND, content_length=str(length))
        for _ in range(BLOCKS):
            client.write(BLOCK)
            await client.writer.drain()
            sieve.peak = max(sieve.peak, resident())
        client.write(after)
        assert (await client.answer()).status == 200
        client.close()
        await rig.quiet()
    for piece in [before, file, *([BLOCK] * BLOCKS), after]:
        sent.update(piece.replace(b"\r\n\r\nalpha\r\n", f"\r\n\r\n{served}\r\n".encode()))
    assert (sieve.length, sieve.digest.digest()) == (length + len(served) - 5, sent.digest())
    assert sieve.peak - at_rest < 12 << 20


def nameless_files() -> int:
    """Temporary files without a name that this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found += "(deleted)" in str(link.readlink())
    return found


@pytest.fixture
def open_files() -> Callable[[], int]:
    """How many more there are than before the test: its runner has some, too."""
    before = nameless_files()
    return lambda: nameless_files() - before


async def test_multipart_a_large_form_goes_to_the_next_replica_when_the_first_is_draining(
    setup: Setup, open_files: Callable[[], int]
) -> None:
    async def drain(call: Call) -> None:
        body = b'{"error":{"message":"cannot schedule new futures after shutdown"}}'
        call.answer(body, "500 Internal Server Error")

    body = form(FILE, MODEL)
    async with replica(drain) as first, replica() as second, gateway(setup, table(first, second)) as rig:
        assert (await rig.ask(body, target=PATH, content_type=KIND)).status == 200
        assert [call.body == body for call in (first.calls[0], second.calls[0])] == [True, True]
        await rig.quiet()
        await until(lambda: open_files() == 0)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_multipart_a_client_that_leaves_within_a_large_form_leaves_no_file(
    setup: Setup, open_files: Callable[[], int], how: str
) -> None:
    body = form(FILE, MODEL)
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post(body[:2_500_000], target=PATH, content_type=KIND, content_length=str(len(body)))
        await until(lambda: open_files() == 1)
        getattr(client, how)()
        await until(lambda: open_files() == 0)
        assert rig.tally.left == {"body": 1}
        assert fake.calls == []


async def test_multipart_a_client_that_leaves_while_a_large_form_is_sent_on_ends_that(
    setup: Setup, open_files: Callable[[], int]
) -> None:
    async def deaf(line: Line) -> None:
        await line.read_until(b"\r\n\r\n")
        line.transport.pause_reading()
        reached.set()

    reached = asyncio.Event()
    body = form(("name=file; filename=a", bytes(20_000_000)), MODEL)
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        fake.serve = deaf  # type: ignore[method-assign]
        client = await rig.client()
        client.post(body, target=PATH, content_type=KIND)
        await asyncio.wait_for(reached.wait(), 5)
        client.reset()
        await rig.quiet(1.0)
        await until(lambda: open_files() == 0)
        assert rig.tally.left == {"headers": 1}


async def test_multipart_an_answer_before_a_large_form_was_sent_ends_the_sending(
    setup: Setup, open_files: Callable[[], int]
) -> None:
    async def early(line: Line) -> None:
        await line.read_until(b"\r\n\r\n")
        line.transport.pause_reading()
        line.transport.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")

    body = form(("name=file; filename=a", bytes(20_000_000)), MODEL)
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        fake.serve = early  # type: ignore[method-assign]
        answer = await rig.ask(body, target=PATH, content_type=KIND)
        assert (answer.status, answer.body) == (413, b"no")
        await rig.quiet()
        assert rig.path.pools[0].idle == []
        await until(lambda: open_files() == 0)


async def test_multipart_over_the_limit_is_413_and_leaves_no_file(setup: Setup, open_files: Callable[[], int]) -> None:
    async with replica() as fake, gateway(setup, table(fake), Limits(max_body_bytes=2_000_000)) as rig:
        body = form(FILE, MODEL)
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        for data, more in ((body, {}), (chunked, {"content_length": "", "transfer_encoding": "chunked"})):
            answer = await rig.ask(data, target=PATH, content_type=KIND, **more)
            assert (answer.status, answer.code) == (413, "body_too_large")
        assert fake.calls == []
        await until(lambda: open_files() == 0)


async def test_multipart_where_no_temporary_file_can_be_made_it_is_told(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(form(FILE, MODEL), target=PATH, content_type=KIND)
        assert (answer.status, answer.code) == (500, "internal_error")
        assert "TMPDIR" in answer.json["error"]["message"]
        assert fake.calls == []


# broken ones


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (KIND, form(("name=model", b"x" * 70_000))),
        (KIND, form(*([MODEL] * 1001))),
        (KIND, b"not-multipart"),
        (KIND, form(FORMAT)[:-10]),
        (KIND, b""),
        ("multipart/form-data", form(MODEL)),
        ("application/json", b"{}"),
        (KIND, form(('name="model"', b"\xff"))),
        (KIND, b"--XyZ\r\nno colon\r\n\r\nx\r\n--XyZ--\r\n"),
    ],
    ids=["long", "many", "junk", "cut", "empty", "no-boundary", "json", "bytes", "bad-header"],
)
async def test_multipart_a_broken_form_is_400(setup: Setup, kind: str, body: bytes) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(body, target=PATH, content_type=kind)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert fake.calls == []


async def test_multipart_an_unknown_model_is_404(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        assert (await rig.ask(form(('name="model"', b"other")), target=PATH, content_type=KIND)).status == 404


@pytest.mark.parametrize(
    ("parts", "model"),
    [
        ((FORMAT,), None),
        ((('name="model"', b""),), None),
        ((MODEL, ('name="model"', b"beta")), "beta"),
        ((('name="model"; filename="x"', b"beta"),), None),
        ((("name=model", "ünï/\r\n--Xy".encode()),), "ünï/\r\n--Xy"),
    ],
    ids=["absent", "empty", "last-wins", "a-file", "near-boundary"],
)
def test_which_model_a_form_names(parts: tuple[tuple[str, bytes], ...], model: str | None) -> None:
    assert read(form(*parts)).read_model() == model


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_however_a_form_is_cut_its_models_are_found_and_replaced(size: int) -> None:
    values = [b"alpha", b"", b"\r\n--Xy", b"a\r\n--Xb", b"\r\r\n-"]
    parts = [part for value in values for part in ((' name="model"\r\nx-empty:', value), FORMAT, ("name=model", value))]
    parts.append(MODEL)
    expected = [(head, b"beta" if "model" in head and value else value) for head, value in parts]
    got = read(form(*parts), size)
    assert got.read_model() == "alpha"
    length, body = got.body("beta")
    assert isinstance(body, bytes)
    assert (length, body) == (len(body), form(*expected))


def test_a_form_of_another_kind_is_refused() -> None:
    other = Form(b"application/x-www-form-urlencoded")
    other.feed(b"model=alpha")
    other.finish()
    with pytest.raises(InvalidRequest):
        other.read_model()
