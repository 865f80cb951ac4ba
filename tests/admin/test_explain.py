"""GET /admin/explain: the document, its guard, and the look at the directory for a name that nobody knows."""

import httpx

from gateway.core.adapters import Catalog
from gateway.core.aliases import Alias, Arm
from tests.admin.desk import Desk
from tests.core.fleet import adapter, replica

SQL = adapter("team/sql ü", 1)


def fleet(key: str | None = None) -> Desk:
    desk = Desk(key=key)
    desk.join(replica(1, {SQL.name: SQL.load_path}), replica(2))
    desk.put(SQL)
    return desk


async def ask(desk: Desk, model: str | None, **headers: str) -> httpx.Response:
    async with desk.served(), httpx.AsyncClient(base_url=desk.url, trust_env=False) as client:
        return await client.get("/admin/explain", params=None if model is None else {"model": model}, headers=headers)


async def test_the_document_tells_outcome_replicas_and_reasons() -> None:
    desk = fleet()
    document = (await ask(desk, SQL.name)).json()
    assert (document["model"], document["outcome"], document["picked"]) == (SQL.name, "answered", "r1:8000")
    assert (document["revision"], document["error"], document["notes"]) == (SQL.digest, None, [])
    assert document["replicas"] == [
        {
            "replica": "r1:8000",
            "phase": "ready",
            "answers": True,
            "picked": True,
            "served_name": SQL.name,
            "revision": SQL.digest,
            "inflight": 0,
            "missing": "",
        },
        {
            "replica": "r2:8000",
            "phase": "ready",
            "answers": False,
            "picked": False,
            "served_name": None,
            "revision": None,
            "inflight": 0,
            "missing": "not loaded yet",
        },
    ]
    assert desk.orders.taken == []


async def test_a_name_that_nobody_knows_is_looked_for_in_the_directory_first() -> None:
    desk = fleet()
    document = (await ask(desk, "nobody")).json()
    assert (document["outcome"], document["error"]["status"]) == ("refused", 404)
    assert desk.orders.taken == [("refresh", "nobody")]


async def test_without_a_name_it_is_a_request_that_names_no_model() -> None:
    assert (await ask(fleet(), None)).json()["stands_for"] == "a base model of the replicas"


async def test_a_session_decides_between_the_arms_of_an_alias() -> None:
    desk = fleet()
    other = adapter("other", 2)
    both = Alias("canary", (Arm(SQL.name, 50), Arm("other", 50)))
    desk.registry.replace_catalog(Catalog({SQL.name: SQL, "other": other}, aliases={"canary": both}), 0.0)
    desk.publish(desk.replica(1).loaded(other.revision, "other"))
    async with desk.served(), httpx.AsyncClient(base_url=desk.url, trust_env=False) as client:
        for session in ("ann", "bob", "süß"):
            query = {"model": "canary", "session": session}
            document = (await client.get("/admin/explain", params=query)).json()
            assert document["replicas"][0]["served_name"] == both.ranked(session.encode())[0]


async def test_it_needs_the_key_when_one_is_set_and_bounds_the_name() -> None:
    assert (await ask(fleet("sesame"), SQL.name)).status_code == 401
    assert (await ask(fleet("sesame"), SQL.name, authorization="Bearer sesame")).status_code == 200
    long = await ask(fleet(), "x" * 1025)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "invalid_request")
