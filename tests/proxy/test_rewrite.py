"""Names put in and put back."""

import asyncio
import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.rewrite import NameRestorer, Names, replace_model
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import Call, replica
from tests.proxy.rig import gateway, table

SERVED = "alpha@0123456789ab"
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def restored(data: bytes, cuts: list[int], served: str = SERVED, name: str = "alpha") -> bytes:
    restorer = NameRestorer(Names(served, name))
    marks = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    out = [restorer.feed(data[a:b]) for a, b in itertools.pairwise(marks)]
    return b"".join([*out, restorer.flush()])


def test_only_the_model_changes_in_a_request() -> None:
    body = b'{ "a": [1, 2.0 ,3e1], "model" : "alpha", "b":{"model":"alpha"}, "c":"\\u00e9"}'
    changed = replace_model(body, SERVED)
    assert json.loads(changed) == json.loads(body) | {"model": SERVED}
    for kept in (b"[1, 2.0 ,3e1]", b'{"model":"alpha"}', b'"\\u00e9"'):
        assert kept in changed


def test_of_two_models_in_a_request_one_is_left() -> None:
    changed = replace_model(b'{"model":"x","mod\\u0065l":"y"}', SERVED)
    assert changed == b'{"model":"alpha@0123456789ab"}'


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"alpha"}',
        b'{"xmodel":"alpha@0123456789ab"}',
        b'{"model":"alpha@0123456789abc"}',
        b'{"name":"alpha@0123456789ab"}',
        b'{"text":"\\"model\\":\\"alpha@0123456789ab\\""}',
        b'{"say \\"model":"alpha@0123456789ab"}',
        b'data: {"text":"model"}\n\n',
        b'{"model"  ',
        b"\\",
    ],
)
@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_what_is_not_the_served_name_stays(data: bytes, step: int) -> None:
    assert restored(data, list(range(0, len(data), step))) == data


@given(cuts=st.lists(st.integers(0, 250), max_size=30), space=st.sampled_from([b"", b" ", b"\n", b" \t\r\n "]))
def test_the_name_is_put_back_however_the_answer_is_cut(cuts: list[int], space: bytes) -> None:
    served = msgspec.json.encode(SERVED)
    key = b'"model"' + space + b":" + space
    data = (
        b'data: {"id":"x",' + key + served + b',"nested":{' + key + served + b'},"m":"\\"model\\":' + b'"}\n\ndata: [DONE]\n\n'
    )
    assert restored(data, cuts) == data.replace(key + served, key + b'"alpha"')


@given(served=names, name=names, cuts=st.lists(st.integers(0, 200), max_size=20), escape=st.booleans())
def test_any_name_is_put_back_for_any_other(served: str, name: str, cuts: list[int], escape: bool) -> None:
    answer = {"id": "x", "model": served, "choices": [{"model": served, "text": f'"model":"{served}"'}]}
    data = json.dumps(answer, ensure_ascii=escape, separators=(",", ":")).encode()
    expected = {"id": "x", "model": name, "choices": [{"model": name, "text": f'"model":"{served}"'}]}
    assert json.loads(restored(data, cuts, served, name)) == expected


async def test_the_replica_sees_the_served_name_and_the_client_its_own(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake, served=SERVED)) as rig:
        answer = await rig.ask({"n": 1, "model": "alpha"}, accept_encoding="gzip")
        assert fake.calls[0].json == {"n": 1, "model": SERVED}
        assert fake.calls[0].header("accept-encoding") is None
        assert answer.json["model"] == "alpha"
        assert answer.header("content-length") == str(len(answer.body))


async def test_the_name_is_put_back_in_a_stream(setup: Setup) -> None:
    event = b'data: {"model":"' + SERVED.encode() + b'","n":1}\n\n'

    async def script(call: Call) -> None:
        call.open_stream()
        call.chunk(event)
        await asyncio.sleep(0.01)
        call.chunk(event[:20])
        await asyncio.sleep(0.01)
        call.chunk(event[20:])
        call.chunk(b"data: [DONE]\n\n")
        call.write(b"0\r\n\r\n")

    async with replica(script) as fake, gateway(setup, table(fake, served=SERVED)) as rig:
        answer = await rig.ask()
        assert (answer.complete, answer.body) == (True, b'data: {"model":"alpha","n":1}\n\n' * 2 + b"data: [DONE]\n\n")
        await rig.quiet()


async def test_midstream_death_while_the_name_is_put_back(setup: Setup) -> None:
    async def script(call: Call) -> None:
        call.open_stream()
        call.chunk(b'data: {"model":"alp')
        await asyncio.sleep(0.03)
        call.reset()

    async with replica(script) as fake, gateway(setup, table(fake, served=SERVED)) as rig:
        answer = await rig.ask()
        assert not answer.complete
        assert answer.body.startswith(b'data: {"model":"alp\n\ndata: {"error"')


async def test_a_large_answer_under_another_name(setup: Setup) -> None:
    body = json.dumps({"model": SERVED, "data": "x" * 3_000_000}, separators=(",", ":")).encode()

    async def script(call: Call) -> None:
        call.answer(body)

    async with replica(script) as fake, gateway(setup, table(fake, served=SERVED)) as rig:
        answer = await rig.ask()
        assert (answer.complete, answer.json["model"], len(answer.json["data"])) == (True, "alpha", 3_000_000)
        assert answer.header("content-length") is None
