"""Framing and header fields, towards clients and towards replicas: what crosses, what is refused, what is cut."""

import asyncio
import hashlib
import itertools
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.proxy.datapath import Limits
from gateway.proxy.routes import ENDPOINTS
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import STREAM_HEAD, Call, Script, echo, replica
from tests.proxy.rig import gateway, table
from tests.proxy.sieve import Sieve, resident
from tests.waiting import until


def raw(data: bytes, *, close: bool = False) -> Script:
    """A replica that answers with exactly these bytes."""

    async def script(call: Call) -> None:
        call.write(data)
        if close:
            call.close()

    return script


# header fields


async def test_framing_headers_hop_by_hop_fields_end_at_the_gateway(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        await rig.ask(
            connection="close, x-drop",
            x_drop="1",
            keep_alive="5",
            te="trailers",
            trailer="x",
            proxy_authorization="Basic x",
            proxy_connection="keep-alive",
            x_lora_gateway_replica="forged",
            x_amzn_sagemaker_adapter_identifier="evil",
            x_kept="yes",
            accept_encoding="gzip",
            user_agent="test",
        )
        names = {name for name, _ in fake.calls[0].headers}
        assert names == {"host", "content-length", "content-type", "x-request-id", "x-kept", "accept-encoding", "user-agent"}


async def test_framing_headers_of_the_answer(setup: Setup) -> None:
    more = (
        b"connection: x-drop\r\nx-drop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: Basic\r\ntrailer: x\r\n"
        b"set-cookie: a=1\r\nset-cookie: b=2\r\nx-kept: yes\r\nx-lora-gateway-replica: forged\r\nx-request-id: other\r\n"
        b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
    )

    async def script(call: Call) -> None:
        call.answer(b"{}", more=more)

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(x_request_id="mine-1")
        assert sorted(answer.headers) == sorted(
            [
                ("content-type", "application/json"),
                ("content-length", "2"),
                ("set-cookie", "a=1"),
                ("set-cookie", "b=2"),
                ("x-kept", "yes"),
                ("cache-control", "no-cache"),
                ("x-accel-buffering", "no"),
                ("x-request-id", "mine-1"),
                ("x-lora-gateway-replica", fake.id),
            ]
        )
        assert fake.calls[0].header("x-request-id") == "mine-1"


async def test_framing_headers_an_error_in_place_of_a_stream_keeps_its_length(setup: Setup) -> None:
    body = b'{"error":{"message":"max_tokens is too large","type":"BadRequestError","param":null,"code":400}}'

    async def refuse(call: Call) -> None:
        call.answer(body, "400 Bad Request")

    async with replica(refuse) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        for _ in range(2):
            client.post({"model": "alpha", "stream": True})
            answer = await client.answer()
            assert (answer.status, answer.body, answer.complete) == (400, body, True)
            assert (answer.header("content-length"), answer.header("transfer-encoding")) == (str(len(body)), None)
        client.close()


@pytest.mark.parametrize("sent", ["", "with space", "x" * 129, "ünï"], ids=["absent", "space", "long", "bytes"])
async def test_framing_headers_a_request_id_that_is_not_sane_is_made_anew(setup: Setup, sent: str) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(x_request_id=sent)
        made = answer.header("x-request-id")
        assert made
        assert made != sent
        assert len(made) == 32
        assert fake.calls[0].header("x-request-id") == made


@pytest.mark.parametrize(
    ("limits", "got"),
    [
        (Limits(), "Bearer user-key"),
        (Limits(replica_api_key="up-key"), "Bearer up-key"),
        (Limits(strip_authorization=True), None),
        (Limits(replica_api_key="up-key", strip_authorization=True), "Bearer up-key"),
    ],
    ids=["neither", "replica-key", "client-keys", "both"],
)
async def test_auth_leak_whose_key_reaches_the_replica(setup: Setup, limits: Limits, got: str | None) -> None:
    async with replica() as fake, gateway(setup, table(fake), limits) as rig:
        await rig.ask(authorization="Bearer user-key", x_api_key="user-key")
        call = fake.calls[0]
        assert call.header("authorization") == got
        assert call.header("x-api-key") == ("user-key" if got == "Bearer user-key" else None)


# requests


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked", 400, id="both"),
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ncontent-length: 2", 400, id="two-lengths"),
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\ncontent-length: +2", 400, id="plus"),
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\ncontent-length : 2", 400, id="space-before-colon"),
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\ncontent-length: 2", 400, id="obs-fold"),
        pytest.param("POST {p} HTTP/1.1\nhost: a\ncontent-length: 2", 400, id="bare-lf"),
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip", 400, id="gzip-coding"),
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked", 400, id="gzip-chunked"),
        pytest.param("POST {p} HTTP/1.1\r\nx: \0\r\nhost: a\r\ncontent-length: 2", 400, id="nul"),
        pytest.param("POST {p} HTTP/1.1\r\nhost: a\r\ncontent-encoding: gzip\r\ncontent-length: 2", 415, id="compressed"),
        pytest.param("POST {p} HTTP/2.0\r\nhost: a\r\ncontent-length: 2", 400, id="http-2.0"),
        pytest.param("POST {p}\r\nhost: a\r\ncontent-length: 2", 400, id="http-0.9"),
        pytest.param("GARBAGE", 400, id="garbage"),
    ],
)
async def test_smuggling_what_could_be_read_in_two_ways_is_refused(setup: Setup, head: str, status: int) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.write(head.format(p="/v1/completions").encode() + b"\r\n\r\n{}")
        answer = await client.answer()
        assert answer.status == status
        if setup.adapter == "protocol":
            assert answer.header("content-type") == "application/json"
            assert answer.json["error"]["type"] == "invalid_request_error"
            assert await client.ended() == b""
        assert fake.calls == []
        client.close()


@pytest.mark.parametrize(
    "head",
    [
        "POST http://evil/v1/completions HTTP/1.1\r\nhost: a",
        "POST /v1/completions HTTP/1.1\r\nx: y",
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nhost: b",
        "GET http://evil/v1/models HTTP/1.1\r\nhost: a",
        "GET /v1/models HTTP/1.1\r\nx: y",
    ],
    ids=["absolute", "no-host", "two-hosts", "absolute-get", "no-host-get"],
)
async def test_smuggling_where_a_request_goes_is_told_once(head: str) -> None:
    async with replica() as fake, gateway(Setup("protocol"), table(fake)) as rig:
        client = await rig.client()
        client.write(head.encode() + b"\r\ncontent-length: 2\r\n\r\n{}")
        assert (await client.answer()).status == 400
        assert fake.calls == []
        client.close()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat%2Fcompletions",
        "/v1//chat/completions",
        "/v1/./chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions/",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/invocations",
        "/adapters",
        "/v1/chat/../load_lora_adapter",
        "/sleep",
        "/reset_prefix_cache",
        "/v1/chat/completions;x",
        "/metrics",
    ],
)
async def test_traversal_only_the_listed_paths_reach_a_replica(setup: Setup, target: str) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        assert (await rig.ask(target=target)).status in (404, 307)
        assert fake.lines == []


async def test_every_listed_path_reaches_a_replica_by_post_alone(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        listed = [e.path for e in ENDPOINTS if not e.multipart]
        for path in listed:
            assert (await rig.ask(target=path)).status == 200
        assert [call.target for call in fake.calls] == listed
        client = await rig.client()
        client.write(b"GET /v1/completions HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.answer()).status == 405
        client.close()


async def test_a_chunked_body_and_expect_100(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n"
            b"content-type: application/json\r\n\r\n"
        )
        assert (await client.head())[0] == 100
        client.write(b'8\r\n{"model"\r\n9;x=y\r\n:"alpha"}\r\n0\r\nx-trailer: 1\r\n\r\n')
        assert (await client.answer()).json["model"] == "alpha"
        call = fake.calls[0]
        assert (call.header("content-length"), call.header("expect"), call.header("x-trailer")) == ("17", None, None)
        client.close()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_large_body_is_413_and_the_client_can_read_it(setup: Setup, chunked: bool) -> None:
    body = b'{"model":"alpha","x":"' + b"x" * 2_000_000 + b'"}'
    async with replica() as fake, gateway(setup, table(fake), Limits(max_body_bytes=1_000_000)) as rig:
        client = await rig.client()
        if chunked:
            client.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 50_000):
                piece = body[at : at + 50_000]
                client.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            client.write(b"0\r\n\r\n")
        else:
            client.post(body)
        answer = await client.answer()
        assert (answer.status, answer.code) == (413, "body_too_large")
        assert "1000000" in answer.json["error"]["message"]
        assert fake.lines == []
        client.close()


async def test_large_body_within_the_limit_arrives_byte_for_byte(setup: Setup) -> None:
    body = json.dumps({"model": "alpha", "image": "QUJD" * 3_000_000}).encode()
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        answers = await asyncio.gather(*(rig.ask(body) for _ in range(4)))
        assert [a.status for a in answers] == [200] * 4
        assert {hashlib.sha256(c.body).digest() for c in fake.calls} == {hashlib.sha256(body).digest()}
        await rig.quiet()


async def test_large_body_twenty_at_once_cost_at_most_three_times_their_size(setup: Setup) -> None:
    body = json.dumps({"model": "alpha", "image": "QUJD" * 3_000_000}).encode()
    sieve = Sieve()
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        fake.serve = sieve.serve  # type: ignore[method-assign]
        assert (await rig.ask(body)).status == 200
        at_rest = resident()
        assert [a.status for a in await asyncio.gather(*(rig.ask(body) for _ in range(20)))] == [200] * 20
        await rig.quiet()
    assert sieve.peak - at_rest < 3 * 20 * len(body)


async def test_a_head_that_is_too_large_is_431() -> None:
    async with replica() as fake, gateway(Setup("protocol"), table(fake)) as rig:
        for field in (b"x: " + b"y" * 100_000, b"x: y\r\n" * 300, b"x: " + b"y" * 1_000_000):
            client = await rig.client()
            client.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n" + field + b"\r\n\r\n")
            assert (await client.answer()).status == 431
            client.close()
        assert fake.lines == []


async def test_two_requests_in_one_read_the_first_is_answered_then_closed() -> None:
    request = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n"
    request += b'{"model":"alpha"}'
    async with replica() as fake, gateway(Setup("protocol"), table(fake)) as rig:
        for behind in (request, b"\r\n\r\njunk\r\n", b"GET / HTTP/1.1\r\n"):
            client = await rig.client()
            client.write(request + behind)
            answer = await client.answer()
            assert (answer.status, answer.complete) == (200, True)
            assert await client.ended() == b""
            client.close()
        assert len(fake.calls) == 3


async def test_an_upgrade_is_refused_where_it_would_hide_the_body() -> None:
    async with replica() as fake, gateway(Setup("protocol"), table(fake)) as rig:
        answer = await rig.ask(connection="upgrade", upgrade="h2c")
        assert answer.status == 400
        assert fake.calls == []


@pytest.mark.parametrize(("first", "status"), [(b"POST /v1/completions", 200), (b"POST /nothing", 404)], ids=["ours", "other"])
async def test_an_answer_is_not_lost_to_what_was_sent_behind_its_request(first: bytes, status: int) -> None:
    """Closing while bytes are unread sends a reset, which takes the answer from the client's buffer."""
    request = b' HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n{"model":"alpha"%b}'
    async with replica() as fake, gateway(Setup("protocol"), table(fake)) as rig:
        for _ in range(5):
            client = await rig.client()
            client.write(first + request % (17, b"") + first + request % (1_000_017, b" " * 1_000_000))
            answer = await client.answer()
            assert answer.status == status
            assert await client.ended() == b""
            client.close()
        assert {len(call.body) for call in fake.calls} == ({17} if status == 200 else set())


async def test_framework_routes_and_inference_routes_share_a_connection(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        for _ in range(3):
            client.post({"model": "alpha"})
            assert (await client.answer()).status == 200
            client.post({"model": "alpha"}, target="/nothing")
            assert (await client.answer()).status == 404
        client.close()
        assert len(fake.calls) == 3


async def test_an_answer_is_not_lost_to_what_is_sent_later_behind_the_last_request() -> None:
    async with replica() as fake, gateway(Setup("protocol"), table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha"}, connection="close")
        await until(lambda: rig.tally.codes != [])
        client.writer.transport.set_write_buffer_limits(0)
        for _ in range(20):
            client.write(b"x" * 10_000)
            await client.writer.drain()
        assert (await client.answer()).status == 200
        assert await client.ended() == b""
        client.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_http_1_0_client_gets_no_chunks(setup: Setup, streamed: bool) -> None:
    async def script(call: Call) -> None:
        if not streamed:
            call.answer(b'{"a":1}')
            return
        call.open_stream()
        call.chunk(b"data: 1\n\n")
        await asyncio.sleep(0.02)
        call.chunk(b"data: 2\n\n")
        call.write(b"0\r\n\r\n")

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(version="1.0", host="")
        assert answer.header("transfer-encoding") is None
        assert answer.body == (b"data: 1\n\ndata: 2\n\n" if streamed else b'{"a":1}')


# answers


OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"


@pytest.mark.parametrize(
    ("data", "close", "body"),
    [
        pytest.param(
            OK + b"transfer-encoding: chunked\r\n\r\n2;x=1\r\nab\r\n1\r\nc\r\n0\r\nt: 1\r\n\r\n", False, b"abc", id="chunks"
        ),
        pytest.param(OK + b"\r\nuntil the end", True, b"until the end", id="until-eof"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nold", True, b"old", id="http-1.0"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nx: y\r\n\r\n" + OK + b"content-length: 1\r\n\r\na",
            False,
            b"a",
            id="1xx",
        ),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            False,
            b"a",
            id="1xx-chunks",
        ),
        pytest.param(
            b"\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\r\n\r\n" + OK + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            False,
            b"a",
            id="empty-lines-before",
        ),
        pytest.param(OK + b"content-length: 0\r\n\r\n", False, b"", id="empty"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", False, b"", id="204"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\n\r\n", False, b"", id="304"),
        pytest.param(OK + b"connection: close\r\ncontent-length: 1\r\n\r\na", True, b"a", id="close"),
    ],
)  # fmt: skip
async def test_answers_of_every_framing(setup: Setup, data: bytes, close: bool, body: bytes) -> None:
    async with replica(raw(data, close=close)) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert (answer.status in (200, 204, 304), answer.body, answer.complete) == (True, body, True)
        await rig.quiet()
        assert len(rig.path.pools[0].idle) == (0 if close else 1)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(OK + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n", id="both"),
        pytest.param(OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc", id="two-lengths"),
        pytest.param(OK + b"content-length: 1\r\n\r\na" + OK + b"content-length: 1\r\n\r\nb", id="second-answer"),
        pytest.param(OK + b"content-length: 1\r\n\r\nabc", id="more-than-announced"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", id="upgrade"),
        pytest.param(b"HTTP/1.1 101 Switching\r\n\r\n", id="bare-101"),
        pytest.param(OK + b"transfer-encoding: gzip\r\n\r\nxx", id="coding"),
        pytest.param(OK + b"x: y\r\n z\r\n\r\n", id="obs-fold"),
        pytest.param(b"HTTP/1.1 200 OK\nx: y\n\n", id="bare-lf"),
        pytest.param(b"SSH-2.0-x\r\n", id="other"),
        pytest.param(OK + b"x: " + b"y" * 200_000, id="endless-head"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, id="endless-1xx"),
    ],
)
async def test_framing_headers_a_malformed_answer_is_502_and_its_connection_is_closed(setup: Setup, data: bytes) -> None:
    async with replica(raw(data)) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.code) == (502, "replica_failed")
        assert rig.tally.errors == {"malformed": 1}
        await rig.quiet()
        await until(lambda: fake.open_lines == 0)


@pytest.mark.parametrize(
    "junk",
    [b"zz\r\n", b"5\r\nhelloXX", b"0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
    ids=["size", "end", "second"],
)
async def test_junk_in_a_stream_is_never_passed_on(setup: Setup, junk: bytes) -> None:
    async def script(call: Call) -> None:
        call.open_stream()
        call.chunk(b"data: 1\n\n")
        await asyncio.sleep(0.05)
        call.write(junk)

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.complete) == (200, False)
        assert answer.body.startswith(b"data: 1\n\n")
        assert b"hello" not in answer.body
        await rig.quiet()
        await until(lambda: fake.open_lines == 0)


@pytest.mark.parametrize("apart", [False, True])
async def test_empty_lines_behind_the_last_chunk_are_not_passed_on(setup: Setup, apart: bool) -> None:
    async def script(call: Call) -> None:
        call.open_stream()
        if apart:
            await asyncio.sleep(0.02)
        call.write(b"1\r\na\r\n0\r\n\r\n\r\n\r\n")

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha"})
        assert (await client.answer()).body == b"a"
        client.post({"model": "other"})
        assert (await client.head())[0] == 404
        client.close()


@pytest.mark.parametrize("cut", range(1, 9))
async def test_empty_lines_behind_chunks_that_are_read_in_two_pieces_are_not_passed_on(setup: Setup, cut: int) -> None:
    """Wherever the read ends within the line ends that end the chunks, none of them is sent twice."""
    end = b"x-t: 1\r\n\r\n\r\n\r\n"

    async def script(call: Call) -> None:
        call.open_stream()
        call.write(b"1\r\na\r\n0\r\n" + end[: 5 + cut])
        await asyncio.sleep(0.03)
        call.write(end[5 + cut :])

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha"})
        assert (await client.answer()).body == b"a"
        client.post({"model": "other"})
        assert (await client.head())[0] == 404
        client.close()


async def test_bytes_on_an_idle_connection_end_it(setup: Setup) -> None:
    async def script(call: Call) -> None:
        call.answer(b"{}")
        await asyncio.sleep(0.03)
        call.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        assert (await rig.ask()).status == 200
        await until(lambda: not rig.path.pools or not rig.path.pools[0].open)
        assert (await rig.ask()).status == 200
        assert len(fake.lines) == 2


async def test_an_early_answer_ends_the_sending_and_the_connection(setup: Setup) -> None:
    async def early(fake_line: Any) -> None:
        await fake_line.read_until(b"\r\n\r\n")
        fake_line.transport.pause_reading()
        fake_line.transport.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")

    async with replica() as fake, gateway(setup, table(fake)) as rig:
        fake.serve = early  # type: ignore[method-assign, assignment]
        answer = await rig.ask(b'{"model":"alpha","x":"' + b"x" * 30_000_000 + b'"}')
        assert (answer.status, answer.body) == (413, b"no")
        await rig.quiet()
        assert rig.path.pools[0].idle == []


async def test_idle_connections_are_dropped_before_the_replica_closes_them(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake), Limits(idle_timeout=1.5)) as rig:
        await rig.ask()
        await rig.quiet()
        await until(lambda: fake.open_lines == 0, 3.0)
        await until(lambda: rig.path.pools == [], 3.0)


async def test_old_connections_are_not_used_again(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake), Limits(max_connection_age=0.0)) as rig:
        await rig.ask()
        await rig.ask()
        assert len(fake.lines) == 2


async def test_a_url_with_a_path_goes_before_the_target(setup: Setup) -> None:
    async with replica() as fake:
        admission = table(fake)
        admission.seats["alpha"][0].url += "/prefix/"
        async with gateway(setup, admission) as rig:
            await rig.ask(target="/v1/completions?a=b")
            assert fake.calls[0].target == "/prefix/v1/completions?a=b"


async def test_tls_to_a_replica(setup: Setup, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    await asyncio.to_thread(lambda: subprocess.run(command, check=True, capture_output=True))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    async with replica(echo, ssl=serving) as fake:
        for context, status in ((trusting, 200), (None, 502)):
            admission = table(fake)
            admission.seats["alpha"][0].url = f"https://localhost:{fake.port}"
            async with gateway(setup, admission, ssl_context=context) as rig:
                assert (await rig.ask()).status == status
                await rig.quiet()


# any way the bytes are cut


PLAIN = OK + b"content-length: 12\r\n\r\nhello, world"
CHUNKS = STREAM_HEAD + b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(whole=st.sampled_from([PLAIN, CHUNKS]), cuts=st.lists(st.integers(0, 200), max_size=12), end=st.integers(0, 200))
def test_an_answer_cut_anywhere_is_whole_or_told_as_cut(whole: bytes, cuts: list[int], end: int) -> None:
    data = whole[:end]
    marks = sorted({0, len(data), *(c for c in cuts if c < len(data))})

    async def script(call: Call) -> None:
        for start, stop in itertools.pairwise(marks):
            call.write(data[start:stop])
            await asyncio.sleep(0.001)
        if end < len(whole):
            call.close()

    async def run() -> None:
        for adapter in ("protocol", "asgi"):
            async with replica(script) as fake, gateway(Setup(adapter), table(fake)) as rig:
                answer = await rig.ask()
                if end >= len(whole):
                    assert (answer.status, answer.complete) == (200, True)
                    assert answer.body == (b"hello, world" if whole is PLAIN else b"data: 1\n\ndata: 2\n\n")
                elif answer.status == 200:
                    assert not answer.complete
                else:
                    assert answer.code == "replica_failed"
                await rig.quiet()

    asyncio.run(run())


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(0, 300), max_size=12), chunked=st.booleans())
def test_a_request_cut_anywhere_is_the_same_request(cuts: list[int], chunked: bool) -> None:
    body = b'{"model":"alpha","n":1}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nx-some: thing\r\n"
    if chunked:
        data = head + b"transfer-encoding: chunked\r\n\r\n5\r\n" + body[:5] + b"\r\n12\r\n" + body[5:] + b"\r\n0\r\n\r\n"
    else:
        data = head + b"content-length: 23\r\n\r\n" + body
    marks = sorted({0, len(data), *(c for c in cuts if c < len(data))})

    async def run() -> None:
        async with replica() as fake, gateway(Setup("protocol"), table(fake)) as rig:
            client = await rig.client()
            for _ in range(2):
                for start, stop in itertools.pairwise(marks):
                    client.write(data[start:stop])
                    await asyncio.sleep(0.001)
                assert (await client.answer()).status == 200
            assert [call.body for call in fake.calls] == [body, body]
            assert fake.calls[0].header("x-some") == "thing"
            client.close()

    asyncio.run(run())
