"""One request and its answer, through both adapters, to replicas that misbehave in every way."""

import asyncio
import json
import logging
import socket

import pytest

from gateway.proxy.datapath import Limits
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import Call, FakeReplica, Script, replica
from tests.proxy.rig import Seat, Table, gateway, table
from tests.waiting import until

EVENT = b'data: {"model":"alpha","n":%d}\n\n'


def unused_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def seat_away() -> Seat:
    port = unused_port()
    return Seat(f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", "alpha")


def unavailable_first(fake: FakeReplica) -> Table:
    """A replica that refuses connections, then a good one."""
    return Table({"alpha": [seat_away(), Seat(fake.id, fake.url, "alpha")]})


def answers(status: str, body: object) -> Script:
    async def script(call: Call) -> None:
        call.answer(json.dumps(body).encode(), status)

    return script


async def hang(call: Call) -> None:
    await call.line.closed.wait()


async def stream_and_hang(call: Call) -> None:
    call.open_stream()
    call.chunk(EVENT % 1)
    await call.line.closed.wait()


# the plain way


async def test_a_request_is_forwarded_and_the_answer_relayed(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake, revision="0123456789ab")) as rig:
        answer = await rig.ask({"model": "alpha", "n": 1}, target="/v1/completions?x=1")
        assert (answer.status, answer.json["model"]) == (200, "alpha")
        assert answer.header("x-lora-gateway-replica") == fake.id
        assert answer.header("x-lora-gateway-revision") == "0123456789ab"
        call = fake.calls[0]
        assert (call.target, call.json) == ("/v1/completions?x=1", {"model": "alpha", "n": 1})
        assert call.header("host") == fake.id
        await rig.quiet()
        assert rig.tally.codes == [("alpha", "/v1/completions", 200)]
        assert rig.tally.first_bytes[0] is not None


async def test_the_connections_on_both_sides_are_used_again(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        for n in range(5):
            client.post({"model": "alpha", "n": n})
            assert (await client.answer()).status == 200
        assert len(fake.lines) == 1
        await rig.quiet()
        assert repr(rig.path.pools[0]) == f"<Pool {fake.id} open=1 idle=1 busy=0>"
        client.close()


async def test_requests_sent_ahead_are_answered_in_turn(setup: Setup) -> None:
    go = asyncio.Event()

    async def script(call: Call) -> None:
        await go.wait()
        call.answer(call.body)

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha", "n": 1})
        await fake.called()
        client.post({"model": "alpha", "n": 2})
        await asyncio.sleep(0)
        go.set()
        assert [(await client.answer()).json["n"] for _ in range(2)] == [1, 2]
        client.close()


async def test_an_absent_model_leaves_the_body_as_it_is(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        for body in (b"{ }", b'{"model":null }', b'{"model": ""}'):
            assert (await rig.ask(body)).status == 200
        assert [call.body for call in fake.calls] == [b"{ }", b'{"model":null }', b'{"model": ""}']


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(b"", None, id="empty"),
        pytest.param(b"{", None, id="cut"),
        pytest.param(b"[]", None, id="array"),
        pytest.param(b'{"model":1}', "model", id="number"),
        pytest.param(b'{"a":1}x', None, id="trailing"),
        pytest.param(b'{"a":' + b"[" * 100_000, None, id="deep"),
        pytest.param(b'{"model":"\xff"}', None, id="bytes"),
    ],
)
async def test_a_body_that_is_no_request_is_refused(setup: Setup, body: bytes, param: str | None) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(body)
        assert (answer.status, answer.code, answer.header("content-type")) == (400, "invalid_request", "application/json")
        if param:
            assert answer.json["error"]["param"] == param
        assert fake.calls == []
        assert [code for _, _, code in rig.tally.codes] == [400]


async def test_a_key_that_is_no_text_is_refused_where_the_name_has_to_be_replaced(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake, served="alpha@0123456789ab")) as rig:
        for _ in range(2):
            assert (await rig.ask(b'{"model":"alpha","n":1}')).status == 200
            answer = await rig.ask(b'{"model":"alpha","\xe4":1}')
            assert (answer.status, answer.code) == (400, "invalid_request")
        await rig.quiet()
        assert len(fake.calls) == 2


@pytest.mark.parametrize("model", ["gpt-4o-mini", "../secrets", "/etc", "..\\x", "%2e%2e/x", "alpha\0", "x" * 1_000_000])
async def test_unknown_model_and_traversal_are_404_and_no_replica_is_asked(setup: Setup, model: str) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask({"model": model, "stream": True})
        assert (answer.status, answer.code, answer.json["error"]["param"]) == (404, "model_not_found", "model")
        assert fake.lines == []
        assert rig.tally.codes == [("other", "/v1/chat/completions", 404)]


async def test_middleware_500_whatever_fails_inside_is_an_envelope(setup: Setup) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        reports: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["exception"]))
        rig.table.fault = OSError("disk")
        for fast in (True, False):
            rig.table.fast = fast
            answer = await rig.ask()
            assert (answer.status, answer.code, answer.header("content-type")) == (500, "internal_error", "application/json")
            assert b"disk" not in answer.body
        assert len(reports) == 2


# which replica, and how often


async def test_dup_retry_a_replica_that_refuses_is_left_for_another(setup: Setup) -> None:
    async with replica() as fake:
        admission = unavailable_first(fake)
        async with gateway(setup, admission) as rig:
            answer = await rig.ask()
            assert (answer.status, answer.header("x-lora-gateway-replica")) == (200, fake.id)
            await rig.quiet()
            assert admission.told == [("refused", admission.seats["alpha"][0].replica)]
            assert rig.tally.retries == {"refused": 1}


async def test_dup_retry_when_no_replica_can_be_reached_it_is_502(setup: Setup) -> None:
    admission = Table({"alpha": [seat_away(), seat_away()]})
    async with gateway(setup, admission) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.code) == (502, "replica_unreachable")
        assert len(admission.told) == 2
        await rig.quiet()


async def test_long_generation_a_black_hole_costs_the_connect_timeout(setup: Setup) -> None:
    async with replica() as fake:
        with socket.socket() as hole:  # a backlog that is full answers nothing
            hole.bind(("127.0.0.1", 0))
            hole.listen(0)
            port = hole.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            away = Seat(f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", "alpha")
            admission = Table({"alpha": [away, Seat(fake.id, fake.url, "alpha")]})
            async with gateway(setup, admission, Limits(connect_timeout=0.2)) as rig:
                answer = await rig.ask()
                assert (answer.status, answer.header("x-lora-gateway-replica")) == (200, fake.id)
            for filler in fillers:
                filler.close()


async def test_dup_retry_a_request_that_may_have_run_is_never_sent_again(setup: Setup) -> None:
    async def close_later(call: Call) -> None:
        await asyncio.sleep(0.15)
        call.close()

    async with replica(close_later) as first, replica() as second, gateway(setup, table(first, second)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.code) == (502, "replica_failed")
        assert (len(first.calls), len(second.calls)) == (1, 0)
        assert rig.tally.errors == {"closed": 1}
        await rig.quiet()


async def test_dup_retry_on_a_fresh_connection_even_a_close_at_once_is_502(setup: Setup) -> None:
    async def close(call: Call) -> None:
        call.close()

    async with replica(close) as fake, gateway(setup, table(fake)) as rig:
        assert (await rig.ask()).code == "replica_failed"
        assert len(fake.calls) == 1


async def test_dup_retry_an_error_of_the_replica_is_passed_on(setup: Setup) -> None:
    script = answers("500 Internal Server Error", {"error": {"message": "boom", "type": "x", "param": None, "code": 500}})
    async with replica(script) as first, replica() as second, gateway(setup, table(first, second)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.json["error"]["message"]) == (500, "boom")
        assert (len(first.calls), len(second.calls)) == (1, 0)
        assert rig.table.told == []


async def test_a_replica_whose_engine_died_with_the_request_is_told(setup: Setup) -> None:
    error = {"message": "EngineCore encountered an issue. See ...", "type": "InternalServerError", "param": None, "code": 500}
    script = answers("500 Internal Server Error", {"error": error})
    async with replica(script) as first, gateway(setup, table(first)) as rig:
        assert (await rig.ask()).status == 500
        assert rig.table.told == [("failed", first.id)]


@pytest.mark.parametrize(("retries", "status"), [(1, 200), (0, 502)])
async def test_keepalive_race_a_reused_connection_that_closes_at_once_is_tried_anew(
    setup: Setup, retries: int, status: int
) -> None:
    async def close_on_reuse(call: Call) -> None:
        if len(fake.calls) == 2:
            call.reset()
        else:
            call.answer(b"{}")

    async with replica(close_on_reuse) as fake, gateway(setup, table(fake), Limits(retry_reused=retries)) as rig:
        assert (await rig.ask()).status == 200
        assert (await rig.ask()).status == status
        assert len(fake.calls) == 2 + retries
        assert rig.tally.retries == ({"reused": 1} if retries else {})


async def test_keepalive_race_a_reused_connection_that_closes_later_is_502(setup: Setup) -> None:
    async def close_on_reuse(call: Call) -> None:
        if len(fake.calls) == 1:
            call.answer(b"{}")
        else:
            await asyncio.sleep(0.2)
            call.reset()

    async with replica(close_on_reuse) as fake, gateway(setup, table(fake)) as rig:
        assert (await rig.ask()).status == 200
        assert (await rig.ask()).status == 502
        assert len(fake.calls) == 2


async def test_keepalive_race_nobody_notices_a_replica_that_closes_idle_connections(setup: Setup) -> None:
    async def close_soon(call: Call) -> None:
        call.answer(b"{}")
        asyncio.get_running_loop().call_later(0.03, call.close)

    async with replica(close_soon) as fake, gateway(setup, table(fake), Limits(idle_timeout=60.0)) as rig:
        client = await rig.client()
        for n in range(200):
            client.post({"model": "alpha"})
            assert (await client.answer()).status == 200
            await asyncio.sleep(0.025 + n % 11 / 1000)
        client.close()


async def test_a_draining_replica_is_left_for_another(setup: Setup) -> None:
    body = {"error": {"message": "cannot schedule new futures after shutdown", "type": "InternalServerError", "code": 500}}
    script = answers("500 Internal Server Error", body)
    async with replica(script) as first, replica() as second, gateway(setup, table(first, second)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.header("x-lora-gateway-replica")) == (200, second.id)
        assert rig.table.told == [("draining", first.id)]
        assert rig.tally.retries == {"draining": 1}


async def test_when_all_drain_it_is_503(setup: Setup) -> None:
    script = answers("500 Internal Server Error", {"error": {"message": "cannot schedule new futures after shutdown"}})
    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.code, answer.header("retry-after")) == (503, "no_replica", "5")


UNKNOWN = {"error": {"message": "The model `alpha` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}}
ANTHROPIC = {"type": "error", "error": {"type": "NotFoundError", "message": "The model `alpha` does not exist. Valid: x."}}


@pytest.mark.parametrize("body", [UNKNOWN, ANTHROPIC], ids=["openai", "anthropic"])
async def test_a_replica_that_forgot_the_model_is_asked_again_once(setup: Setup, body: object) -> None:
    async def forget_once(call: Call) -> None:
        if len(fake.calls) == 1:
            call.answer(json.dumps(body).encode(), "404 Not Found")
        else:
            call.answer(b"{}")

    async with replica(forget_once) as fake, gateway(setup, table(fake)) as rig:
        assert (await rig.ask(target="/v1/messages")).status == 200
        assert rig.table.told == [("forgotten", "alpha")]
        assert rig.tally.retries == {"forgotten": 1}


async def test_a_replica_that_forgets_twice_is_inconsistent(setup: Setup) -> None:
    async with replica(answers("404 Not Found", UNKNOWN)) as fake, gateway(setup, table(fake)) as rig:
        assert (await rig.ask()).code == "replica_failed"
        assert len(fake.calls) == 2
        assert rig.tally.errors == {"inconsistent": 1}


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_replica_that_refuses_the_credentials_is_502(setup: Setup, status: str) -> None:
    script = answers(status, {"error": "Unauthorized"})
    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask(authorization="Bearer secret")
        assert (answer.status, answer.code) == (502, "replica_credentials")
        assert b"secret" not in answer.body
        assert rig.table.told == [("credentials", fake.id)]


async def test_deleted_files_the_error_is_passed_on_and_told(setup: Setup) -> None:
    script = answers("500 Internal Server Error", {"error": {"message": "No such file: /x/adapter_config.json"}})
    async with replica(script) as fake, gateway(setup, table(fake, revision="0123456789ab")) as rig:
        answer = await rig.ask()
        assert (answer.status, b"adapter_config" in answer.body) == (500, True)
        assert rig.table.told == [("missing_files", "alpha")]


async def test_other_404s_and_large_errors_are_passed_on(setup: Setup) -> None:
    async def script(call: Call) -> None:
        call.answer(b"x" * 300_000 if len(fake.calls) == 1 else b'{"detail":"Not Found"}', "404 Not Found")

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        first, second = await rig.ask(), await rig.ask()
        assert (first.status, len(first.body), second.status, second.json) == (404, 300_000, 404, {"detail": "Not Found"})
        assert rig.table.told == []


# streams


async def test_stream_buffering_each_chunk_goes_out_as_it_comes(setup: Setup) -> None:
    steps = [asyncio.Event() for _ in range(4)]

    async def script(call: Call) -> None:
        call.open_stream()
        for n, step in enumerate(steps):
            await step.wait()
            call.chunk(EVENT % n)
        call.write(b"0\r\n\r\n")

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha", "stream": True}, accept_encoding="gzip")
        status, headers = await client.head()  # before the first chunk
        assert (status, dict(headers)["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "content-encoding" not in dict(headers)
        for n, step in enumerate(steps):
            step.set()
            assert await client.chunk() == EVENT % n
        assert await client.chunk() == b""
        await rig.quiet()
        assert len(rig.path.pools[0].idle) == 1
        client.close()


async def test_stream_buffering_headers_and_chunks_leave_within_50_ms(setup: Setup) -> None:
    written: list[float] = []
    loop = asyncio.get_running_loop()

    async def script(call: Call) -> None:
        call.open_stream()
        written.append(loop.time())
        await asyncio.sleep(0.5)
        for n in range(10):
            call.chunk(EVENT % n)
            written.append(loop.time())
            await asyncio.sleep(0.075)
        call.write(b"0\r\n\r\n")

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha", "stream": True}, accept_encoding="gzip")
        _, headers = await client.head()
        read = [loop.time()]
        assert {"content-encoding", "cache-control", "x-accel-buffering"}.isdisjoint(dict(headers))
        for n in range(10):
            assert await client.chunk() == EVENT % n
            read.append(loop.time())
        client.close()
        late = sorted(r - w for w, r in zip(written, read, strict=True))
        assert late[-3] < 0.05, "two may be held up by what else the machine does"


@pytest.mark.parametrize("end", ["rst", "fin"])
@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/messages"])
async def test_midstream_death_is_told_and_never_made_an_end(setup: Setup, end: str, target: str) -> None:
    async def die(call: Call) -> None:
        call.open_stream()
        for n in range(3):
            call.chunk(EVENT % n)
        await until(lambda: rig.tally.first_bytes == [] and rig.path.in_flight == 1)
        await asyncio.sleep(0.05)
        if end == "rst":
            call.reset()
        else:
            call.close()

    async with replica(die) as first, replica() as second, gateway(setup, table(first, second)) as rig:
        answer = await rig.ask(target=target)
        assert (answer.status, answer.complete) == (200, False)
        *events, last = answer.body.removesuffix(b"\n\n").split(b"\n\n")
        assert events == [(EVENT % n).strip() for n in range(3)]
        assert last.startswith(b"event: error\ndata: " if target == "/v1/messages" else b"data: ")
        assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "replica_failed"
        assert b"[DONE]" not in answer.body
        assert second.calls == []
        assert rig.tally.errors == {"midstream": 1}
        await rig.quiet()


async def test_midstream_death_in_the_middle_of_a_chunk_is_a_cut(setup: Setup) -> None:
    async def die(call: Call) -> None:
        call.open_stream()
        call.write(b"40\r\ndata: half")
        await asyncio.sleep(0.05)
        call.close()

    async with replica(die) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert not answer.complete
        if setup.adapter == "protocol":
            assert b"error" not in answer.body
        await rig.quiet()


@pytest.mark.parametrize("last", [b"0", b"0;x", b"0\r", b"0\r\n", b"0\r\nt: 1", b"0\r\nt: 1\r\n", b"9;x"])
async def test_midstream_death_within_the_framing_is_a_cut(setup: Setup, last: bytes) -> None:
    async def die(call: Call) -> None:
        call.open_stream()
        call.chunk(EVENT % 1)
        call.write(last)
        await asyncio.sleep(0.02)
        call.close()

    async with replica(die) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.complete) == (200, False)
        assert answer.body.startswith(EVENT % 1)
        await rig.quiet()


async def test_midstream_death_of_what_is_no_event_stream_is_a_cut(setup: Setup) -> None:
    async def die(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        await asyncio.sleep(0.05)
        call.close()

    async with replica(die) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert (answer.body, answer.complete) == (b"{", False)
        await rig.quiet()


@pytest.mark.parametrize("limits", [Limits(first_byte_timeout=10.0), Limits(first_byte_timeout=0.0)], ids=["limit", "none"])
async def test_long_generation_a_slow_first_byte_is_waited_for(setup: Setup, limits: Limits) -> None:
    async def slow(call: Call) -> None:
        await asyncio.sleep(3.0)  # 180 s at 1/60
        call.answer(b"{}")

    async with replica(slow) as fake, gateway(setup, table(fake), limits) as rig:
        assert (await rig.ask()).status == 200


@pytest.mark.parametrize("limits", [Limits(stream_idle_timeout=10.0), Limits(stream_idle_timeout=0.0)], ids=["limit", "none"])
async def test_long_generation_a_gap_in_a_stream_is_waited_for(setup: Setup, limits: Limits) -> None:
    async def pause(call: Call) -> None:
        call.open_stream()
        call.chunk(EVENT % 1)
        await asyncio.sleep(1.5)  # 90 s at 1/60
        call.chunk(EVENT % 2)
        call.write(b"0\r\n\r\n")

    async with replica(pause) as fake, gateway(setup, table(fake), limits) as rig:
        answer = await rig.ask()
        assert (answer.body, answer.complete) == (EVENT % 1 + EVENT % 2, True)


async def test_long_generation_no_first_byte_is_504(setup: Setup) -> None:
    async with replica(hang) as fake, gateway(setup, table(fake), Limits(first_byte_timeout=0.2)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.code) == (504, "replica_timeout")
        await until(fake.calls[0].line.closed.is_set)
        assert rig.tally.errors == {"timeout": 1}
        await rig.quiet()


async def test_long_generation_a_silent_stream_ends_with_an_error_event(setup: Setup) -> None:
    async with replica(stream_and_hang) as fake, gateway(setup, table(fake), Limits(stream_idle_timeout=0.2)) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.complete) == (200, False)
        assert b"replica_timeout" in answer.body
        await until(fake.calls[0].line.closed.is_set)
        await rig.quiet()


async def test_a_silent_stream_on_a_replica_that_is_down_ends_after_the_grace(setup: Setup) -> None:
    async with replica(stream_and_hang) as fake, gateway(setup, table(fake), Limits(dead_stream_grace=0.1)) as rig:
        rig.table.down.add(fake.id)
        answer = await rig.ask()
        assert b"replica_failed" in answer.body
        assert rig.tally.errors == {"dead": 1}


# the client leaves


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_disconnect_stream_the_replica_learns_it_within_a_second(
    setup: Setup, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica(stream_and_hang) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha", "stream": True})
        assert (await client.head())[0] == 200
        await client.chunk()
        getattr(client, how)()
        await until(fake.calls[0].line.closed.is_set, 1.0)
        await rig.quiet(1.0)
        assert rig.tally.left == {"stream": 1}
        assert (rig.tally.errors, rig.table.told) == ({}, [])
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
        assert rig.tally.codes == [("alpha", "/v1/chat/completions", 499)]


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_disconnect_before_the_headers(setup: Setup, how: str) -> None:
    async with replica(hang) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha"})
        call = await fake.called()
        getattr(client, how)()
        await until(call.line.closed.is_set, 1.0)
        await rig.quiet(1.0)
        assert rig.tally.left == {"headers": 1}


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_disconnect_while_it_waits(setup: Setup, how: str) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        rig.table.gate = asyncio.Event()
        client = await rig.client()
        client.post({"model": "alpha"})
        await until(lambda: rig.table.waiting == 1)
        getattr(client, how)()
        await until(lambda: rig.table.waiting == 0, 1.0)
        await rig.quiet(1.0)
        assert rig.tally.left == {"queue": 1}
        assert fake.lines == []


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_disconnect_in_the_middle_of_the_body(setup: Setup, how: str) -> None:
    async with replica() as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post(b'{"model":', content_length="1000")
        await asyncio.sleep(0.05)
        getattr(client, how)()
        await until(lambda: rig.tally.left == {"body": 1}, 1.0)
        assert fake.lines == []


async def test_disconnect_half_closing_counts_as_leaving(setup: Setup) -> None:
    async with replica(stream_and_hang) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha"})
        await client.head()
        client.writer.write_eof()
        await until(fake.calls[0].line.closed.is_set, 1.0)
        client.close()
        await rig.quiet(1.0)


async def test_pool_leak_a_storm_of_leaving_clients_leaves_nothing(setup: Setup) -> None:
    async def slow(call: Call) -> None:
        await asyncio.sleep(0.02)
        call.open_stream()
        await asyncio.sleep(0.02)
        call.chunk(EVENT % 1)
        call.write(b"0\r\n\r\n")

    async def leave(delay: float) -> None:
        client = await rig.client()
        client.post({"model": "alpha"})
        await asyncio.sleep(delay)
        client.reset()

    async with replica(slow) as fake, gateway(setup, table(fake)) as rig:
        await asyncio.gather(*(leave(n % 50 / 1000) for n in range(200)))
        await rig.quiet()
        results = await asyncio.gather(*(rig.ask() for _ in range(4)))
        assert [r.status for r in results] == [200] * 4
        await rig.quiet()
        assert rig.path.pools[0].idle
        await until(lambda: fake.open_lines == len(rig.path.pools[0].open))


# back-pressure and shutdown


async def test_a_client_that_does_not_read_stops_the_replica(setup: Setup) -> None:
    sent = 0

    async def flood(call: Call) -> None:
        nonlocal sent
        call.open_stream()
        while sent < 64 << 20 and not call.line.closed.is_set():
            if call.line.transport.get_write_buffer_size() < 1 << 20:
                call.chunk(b"x" * 65536)
                sent += 65536
            await asyncio.sleep(0)

    async with replica(flood) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha"})
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while before != sent:  # until no more is taken
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 32 << 20
        client.reset()
        await until(fake.calls[0].line.closed.is_set, 2.0)
        await rig.quiet()


async def test_a_large_answer_comes_through_whole_at_the_clients_pace(setup: Setup) -> None:
    body = bytes(range(256)) * 40_000

    async def large(call: Call) -> None:
        call.answer(body, kind="application/octet-stream")

    async with replica(large) as fake, gateway(setup, table(fake)) as rig:
        answer = await rig.ask()
        assert (answer.complete, answer.body == body) == (True, True)
        await rig.quiet()


async def test_a_drain_waits_and_then_tells_the_rest(setup: Setup) -> None:
    async with replica(stream_and_hang) as fake, gateway(setup, table(fake)) as rig:
        client = await rig.client()
        client.post({"model": "alpha"})
        await client.head()
        await client.chunk()
        await rig.path.drain(0.1)
        assert b"shutting_down" in await client.ended()
        await rig.quiet()
        client.close()


async def test_a_drain_ends_with_the_last_exchange(setup: Setup) -> None:
    go = asyncio.Event()

    async def script(call: Call) -> None:
        await go.wait()
        call.answer(b"{}")

    async with replica(script) as fake, gateway(setup, table(fake)) as rig:
        asking = asyncio.create_task(rig.ask())
        await fake.called()
        draining = asyncio.create_task(rig.path.drain(30))
        await asyncio.sleep(0)
        assert not draining.done()
        go.set()
        assert (await asking).status == 200
        await asyncio.wait_for(draining, 2)
