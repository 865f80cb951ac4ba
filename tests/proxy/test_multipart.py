"""The audio endpoints: a form whose `model` may stand anywhere."""

import hashlib
import os

import pytest

from gateway.core.errors import InvalidRequest
from gateway.proxy.multipart import Form
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import replica
from tests.proxy.rig import gateway, table

KIND = "multipart/form-data; boundary=XyZ"
PATH = "/v1/audio/transcriptions"


def form(*parts: tuple[str, bytes]) -> bytes:
    lines = [
        b"--XyZ\r\ncontent-disposition: form-data; " + head.encode() + b"\r\n\r\n" + data + b"\r\n" for head, data in parts
    ]
    return b"".join(lines) + b"--XyZ--\r\n"


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


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (KIND, b"not-multipart"),
        (KIND, form(FORMAT)[:-10]),
        (KIND, b""),
        ("multipart/form-data", form(MODEL)),
        ("application/json", b"{}"),
        (KIND, form(('name="model"', b"\xff"))),
        (KIND, b"--XyZ\r\nno colon\r\n\r\nx\r\n--XyZ--\r\n"),
    ],
    ids=["junk", "cut", "empty", "no-boundary", "json", "bytes", "bad-header"],
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
    assert Form(KIND.encode(), form(*parts)).model == model


def test_all_models_of_a_form_are_replaced() -> None:
    changed = Form(KIND.encode(), form(MODEL, FORMAT, MODEL)).with_model("beta")
    assert changed == form(('name="model"', b"beta"), FORMAT, ('name="model"', b"beta"))


def test_a_form_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        Form(b"application/x-www-form-urlencoded", b"model=alpha")
