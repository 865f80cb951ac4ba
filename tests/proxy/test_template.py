"""A head that was accepted once is not parsed again, and nothing else is taken for it."""

import pytest

from gateway.proxy.datapath import Limits
from gateway.proxy.template import PATIENCE, Template
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import Call, replica
from tests.proxy.rig import gateway, table

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nContent-Length: %d\r\nx: y\r\n\r\n"


def message(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


def template(body: bytes = b"hello") -> Template:
    made = Template.of(message(body), len(body))
    assert made is not None
    return made


@pytest.mark.parametrize("body", [b"", b"hi", b"x" * 100_000, b"\r\n\r\n"])
def test_a_whole_message_with_the_same_head_and_any_body_is_recognised(body: bytes) -> None:
    data = message(body)
    assert data[template().body_at(data) :] == body


@pytest.mark.parametrize(
    "data",
    [
        message(b"hello")[:-1],
        message(b"hello") + b"x",
        message(b"hello") * 2,
        message(b"hello", HEAD.replace(b"x: y", b"x: z")),
        message(b"hello", HEAD.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")),
        message(b"hello", HEAD.replace(b"x: y", b"content-length: 5")),
        message(b"hello", HEAD.replace(b"Content-Length", b"content-length")),
        HEAD.replace(b"%d", b"+5") + b"hello",
        HEAD.replace(b"%d", b" 5") + b"hello",
        HEAD.replace(b"%d", b"5 ") + b"hello",
        HEAD.replace(b"%d", b"") + b"",
        HEAD.replace(b"%d", "\u0665".encode()) + b"hello",
        b"\r\n" + message(b"hello"),
        b"",
    ],
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    assert template().body_at(data) == 0


@pytest.mark.parametrize(
    "head",
    [b"POST / HTTP/1.1\r\nhost: g\r\n\r\n", HEAD.replace(b"x: y", b"content-length: 5"), HEAD.replace(b"\r\n\r\n", b"\r\n")],
    ids=["no length", "two lengths", "no end"],
)
def test_a_head_without_exactly_one_length_teaches_nothing(head: bytes) -> None:
    data = head.replace(b"%d", b"5") + b"hello"
    assert Template.of(data, 5) is None


async def counted(call: Call) -> None:
    number = call.json["n"]
    assert isinstance(number, int)
    call.answer(b'{"model": "alpha", "n": %d, "pad": "%b"}' % (number, b"x" * (number % 7)))


async def test_many_requests_on_one_connection_each_get_their_own_answer(setup: Setup) -> None:
    async with replica(counted) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        for number in range(30):
            client.post({"model": "alpha", "n": number, "more": "y" * (number % 5)})
            answer = await client.answer()
            assert (answer.status, answer.json["n"]) == (200, number)
        client.close()
        assert len({call.header("x-request-id") for call in fake.calls}) == 30
        await rig.quiet()


async def test_two_requests_in_one_read_and_other_doors_in_between_are_not_mixed_up(setup: Setup) -> None:
    async with replica(counted) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        for number in range(3):
            client.post({"model": "alpha", "n": number})
            assert (await client.answer()).json["n"] == number
        client.write(b"GET /nowhere HTTP/1.1\r\nhost: gateway\r\n\r\n")
        assert (await client.answer()).status == 404
        client.post({"model": "alpha", "n": 7}, "/v1/embeddings")
        assert (await client.answer()).json["n"] == 7
        client.post({"model": "alpha", "n": 8})
        assert (await client.answer()).json["n"] == 8
        client.close()
        targets = [call.target for call in fake.calls]
        assert targets == [*["/v1/chat/completions"] * 3, "/v1/embeddings", "/v1/chat/completions"]


async def test_a_long_body_behind_a_known_head_is_still_refused(setup: Setup) -> None:
    async with replica(counted) as fake, gateway(setup, table(fake), Limits(max_body_bytes=100)) as rig:
        client = await rig.client()
        for number in range(3):
            client.post({"model": "alpha", "n": number})
            assert (await client.answer()).status == 200
        client.post({"model": "alpha", "n": 1, "long": "x" * 200})
        assert (await client.answer()).status == 413
        client.close()
        assert len(fake.calls) == 3


async def test_clients_whose_heads_differ_each_time_are_served_all_the_same(setup: Setup) -> None:
    async with replica(counted) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        for number in range(3 * PATIENCE):
            client.post({"model": "alpha", "n": number}, x_request_id=f"id-{number}")
            answer = await client.answer()
            assert (answer.json["n"], answer.header("x-request-id")) == (number, f"id-{number}")
        client.close()
