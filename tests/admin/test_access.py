"""Who may use /admin: keys, the loopback rule, and pages of other origins."""

import httpx
import pytest

from gateway.admin.access import Access
from tests.admin.desk import Desk
from tests.core.fleet import adapter, replica


async def answer_to(desk: Desk, method: str, path: str, headers: dict[str, str | bytes]) -> httpx.Response:
    desk.join(replica(1))
    desk.put(adapter("sql"))
    raw = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in headers.items()]
    async with desk.served(), httpx.AsyncClient(base_url=desk.url, trust_env=False) as client:
        return await client.request(method, path, headers=raw)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"authorization": "Bearer s3cret"}, 200, id="bearer"),
        pytest.param({"authorization": "bearer s3cret"}, 200, id="scheme in small letters"),
        pytest.param({"x-api-key": "s3cret"}, 200, id="x-api-key"),
        pytest.param({"authorization": "Basic abc", "x-api-key": "s3cret"}, 200, id="x-api-key beside another scheme"),
        pytest.param({}, 401, id="nothing"),
        pytest.param({"authorization": "s3cret"}, 401, id="no scheme"),
        pytest.param({"authorization": "Bearer"}, 401, id="scheme alone"),
        pytest.param({"authorization": "Bearer s3cret2"}, 401, id="longer"),
        pytest.param({"authorization": b"Bearer \xff\xfe"}, 401, id="no text"),
    ],
)
async def test_the_key_is_taken_from_either_header(headers: dict[str, str | bytes], status: int) -> None:
    assert (await answer_to(Desk(key="s3cret"), "GET", "/admin/status", headers)).status_code == status


async def test_a_key_beyond_ascii_is_compared_as_utf_8() -> None:
    headers: dict[str, str | bytes] = {"authorization": "Bearer schlüssel"}
    assert (await answer_to(Desk(key="schlüssel"), "GET", "/admin/status", headers)).status_code == 200


@pytest.mark.parametrize(
    ("key", "loopback_only", "read", "action"),
    [
        pytest.param(None, True, 200, 200, id="loopback without a key"),
        pytest.param(None, False, 200, 403, id="everywhere without a key"),
        pytest.param("s3cret", False, 200, 200, id="everywhere with the key"),
    ],
)
async def test_actions_are_closed_where_others_could_call_without_a_key(
    key: str | None, loopback_only: bool, read: int, action: int
) -> None:
    headers: dict[str, str | bytes] = {"x-api-key": key} if key else {}
    reading = await answer_to(Desk(key, loopback_only), "GET", "/admin/status", headers)
    acting = await answer_to(desk := Desk(key, loopback_only), "POST", "/admin/scan", headers)
    assert (reading.status_code, acting.status_code) == (read, action)
    assert bool(desk.orders.taken) == (action == 200)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        pytest.param({}, True, id="no browser"),
        pytest.param({"host": "localhost:8000", "origin": "http://localhost:8000"}, True, id="the own page"),
        pytest.param({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, True, id="the own page over IPv6"),
        pytest.param({"sec-fetch-site": "same-origin", "origin": "https://gw.test"}, True, id="behind a TLS proxy"),
        pytest.param({"origin": "https://evil.test"}, False, id="another site"),
        pytest.param({"host": "localhost:8000", "origin": "http://localhost:3000"}, False, id="another port"),
        pytest.param({"origin": "null"}, False, id="a sandboxed page"),
        pytest.param({"sec-fetch-site": "cross-site"}, False, id="another site as the browser says"),
        pytest.param({"sec-fetch-site": "same-site"}, False, id="a neighbouring site"),
        pytest.param({"host": "evil.test", "origin": "http://evil.test"}, False, id="a foreign name that points here"),
        pytest.param({"host": "127.evil.test"}, False, id="a foreign name that looks local"),
        pytest.param({"host": "localhost.evil.test"}, False, id="a foreign name that begins locally"),
        pytest.param({"host": "[::1"}, False, id="no host at all"),
    ],
)
async def test_an_action_comes_from_the_gateways_own_page_or_from_no_page(
    headers: dict[str, str | bytes], allowed: bool
) -> None:
    desk = Desk()
    answer = await answer_to(desk, "POST", "/admin/scan", headers)
    assert answer.status_code == (200 if allowed else 403)
    assert bool(desk.orders.taken) == allowed
    if not allowed:
        assert answer.json()["error"]["code"] == "admin_forbidden"


async def test_a_cross_origin_action_is_refused_even_with_the_key() -> None:
    headers: dict[str, str | bytes] = {"x-api-key": "s3cret", "origin": "https://evil.test"}
    assert (await answer_to(Desk(key="s3cret"), "POST", "/admin/scan", headers)).status_code == 403


async def test_with_the_key_any_host_name_will_do() -> None:
    headers: dict[str, str | bytes] = {"x-api-key": "s3cret", "host": "gw.test", "origin": "https://gw.test"}
    assert (await answer_to(Desk(key="s3cret"), "POST", "/admin/scan", headers)).status_code == 200


async def test_an_empty_key_opens_nothing() -> None:
    assert (await answer_to(Desk(key=""), "GET", "/admin/status", {})).status_code == 401


def test_the_key_is_not_printed() -> None:
    assert "s3cret" not in repr(Access("s3cret", True))
