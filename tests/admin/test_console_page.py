"""The console in a real browser: what people see when the fleet changes, and what their clicks and keys do."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from gateway.core.adapters import Adapter, Catalog, RejectedState
from gateway.core.replica import Phase
from tests.admin.browser import Page, browser, needs_browser
from tests.admin.desk import LOAD_FAILURE, Desk, broken
from tests.core.fleet import adapter, replica

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module"), needs_browser]

SQL, CHAT, BIG = adapter("sql", 1), adapter("team/chat", 2), adapter("big", 3, rank=128)
HOSTILE = "<img src=x onerror=document.title='owned'>\"'&amp;%2F"
CELLS = (
    "const row = [...document.querySelectorAll('.row')].find(r => !r.hidden && r.dataset.name === arguments[0]);"
    "return row ? [...row.querySelectorAll('.strip > *')].map(cell => cell.className).join(' ') : null"
)
# When the page read the fleet: begin and end of each time, in milliseconds.
READS = (
    "return performance.getEntriesByType('resource').filter(e => e.name.endsWith('/admin/matrix'))"
    ".map(e => [e.startTime, e.responseEnd])"
)
POLL = 5000  # milliseconds from the end of one read to the next when nothing happens
NAMES = (
    "return [...document.querySelectorAll('.row')].filter(r => !r.hidden)"
    ".sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map(r => r.querySelector('.title').textContent)"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def page(one_browser: Page) -> Page:
    """An empty page; every gateway has a port of its own, so nothing that a page kept is there for the next."""
    await one_browser.open("about:blank")
    await one_browser.look(1280, 800)
    await one_browser.complaints()
    return one_browser


def fleet(**options: str) -> Desk:
    made = Desk(key=options.get("key"))
    made.join(*(replica(n, {"sql": SQL.load_path, "team/chat": CHAT.load_path}) for n in (1, 2, 3)))
    made.put(SQL, CHAT)
    return made


async def show(page: Page, desk: Desk) -> None:
    await page.open(f"{desk.url}/console")
    await page.wait_text("#link", "live")
    await page.wait("return document.querySelectorAll('.row').length")


async def test_a_replica_that_dies_changes_its_card_the_matrix_and_the_events(page: Page) -> None:
    desk = fleet()
    async with desk.served():
        await show(page, desk)
        assert await page.run(CELLS, "sql") == "h h h"
        assert await page.texts("#cards .state") == ["ready", "ready", "ready"]
        reads = await page.wait(READS, holds=lambda reads: len(reads) == 2)  # at the start, and as the events begin to come
        desk.die(2)
        await page.wait_text("#cards li:nth-child(2)", "down", seconds=4)
        begins, ended = (await page.run(READS))[2][0], reads[1][1]
        assert begins - ended < 0.9 * POLL  # the event led to it, the next look at intervals was not due
        assert "connection refused" in (await page.texts("#cards li"))[1]
        assert await page.run(CELLS, "sql") == "h h off h"
        assert await page.texts("#up") == ["2 of 3 ready"]
        await page.wait_text("#log li:first-child", "ready → down: connection refused")
        assert await page.complaints() == []


async def test_a_folder_that_appears_is_followed_until_every_replica_holds_it(page: Page) -> None:
    desk = fleet()
    async with desk.served():
        await show(page, desk)
        assert await page.run(NAMES) == ["sql", "team/chat"]
        desk.put(SQL, CHAT, BIG)
        desk.events.add("adapter_added", adapter="big")
        assert await page.wait(CELLS, "big", seconds=3) == "a a a"
        desk.publish(desk.replica(1).beginning(BIG.revision))
        desk.load(2, BIG)
        desk.fail(3, BIG)
        await page.wait(CELLS, "big", holds=lambda cells: cells == "l h f", seconds=3)
        assert (await page.texts("#rows [data-name=big] .state")) == ["partial"]
        assert LOAD_FAILURE in (await page.texts("#rows [data-name=big] .why"))[0]
        desk.put(SQL, CHAT)
        desk.events.add("adapter_removed", adapter="big")
        await page.wait_text("#rows [data-name=big] .state", "removing", seconds=3)


async def test_changes_without_an_event_are_found_too(page: Page) -> None:
    desk = fleet()
    async with desk.served():
        await show(page, desk)
        reads = await page.wait(READS, holds=lambda reads: len(reads) == 2)
        desk.registry.stations["r1:8000"].inflight = 7
        await page.wait_text("#cards li:first-child", "7 in flight", seconds=9)
        assert (await page.run(READS))[2][0] - reads[1][1] > 0.9 * POLL


async def test_hostile_names_and_reasons_are_text_everywhere(page: Page) -> None:
    desk = fleet()
    hostile = adapter(HOSTILE, 9)
    desk.put(SQL, hostile, rejected=(broken(f"bad {HOSTILE}", RejectedState.INVALID, f"r is {HOSTILE}"),))
    desk.fail(1, hostile, f"cannot {HOSTILE}")
    async with desk.served():
        await show(page, desk)
        await page.wait_text("#log", f"cannot {HOSTILE}")
        assert await page.run(NAMES) == [HOSTILE, f"bad {HOSTILE}", "sql", "team/chat"]
        await page.type("#search", "onerror")
        await page.press("ArrowDown", "Enter")
        await page.wait_text("#detail .each", f"cannot {HOSTILE}")
        assert await page.texts("#detail h2") == [HOSTILE]
        await page.click("#detail [data-act=load]")
        await page.wait_text("#ask p", HOSTILE)
        await page.click("#ask button[value=yes]")
        await page.wait_text("#toast", "asked for")
        assert desk.orders.taken == [("load", HOSTILE)]
        assert await page.run("return document.querySelectorAll('img, main script').length") == 0
        assert "owned" not in await page.run("return document.title")
        assert await page.complaints() == []


async def test_the_detail_tells_revision_path_rank_base_and_each_replicas_reason(page: Page) -> None:
    desk = fleet()
    desk.put(SQL, CHAT, BIG)
    for number in (1, 2, 3):
        desk.fail(number, BIG)
    async with desk.served():
        await show(page, desk)
        await page.click("#rows [data-name=big]")
        await page.wait_text("#detail dl", "000000000003")
        facts = (await page.texts("#detail dl"))[0]
        assert all(part in facts for part in ("/adapters/big", "base-a", "128", "a snapshot (link)", "1 kB"))
        each = await page.texts("#detail .each .why")
        assert each[:3] == [LOAD_FAILURE] * 3
        assert await page.run("return location.hash") == "#adapter/big"
        await page.run("location.reload()")
        await page.wait_text("#detail dl", "000000000003")


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_an_action_asks_first_and_only_a_yes_does_it(page: Page, answer: str) -> None:
    desk = fleet()
    async with desk.served():
        await show(page, desk)
        await page.click("#cards li:nth-child(2) button")
        assert await page.texts("#detail .acts button") == ["Drain"]
        await page.click("#detail [data-act=drain]")
        assert await page.texts("#ask h2") == ["Drain this replica?"]
        assert desk.orders.taken == []
        await page.click(f"#ask button[value={answer}]")
        if answer == "yes":
            await page.wait_text("#toast", "The replica drains.")
            desk.publish(replace(desk.replica(2), phase=Phase.DRAINING, reason="an operator drains it"))
            desk.events.add("phase", replica="r2:8000", reason="ready -> draining")
            await page.wait_text("#detail .acts", "Undrain")
            await page.click("#detail [data-act=undrain]")
            await page.click("#ask button[value=yes]")
            await page.wait_text("#toast", "The replica is back.")
            assert desk.orders.taken == [("drain", "r2:8000"), ("undrain", "r2:8000")]
        else:
            await page.wait("return !document.querySelector('dialog[open]')")
            await page.press("Escape")
            await page.wait("return document.querySelector('#detail').hidden")
            assert desk.orders.taken == []


async def test_a_stored_revision_is_pinned_and_unpinned_from_the_detail(page: Page) -> None:
    desk = fleet()
    old, lost = adapter("sql", 7), adapter("sql", 9)
    desk.publish(desk.replica(3).loaded(lost.revision, f"sql@{lost.digest}"))

    def put(current: Adapter, pins: dict[str, str]) -> None:
        stored = frozenset({SQL.revision, old.revision})
        desk.registry.replace_catalog(Catalog({"sql": current, CHAT.name: CHAT}, stored=stored, pins=pins), 0.0)

    put(SQL, {})
    async with desk.served():
        await show(page, desk)
        await page.click("#rows [data-name=sql]")
        await page.wait_text("#detail .scroll", "Revisions")
        assert await page.texts("#detail .acts button") == ["Load", "Retry"]
        rows = await page.texts("#detail [data-revision]")
        assert [" ".join(row.split()) for row in rows] == [
            f"{SQL.digest} Pin current · snapshot stored · on r1:8000, r2:8000, r3:8000",
            f"{old.digest} Pin snapshot stored",
            f"{lost.digest} no snapshot: it cannot be pinned · on r3:8000",
        ]
        await page.click(f"#detail [data-revision='{old.digest}'] .pin")
        await page.wait_text("#ask p", f"sql@{old.digest}")
        assert desk.orders.taken == []
        await page.click("#ask button[value=yes]")
        await page.wait_text("#toast", "The name is pinned.")
        assert desk.orders.taken == [(f"pin {old.digest}", "sql")]
        put(old, {"sql": old.digest})
        desk.events.add("pin", adapter="sql", revision=old.digest)
        await page.wait_text("#detail dl", f"{old.digest} (pinned)")
        assert await page.texts("#detail .acts button") == ["Load", "Retry", "Unpin"]
        assert "Pin" not in (await page.texts(f"#detail [data-revision='{old.digest}']"))[0].split()
        await page.click("#detail [data-act=unpin]")
        await page.click("#ask button[value=yes]")
        await page.wait_text("#toast", "The name follows the directory.")
        assert desk.orders.taken[1:] == [("unpin", "sql")]
        assert await page.complaints() == []


async def test_an_action_that_the_gateway_refuses_is_told_in_its_words(page: Page) -> None:
    desk = fleet()
    desk.loopback_only = False
    async with desk.served():
        await show(page, desk)
        await page.click("#scan")
        await page.click("#ask button[value=yes]")
        await page.wait_text("#toast", "has no --admin-api-key")
        assert desk.orders.taken == []


async def test_the_key_is_asked_for_kept_in_the_tab_only_and_used_for_actions(page: Page) -> None:
    desk = fleet(key="schlüssel")
    async with desk.served():
        await page.open(f"{desk.url}/console")
        await page.wait_text("#keys", "admin key")
        assert await page.run("return document.querySelectorAll('.row').length") == 0
        await page.type("#keys input", "wrong")
        await page.press("Enter")
        await page.wait_text("#keys", "does not accept this key")
        await page.type("#keys input", "schlüssel")
        await page.press("Enter")
        await page.wait_text("#link", "live")
        await page.wait(NAMES, holds=lambda names: names == ["sql", "team/chat"])
        await page.click("#scan")
        await page.click("#ask button[value=yes]")
        await page.wait_text("#toast", "The directory was read.")
        assert desk.orders.taken == [("scan",)]
        assert await page.run("return [Object.values(sessionStorage), localStorage.length, document.cookie]") == [
            ["schlüssel"],
            0,
            "",
        ]
        await page.click("#lock")
        await page.wait_text("#keys", "admin key")
        assert await page.run("return sessionStorage.length") == 0


async def test_it_says_that_it_is_disconnected_and_since_when_and_comes_back(page: Page) -> None:
    desk = fleet()
    async with desk.served():
        await show(page, desk)
        port = httpx.URL(desk.url).port
    assert port is not None
    await page.wait_text("#banner", "Disconnected since")
    assert await page.texts("#link") == ["disconnected"]
    assert "disconnected" in await page.run("return document.title")
    assert await page.run(NAMES) == ["sql", "team/chat"]  # the last state stays, faded
    again = fleet()
    again.put(SQL)
    async with again.served(port):
        await page.wait_text("#link", "live", seconds=20)
        await page.wait("return document.querySelector('#banner').hidden")
        await page.wait(NAMES, holds=lambda names: "sql" in names)


async def test_everything_can_be_reached_with_the_keyboard(page: Page) -> None:
    desk = fleet()
    desk.put(*(adapter(f"a{n:03d}", n) for n in range(300)))
    chosen = "return document.querySelector('.row.chosen:not([hidden]) .title')?.textContent"
    async with desk.served():
        await show(page, desk)
        await page.press("/")
        assert await page.run("return document.activeElement.id") == "search"
        await page.press("a", "2", "9")
        await page.wait(NAMES, holds=lambda names: names == [f"a29{n}" for n in range(10)])
        await page.press("ArrowDown", "ArrowDown")
        assert await page.run(chosen) == "a291"
        assert await page.run(
            "return document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).dataset.name"
        ) == ("a291")
        await page.press("End")
        assert await page.run(chosen) == "a299"
        await page.press("Enter")
        await page.wait_text("#detail h2", "a299")
        assert await page.run("return document.activeElement.tagName") == "H2"
        await page.press("Escape")
        assert await page.run("return document.querySelector('#detail').hidden") is True
        assert await page.run("return document.activeElement.id") == "list"


async def test_chips_narrow_the_list_to_one_state(page: Page) -> None:
    desk = fleet()
    desk.put(SQL, CHAT, BIG, rejected=(broken("half", RejectedState.INCOMPLETE, "no weights yet"),))
    async with desk.served():
        await show(page, desk)
        assert await page.texts("#chips button") == ["all4", "incomplete1", "pending1", "ready2"]
        await page.click("#chips [data-state=pending]")
        assert await page.run(NAMES) == ["big"]
        await page.click("#chips [data-state=pending]")
        assert len(await page.run(NAMES)) == 4


async def test_one_thousand_adapters_on_fifty_replicas_stay_a_small_page(page: Page) -> None:
    adapters = [adapter(f"team-{n % 20:02d}/a{n:04d}", n) for n in range(1000)]
    desk = Desk()
    desk.join(*(replica(n, {a.name: a.load_path for a in adapters}) for n in range(10, 60)))
    desk.put(*adapters)
    async with desk.served():
        await show(page, desk)
        assert await page.run("return document.querySelectorAll('*').length") < 6000
        took = await page.run(
            "const list = document.querySelector('#list'), began = performance.now();"
            "for (let i = 0; i < 50; i++) { list.scrollTop = i * 640; list.dispatchEvent(new Event('scroll'));"
            "  list.getBoundingClientRect(); } return performance.now() - began"
        )
        assert took < 2000
        await page.run("document.querySelector('#list').scrollTop = 1e9")
        await page.wait(NAMES, holds=lambda names: names[-1] == "team-19/a0999")
        desk.die(12)
        await page.wait_text("#up", "49 of 50 ready", seconds=8)
        assert await page.run("return document.querySelector('#list').scrollTop") > 25_000  # nothing jumps
        await page.type("#search", "a0777")
        await page.wait(NAMES, holds=lambda names: names == ["team-17/a0777"])


async def test_on_a_phone_nothing_is_wider_than_the_screen_and_tabs_lead_everywhere(page: Page) -> None:
    desk = fleet()
    desk.join(*(replica(n) for n in range(4, 51)))
    async with desk.served():
        await page.look(390, 844, phone=True)
        await show(page, desk)
        wide = "return [...document.querySelectorAll('body, main, #list, #grid, .row, .strip, #cards, #detail')]"
        for tab, inside in (("adapters", "#list"), ("replicas", "#cards"), ("events", "#log")):
            await page.click(f"#tabs [data-tab={tab}]")
            assert await page.run("return document.querySelector(arguments[0]).checkVisibility()", inside)
            overflow = f"{wide}.filter(e => e.checkVisibility() && e.getBoundingClientRect().right > 391).length"
            assert await page.run(overflow) == 0
        await page.click("#tabs [data-tab=replicas]")
        await page.click("#cards li:first-child button")
        await page.wait_text("#detail h2", "r10:8000")
        await page.click("#close")
        assert await page.run("return document.querySelector('#detail').hidden") is True


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_text_has_enough_contrast_in_both_colour_schemes(page: Page, dark: bool) -> None:
    desk = fleet()
    desk.load(1, BIG)
    desk.die(3)
    script = (
        "const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => (v /= 255) <= .03928 ? v / 12.92 :"
        " ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };"
        "const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;"
        " if (!/, 0\\)/.test(c)) return c; } };"
        "return arguments[0].map(s => { const e = document.querySelector(s);"
        " const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);"
        " return (a + .05) / (b + .05); })"
    )
    parts = [".row .title", ".row .state", "#head .title", "#cards .facts", "#cards .why", "#log .kind", "#log time"]
    async with desk.served():
        await page.look(1280, 800, dark=dark)
        await show(page, desk)
        await page.wait_text("#log .trouble", "phase")
        ground = await page.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(17, 19, 21)" if dark else "rgb(247, 247, 246)")
        ratios = dict(zip(parts, await page.run(script, parts), strict=True))
        assert {part: ratio for part, ratio in ratios.items() if ratio < 4.5} == {}
