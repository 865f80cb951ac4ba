"""CORS, the access log and the fields of a trace on the data path, under both adapters."""

import asyncio
from collections.abc import Mapping

import pytest

from gateway.proxy.access_log import Entry
from gateway.proxy.cors import Cors
from gateway.proxy.datapath import Extras, Limits
from tests.proxy.conftest import Setup
from tests.proxy.fake_replica import Call, replica
from tests.proxy.rig import Answer, gateway, table
from tests.waiting import until

PAGE = "https://app.example"


async def whole(call: Call) -> None:
    """An answer of a replica that, like vLLM, says that every origin may read it."""
    body = b'{"model": "alpha"}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\naccess-control-allow-origin: *\r\ncontent-length: %d\r\n\r\n"
    call.write(head % len(body) + body)


async def streamed(call: Call) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    call.write(head + b"5\r\nhello\r\n")
    await asyncio.sleep(0)
    call.write(b"6\r\n world\r\n0\r\n\r\n")


def cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith("access-control-") or name == "vary"}


async def test_a_page_of_a_chosen_origin_may_read_answers_and_errors(setup: Setup) -> None:
    async with replica(whole) as fake, gateway(setup, table(fake), extras=Extras(cors=Cors([PAGE]))) as rig:
        for body, status in (({"model": "alpha"}, 200), ({"model": "nobody"}, 404), (b"{", 400)):
            answer = await rig.ask(body, origin=PAGE)
            assert answer.status == status
            assert [v for n, v in answer.headers if n == "access-control-allow-origin"] == [PAGE]
            assert "x-request-id" in cors(answer)["access-control-expose-headers"]
            assert cors(answer)["vary"] == "Origin"


async def test_a_body_that_is_refused_before_it_is_read_may_be_read_too(setup: Setup) -> None:
    more = {"extras": Extras(cors=Cors(["*"]))}
    async with replica(whole) as fake, gateway(setup, table(fake), Limits(max_body_bytes=10), **more) as rig:
        answer = await rig.ask({"model": "alpha"}, origin=PAGE)
        assert (answer.status, cors(answer)["access-control-allow-origin"]) == (413, "*")


async def test_another_origin_and_no_origin_get_nothing(setup: Setup) -> None:
    async with replica(whole) as fake, gateway(setup, table(fake), extras=Extras(cors=Cors([PAGE]))) as rig:
        for more in ({"origin": "https://evil.example"}, {"origin": f"{PAGE}.evil"}, {}):
            assert cors(await rig.ask(**more)) == {"vary": "Origin"}


async def test_without_cors_nothing_is_said_of_origins_whatever_the_replica_says(setup: Setup) -> None:
    async with replica(whole) as fake, gateway(setup, table(fake)) as rig:
        assert cors(await rig.ask(origin=PAGE)) == {}


async def test_a_browser_that_asks_beforehand_is_told_what_it_may(setup: Setup) -> None:
    async with replica(whole) as fake, gateway(setup, table(fake), extras=Extras(cors=Cors([PAGE]))) as rig:
        for origin, allowed in ((PAGE, True), ("https://evil.example", False)):
            client = await rig.client()
            client.write(
                b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\norigin: %b\r\n"
                b"access-control-request-method: POST\r\naccess-control-request-headers: authorization, content-type\r\n\r\n"
                % origin.encode()
            )
            answer = await client.answer()
            client.close()
            assert (answer.status == 200) is allowed
            said = cors(answer)
            assert (said.get("access-control-allow-origin") == origin) is allowed
            if allowed:
                assert "POST" in said["access-control-allow-methods"]
                assert "authorization" in said["access-control-allow-headers"].lower()
        assert fake.calls == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_access_log_has_one_entry_for_each_request(setup: Setup, stream: bool) -> None:
    entries: list[Entry] = []
    script, size = (streamed, 11) if stream else (whole, 18)
    async with replica(script) as fake:
        tab = table(fake, revision="0123456789ab")
        async with gateway(setup, tab, extras=Extras(access_log=entries.append)) as rig:
            await rig.ask(x_request_id="abc-1")
            await rig.ask({"model": "nobody\nfake line"}, x_request_id="abc-2")
            await until(lambda: len(entries) == 2)
    first, second = entries
    assert first[:6] == (b"abc-1", "/v1/chat/completions", "alpha", "0123456789ab", fake.id, 200)
    assert first.sent >= size
    assert first.first_byte is not None and 0 <= first.first_byte <= first.seconds
    assert second[:6] == (b"abc-2", "/v1/chat/completions", "other", None, None, 404)


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


async def test_the_fields_of_a_trace_are_passed_on_untouched(setup: Setup) -> None:
    async with replica(whole) as fake, gateway(setup, table(fake)) as rig:
        await rig.ask(**TRACE)
        assert {name: fake.calls[0].header(name) for name in TRACE} == TRACE


class Spans:
    """A trace that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def request(self, endpoint: str, lines: bytes) -> "Spans":
        assert b"traceparent: 00-0af7651916cd43dd8448eb211c80319c" in lines
        self.told.append(endpoint)
        return self

    def sent(self, replica: str, model: str, revision: str | None) -> Mapping[str, str]:
        self.told.append(f"sent {model}")
        return {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-1111111111111111-01"}

    def first_byte(self) -> None:
        self.told.append("first byte")

    def ended(self, status: int) -> None:
        self.told.append(f"ended {status}")


async def test_a_trace_that_is_kept_tells_the_replica_its_own_parent(setup: Setup) -> None:
    spans = Spans()
    async with replica(whole) as fake, gateway(setup, table(fake), extras=Extras(tracing=spans)) as rig:
        await rig.ask(**TRACE)
        await until(lambda: len(spans.told) == 4)
        values = [value for name, value in fake.calls[0].headers if name == "traceparent"]
        assert values == ["00-0af7651916cd43dd8448eb211c80319c-1111111111111111-01"]
        assert spans.told == ["/v1/chat/completions", "sent alpha", "first byte", "ended 200"]
