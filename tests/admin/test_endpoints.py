"""The operations endpoints over a socket: what each answers, who may call it, and what an unknown path gets."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.core.adapters import RejectedState
from tests.admin.desk import Desk, broken
from tests.core.fleet import adapter, replica

SQL, CHAT = adapter("sql", 1), adapter("team/chat v2?", 2)


@asynccontextmanager
async def client_of(desk: Desk, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with desk.served(), httpx.AsyncClient(base_url=desk.url, trust_env=False, **options) as client:
        yield client


def fleet(**options: Any) -> Desk:
    made = Desk(**options)
    made.join(replica(1, {"sql": SQL.load_path}), replica(2))
    made.put(SQL, CHAT, rejected=(broken("half", RejectedState.INCOMPLETE, "no weights yet"),))
    return made


def error(response: httpx.Response) -> tuple[int, str]:
    """Status and code of an error, which has the OpenAI envelope."""
    told = response.json()["error"]
    assert told.keys() == {"message", "type", "param", "code"}
    return response.status_code, told["code"]


async def test_liveness_and_version_answer_whatever_the_fleet_does() -> None:
    async with client_of(Desk()) as client:
        for path in ("/livez", "/healthz"):
            assert (await client.get(path)).text == "ok"
        assert (await client.get("/version")).json() == {"version": "1.2.3"}


async def test_readiness_is_503_with_the_reason_until_a_replica_is_ready() -> None:
    desk = Desk()
    async with client_of(desk) as client:
        for path in ("/readyz", "/health"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"ready": False, "reason": "the adapter directory has not been read yet"}
        desk.put(SQL)
        desk.join(replica(1))
        assert (await client.get("/readyz")).status_code == 200
        desk.closing = True
        closing = await client.get("/readyz")
        assert (closing.status_code, closing.json()["reason"]) == (503, "the gateway is shutting down")


async def test_metrics_are_in_the_prometheus_text_format() -> None:
    async with client_of(fleet()) as client:
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert 'lora_gateway_adapter_loaded{adapter="sql",replica="r1:8000"} 1.0' in answer.text


async def test_status_is_the_document_of_the_registry_and_no_cache_keeps_it() -> None:
    desk = fleet()
    async with client_of(desk) as client:
        answer = await client.get("/admin/status")
        assert answer.json() == desk.status.document()
        assert answer.headers["cache-control"] == "no-store"


async def test_the_parts_of_the_status_have_addresses_of_their_own() -> None:
    desk = fleet()
    async with client_of(desk) as client:
        assert (await client.get("/admin/adapters")).json() == {"adapters": list(desk.status.adapters())}
        assert (await client.get("/admin/replicas")).json() == {"replicas": desk.status.replicas()}
        for name in ("sql", "half", CHAT.name):
            assert (await client.get(f"/admin/adapters/{quote(name)}")).json() == desk.status.adapter(name)
            assert (await client.get(f"/admin/adapters/{quote(name, safe='')}")).json()["name"] == name
        assert error(await client.get("/admin/adapters/nobody")) == (404, "not_found")


async def test_the_matrix_has_a_letter_for_each_replica_in_the_order_of_the_replicas() -> None:
    async with client_of(fleet()) as client:
        matrix = (await client.get("/admin/matrix")).json()
        assert [told["id"] for told in matrix["replicas"]] == ["r1:8000", "r2:8000"]
        assert {told["name"]: told["cells"] for told in matrix["adapters"]} == {
            "half": "",
            "sql": "h.",
            CHAT.name: "..",
        }
        assert (await client.get("/admin/matrix")).json()["gateway"]["version"] == "1.2.3"


async def test_one_thousand_adapters_on_fifty_replicas_hold_up_the_event_loop_only_briefly() -> None:
    adapters = [adapter(f"a{n}", n) for n in range(1000)]
    desk = Desk()
    desk.join(*(replica(n, {a.name: a.load_path for a in adapters}) for n in range(50)))
    desk.put(*adapters)
    async with client_of(desk) as client:
        loop, longest, done = asyncio.get_running_loop(), 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not done:
                began = loop.time()
                await asyncio.sleep(0)
                longest = max(longest, loop.time() - began)

        watching = asyncio.create_task(watch())
        began = time.perf_counter()
        answer = await client.get("/admin/matrix")
        whole = time.perf_counter() - began
        done = True
        await watching
        assert len(answer.content) < 500_000
        assert longest < max(0.5 * whole, 0.05)


async def test_models_are_the_bases_and_every_valid_adapter_and_one_is_found_under_its_quoted_name() -> None:
    async with client_of(fleet()) as client:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [row["id"] for row in listed["data"]] == ["base-a", "sql", CHAT.name]
        sql = listed["data"][1]
        assert sql == {
            "id": "sql",
            "object": "model",
            "created": 0,
            "owned_by": "lora-gateway",
            "root": "/adapters/sql",
            "parent": "base-a",
            "revision": SQL.digest,
        }
        for row in listed["data"]:
            assert (await client.get(f"/v1/models/{quote(row['id'], safe='')}")).json() == row
        missing = await client.get("/v1/models/half")
        assert error(missing) == (404, "model_not_found")
        assert missing.json()["error"]["param"] == "model"
        assert missing.json()["error"]["message"] == "The model 'half' does not exist."


async def test_models_are_503_before_any_replica_has_told_its_own() -> None:
    desk = Desk()
    desk.put(SQL)
    async with client_of(desk) as client:
        answer = await client.get("/v1/models")
        assert error(answer) == (503, "no_replica")
        assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        pytest.param("GET", "/", "not_found", id="root"),
        pytest.param("GET", "/nothing", "not_found", id="unknown"),
        pytest.param("POST", "/v1/load_lora_adapter", "not_found", id="load of a replica"),
        pytest.param("POST", "/v1/unload_lora_adapter", "not_found", id="unload of a replica"),
        pytest.param("POST", "/sleep", "not_found", id="sleep of a replica"),
        pytest.param("GET", "/livez/", "not_found", id="with a slash"),
        pytest.param("GET", "//livez", "not_found", id="two slashes"),
        pytest.param("GET", "/LIVEZ", "not_found", id="capitals"),
        pytest.param("GET", "/admin", "not_found", id="admin alone"),
        pytest.param("GET", "/admin/status/x", "not_found", id="below the status"),
        pytest.param("GET", "/%2e%2e/etc/passwd", "not_found", id="dots"),
        pytest.param("GET", "/" + "x" * 5000, "not_found", id="long"),
        pytest.param("GET", "/admin/scan", "method_not_allowed", id="scan by GET"),
        pytest.param("POST", "/admin/status", "method_not_allowed", id="status by POST"),
        pytest.param("DELETE", "/v1/models", "method_not_allowed", id="models by DELETE"),
    ],
)
async def test_an_unknown_path_or_method_gets_the_envelope_and_no_redirect(method: str, path: str, code: str) -> None:
    async with client_of(fleet()) as client:
        answer = await client.request(method, path)
        assert error(answer) == (404 if code == "not_found" else 405, code)
        assert len(answer.content) < 500
        assert ("allow" in answer.headers) == (code == "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "order"),
    [
        pytest.param("/admin/adapters/sql/load", ("load", "sql"), id="load"),
        pytest.param("/admin/adapters/sql/retry", ("retry", "sql"), id="retry"),
        pytest.param(f"/admin/adapters/{quote(CHAT.name, safe='')}/load", ("load", CHAT.name), id="quoted name"),
        pytest.param(f"/admin/adapters/{quote(CHAT.name)}/retry", ("retry", CHAT.name), id="name with a slash"),
        pytest.param("/admin/replicas/r1:8000/drain", ("drain", "r1:8000"), id="drain"),
        pytest.param("/admin/replicas/r1%3A8000/undrain", ("undrain", "r1:8000"), id="undrain"),
        pytest.param("/admin/scan", ("scan",), id="scan"),
    ],
)
async def test_an_action_is_passed_to_the_control_loop(path: str, order: tuple[str, ...]) -> None:
    desk = fleet()
    async with client_of(desk) as client:
        answer = await client.post(path)
        assert (answer.status_code, answer.json()) == (200, {"ok": True})
        assert desk.orders.taken == [order]


@pytest.mark.parametrize(
    "path",
    ["/admin/adapters/nobody/load", "/admin/adapters/half/retry", "/admin/replicas/r9:8000/drain"],
    ids=["unknown adapter", "no valid adapter", "unknown replica"],
)
async def test_an_action_on_what_is_not_there_is_404(path: str) -> None:
    desk = fleet()
    async with client_of(desk) as client:
        assert error(await client.post(path)) == (404, "not_found")
        assert desk.orders.taken == []


async def test_every_admin_address_needs_the_key_when_one_is_set_and_no_other_does() -> None:
    desk = fleet(key="s3cret")
    reads = ("status", "matrix", "adapters", "adapters/sql", "replicas", "events")
    actions = ("scan", "adapters/sql/load", "adapters/sql/retry", "replicas/r1:8000/drain", "replicas/r1:8000/undrain")
    async with client_of(desk) as client:
        calls = [("GET", f"/admin/{path}") for path in reads] + [("POST", f"/admin/{path}") for path in actions]
        for method, path in calls:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "s3cre"}):
                answer = await client.request(method, path, headers=headers)
                assert error(answer) == (401, "invalid_api_key")
                assert "s3cret" not in answer.text
        assert desk.orders.taken == []
        for path in ("/livez", "/readyz", "/metrics", "/v1/models", "/console"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/admin/status", headers={"authorization": "Bearer s3cret"})).status_code == 200


async def test_half_a_surrogate_pair_in_a_replicas_words_breaks_neither_status_nor_events() -> None:
    desk = fleet()
    desk.fail(1, CHAT, "cannot read \ud800")
    async with client_of(desk) as client:
        status = await client.get("/admin/status")
        assert status.status_code == 200
        assert "cannot read" in status.json()["adapters"][2]["reason"]
        async with client.stream("GET", "/admin/events") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    assert '"reason":"cannot read ?"' in line
                    break


async def test_the_console_is_a_page_that_no_cache_serves_stale() -> None:
    async with client_of(fleet()) as client:
        answer = await client.get("/console")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.text.startswith("<!doctype html>")
