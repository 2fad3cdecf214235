"""The page as people use it: with a keyboard, on a phone, in the dark; and as nobody may use it."""

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Route

from tests.integration.proxy.test_usage import Regions
from tests.machine import seconds
from tests.subjects.processes import until

from .conftest import HEADS, VIEWS, WORK, Opener, Scheme, Visit

FOCUSED = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
CLICKS = "() => { for (const each of document.querySelectorAll('nav a, #refresh')) each.click(); }"
BROKEN = """() => {
    const walker = document.createTreeWalker(document.querySelector("#view"), NodeFilter.SHOW_TEXT), found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        for (const { 0: word, index } of node.data.matchAll(/[\\w.,]+/g)) {
            const range = document.createRange();
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
            if (word.length < 40 && lines.size > 1) found.push(word);
        }
    }
    for (const row of document.querySelectorAll("#view tr")) {
        if (row.getBoundingClientRect().height > 400) found.push(`a row of ${row.getBoundingClientRect().height} px`);
    }
    return found;
}"""
"""Words that are on two lines, and rows half as high as a phone."""

CELLS = "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"


PICTURES = {
    ("money", 1280, "light"),
    ("sessions", 1280, "light"),
    ("decisions", 1280, "light"),
    ("engines", 390, "dark"),
}
"""What is shown in the docs."""


def problems(visit: Visit) -> list[str]:
    """What axe finds in the page as it stands."""
    found: list[dict[str, Any]] = Axe().run(visit.page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_view_has_a_barrier_or_is_wider_than_the_screen(
    visit: Opener, fleet: Regions, width: int, scheme: Scheme
) -> None:
    page = visit(width, scheme)
    assert problems(page) == []
    page.sign_in(fleet.east.admin_key)
    page.page.select_option("#tenant", index=1)
    for view in VIEWS:
        page.go(view)
        if view == "decisions":
            page.page.locator("details summary").first.click()
        if view == "sessions":
            page.open_session()
        assert problems(page) == [], view
        assert page.page.evaluate("document.documentElement.scrollWidth") == width, view
        assert page.page.evaluate(BROKEN) == [], view
        if (view, width, scheme) in PICTURES:
            page.picture(f"page-{view}")
    page.go("sessions").open_session()
    page.open_receipt()
    assert problems(page) == []
    if (width, scheme) == (1280, "dark"):
        page.page.keyboard.press("Escape")
        page.page.locator(".turn").nth(5).click()
        page.page.wait_for_selector("dialog[open] summary")
        page.picture("page-receipt")
    assert page.complaints == []


def test_everything_works_by_keyboard(visit: Opener, fleet: Regions) -> None:
    page = visit()
    keyboard = page.page.keyboard

    def focused() -> str:
        return str(page.page.evaluate(FOCUSED))

    def tab_to(beginning: str) -> None:
        for _ in range(60):
            keyboard.press("Tab")
            if focused().startswith(beginning):
                return
        raise AssertionError(f"{beginning!r} is not reached")

    keyboard.press("Tab")
    assert focused() == "Skip to the content"
    keyboard.press("Tab")
    keyboard.type(fleet.east.admin_key)
    keyboard.press("Enter")
    page.settled("money")
    tab_to("All tenants")
    keyboard.press("ArrowDown")
    tab_to("Sessions")
    keyboard.press("Enter")
    page.settled("sessions")
    tab_to(WORK)
    keyboard.press("Enter")
    page.page.wait_for_selector("#session")
    tab_to("Turn 1: ")
    label = focused()
    keyboard.press("Enter")
    page.page.wait_for_selector("dialog[open] summary")
    assert "Where: in region" in page.text("dialog")
    assert focused() == "Close"
    keyboard.press("Escape")
    page.page.wait_for_selector("dialog:not([open])", state="attached")
    assert focused() == label


def test_nothing_leaves_the_origin_and_no_script_but_its_own_runs(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key)
    for view in VIEWS:
        page.go(view)
    assert page.complaints == []
    assert {url.startswith(f"{page.url}/") for url in page.asked} == {True}
    assert not any(fleet.east.admin_key in url for url in page.asked)
    tried = page.page.evaluate(
        """async () => {
            const script = document.createElement("script");
            let failed = "";
            try { script.textContent = "window.hit = 3"; } catch (error) { failed += error.name; }
            try { document.body.innerHTML = "<p>x</p>"; } catch (error) { failed += error.name; }
            await fetch("https://example.com/").catch((error) => { failed += error.name; });
            return [failed, window.hit ?? null];
        }"""
    )
    assert tried == ["TypeErrorTypeErrorTypeError", None]


def test_names_that_clients_choose_are_text(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key)
    page.page.select_option("#tenant", index=1)
    hashed = next(u["warmroute"]["session"] for u in fleet.usages if u["key"] == "named")
    page.page.goto(f"{page.url}/page#/sessions/{hashed}")
    page.page.wait_for_selector(f"a[aria-current=true][href='#/sessions/{hashed}']")
    assert f"Session {HEADS['x-warmroute-session-name']}" in page.text()
    page.open_receipt()
    assert HEADS["x-warmroute-session-name"] in page.text("dialog")
    assert page.page.evaluate("[window.hit ?? null, document.images.length]") == [None, 0]
    assert page.complaints == []


def test_the_key_stays_in_the_tab_until_it_is_forgotten(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key)
    kept = page.page.evaluate("[localStorage.length, document.cookie, document.getElementById('key').value]")
    assert kept == [0, "", ""]
    page.page.reload()
    page.settled("money")
    page.page.click("#forget")
    assert page.page.is_visible("#sign-in")
    assert page.text("#view") == ""
    assert page.page.evaluate("sessionStorage.length") == 0
    assert fleet.east.admin_key not in page.page.content()


def test_a_wrong_key_is_refused_in_words(visit: Opener) -> None:
    page = visit()
    page.page.fill("#key", "wrong")
    page.page.click("#sign-in button")
    page.page.wait_for_selector("#problem:not(:empty)")  # a function that is polled would need unsafe-eval
    assert page.text("#problem") == "the key is neither the admin key nor the API key of a tenant"
    assert page.page.is_visible("#sign-in")


def test_a_tenant_sees_itself_and_no_engines(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.keys[1])
    shown = page.page.eval_on_selector_all("nav a", "links => links.map((link) => link.dataset.view)")
    assert shown == ["money", "sessions", "ladder", "keys"]
    assert page.page.is_disabled("#tenant")
    served_here = sum(usage["tenant"] == 1 and usage["key"] != "theirs" for usage in fleet.usages)
    assert page.tile("Errors") == ["0", f"{served_here} turn"]
    assert page.tile("429s") == ["1", "refused"]
    assert "Where cached tokens went" in page.go("ladder").text("#view")
    page.go("sessions").open_session()
    page.open_receipt()
    assert "Its cost there was" not in page.text("dialog")
    page.page.keyboard.press("Escape")
    page.page.goto(f"{page.url}/page#/engines")
    page.settled("money")
    assert page.complaints == []


def test_money_is_that_of_the_ledger(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key)
    page.page.select_option("#since", "24h")
    page.page.wait_for_selector("text=Hit ratio and money")
    wanted = fleet.sums()
    with fleet.east.admin() as admin:
        found = admin.get("/admin/usage").json()
    assert found["price_nanousd"] == wanted["price_nanousd"]
    paid, saved = page.tile("Paid, USD")
    assert float(paid) == pytest.approx(wanted["price_nanousd"] / 1e9, rel=0.01)
    assert float(saved.removesuffix(" saved")) == pytest.approx(wanted["saved_nanousd"] / 1e9, rel=0.01)
    rows = page.page.eval_on_selector_all("[aria-label='Losses by class'] tbody tr", CELLS)
    assert {name.replace(" ", "_"): int(tokens.replace(",", "")) for name, tokens, _ in rows} == wanted["losses"]


def test_whoever_clicks_fast_sees_the_last_view_and_asks_for_each_once(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key)
    asked = len(page.asked)
    page.page.evaluate(CLICKS)
    page.settled("keys")
    page.page.wait_for_load_state("networkidle")
    assert page.text("#view h2:first-of-type").startswith("Keys")
    assert len(page.asked) - asked < 40
    assert page.complaints == []


def test_live_asks_anew_until_it_is_turned_off(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key).go("engines")
    with page.page.expect_request("**/admin/engines", timeout=seconds(20) * 1000):
        page.page.check("#live")
    page.settled("engines")
    assert "east-a0" in page.text("#view")


def test_live_waits_for_an_answer_that_takes_longer_than_its_period(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key)
    page.page.clock.install()
    page.page.reload()
    page.settled("money")
    held: list[Route] = []
    page.page.route("**/admin/engines", lambda route: held.append(route))  # noqa: PLW0108 - it takes functions alone
    page.page.click("nav a[data-view=engines]")
    page.page.check("#live")
    until(lambda: page.page.evaluate("true") and held, "a request is held")  # the page is busy before
    page.page.clock.run_for(30_000)
    page.page.wait_for_selector("#view[aria-busy=true]")
    assert len(held) == 1
    held.pop().continue_()
    page.settled("engines")
    page.page.evaluate("document.activeElement.blur()")
    page.page.clock.run_for(30_000)
    assert held == [], "it backs off"
    page.page.clock.run_for(31_000)
    until(lambda: page.page.evaluate("true") and held, "another request is held")
    assert len(held) == 1
    page.page.click("nav a[data-view=decisions]")
    page.settled("decisions")
    assert page.complaints == []


def test_the_summary_of_a_session_is_that_of_its_sums(visit: Opener, fleet: Regions) -> None:
    page = visit()

    def longer(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        body["groups"] = [{**group, "turns": 5_000, "price_nanousd": 7_000_000_000} for group in body["groups"]]
        route.fulfill(response=answer, json=body)

    page.page.route("**/admin/view/usage?*by=session*", longer)
    page.sign_in(fleet.east.keys[1]).go("sessions").open_session()
    assert page.text("p.summary").startswith("5,000 turns, 7.00 USD, ")
    assert "newest" not in page.text("p.summary"), "all turns are on the timeline"


def test_the_last_hour_is_what_clients_saw(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key)
    here = [usage for usage in fleet.usages if usage["warmroute"]["region"] == "east"]
    assert page.tile("Errors") == ["0", f"{len(here)} turns"]
    assert page.tile("429s") == ["1", "refused"]
    for tile in ("TTFT p50", "TTFT p90"):
        time, of = page.tile(tile)
        assert re.fullmatch(r"[0-9.]+ m?s", time)
        assert of == "of streams"
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in here)
    share = 100 * cached / sum(usage["prompt_tokens"] for usage in here)
    assert page.tile("Hit ratio") == [f"{share:.1f} %", f"{cached:,} tokens cached"]
    paid = sum(usage["warmroute"]["price_nanousd"] for usage in here) / 1e9
    assert float(page.tile("Paid, USD")[0]) == pytest.approx(paid, rel=0.01)
    rows = page.page.eval_on_selector_all("[aria-label='Tenants'] tbody tr", CELLS)
    assert [row[:4] for row in rows][1] == ["second", str(len(here) - int(rows[0][1])), "0", "1"]
    page.page.click("text=The same as a table")
    by_minute = page.page.eval_on_selector_all("[aria-label='Over time'] tbody tr", CELLS)
    assert sum(int(row[1]) for row in by_minute) == len(here)


def test_an_operator_sees_sessions_of_all_tenants_and_opens_one_in_view(visit: Opener, fleet: Regions) -> None:
    page = visit(390).sign_in(fleet.east.admin_key).go("sessions")
    rows = {row[0]: row for row in page.page.eval_on_selector_all("[aria-label='Sessions'] tbody tr", CELLS)}
    ours = next(row for name, row in rows.items() if name.startswith(WORK))
    assert ours[1:3] == ["first", "python-httpx"]
    assert ours[-1].startswith("prefix changed ")
    assert {row[1] for row in rows.values()} == {"first", "second"}
    page.page.locator("a.session").last.click()
    page.page.wait_for_selector("#session")
    top = page.page.evaluate("document.querySelector('#session').getBoundingClientRect().top")
    assert 0 <= top < 100
    page.page.evaluate("scrollTo(0, 500)")
    with page.page.expect_response("**/admin/view/receipts?*session_hash=*"):
        page.page.evaluate("document.getElementById('refresh').click()")
    page.settled("sessions")
    assert page.page.evaluate("scrollY") == 500, "a refresh leaves the page where it is"
    page.open_receipt()
    assert page.complaints == []


def test_each_bar_of_the_ladder_ends_where_the_one_before_it_ended(visit: Opener, fleet: Regions) -> None:
    page = visit().sign_in(fleet.east.admin_key).go("ladder")
    ends = page.page.eval_on_selector_all(
        ".waterfall .bar",
        "bars => bars.map((bar) => [...bar.children].map((part) => part.getBoundingClientRect().right))",
    )
    lost = [at for at in range(1, len(ends)) if ends[at][0] < ends[at - 1][0] - 2]
    assert lost
    assert [ends[at][1] for at in lost] == pytest.approx([ends[at - 1][0] for at in lost], abs=1)


def test_limits_of_what_runs_at_once_are_shown_and_tenants_that_are_not_listed_are_counted(
    visit: Opener, fleet: Regions
) -> None:
    page = visit()
    quota = {"running": 2, "tokens_running": 30, "requests_remaining": None, "tokens_remaining": None}
    limited = {"first": {"requests_at_once": 4, "tokens_at_once": 100, **quota}}

    def changed(route: Route) -> None:
        answer = route.fetch()
        body = {**answer.json(), "tenants": limited} if "budgets" in route.request.url else answer.json()
        route.fulfill(response=answer, json={**body, "tenants_left_out": 7} if "role" in body else body)

    page.page.route(re.compile("/admin/view(/budgets.*)?$"), changed)
    page.sign_in(fleet.east.admin_key).go("keys")
    shown = page.text("#view")
    assert [text in shown for text in ("2 / 4", "30 / 100", "There are no limits here.")] == [True, True, False]
    assert page.page.locator("#tenant option[disabled]").inner_text() == "7 more are not listed"
    assert page.complaints == []


def test_engines_stand_in_columns_with_their_hit_ratio(visit: Opener, fleet: Regions) -> None:
    page = visit()

    def twice(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        if "workers" in body:
            (worker,) = body["workers"].values()
            body["workers"] = {"east-a0": worker, "an-engine-with-a-long-name": worker | {"running": 100}}
        route.fulfill(response=answer, json=body)

    page.page.route("**/admin/workers", twice)
    page.sign_in(fleet.east.admin_key).go("engines")
    first, second = page.page.eval_on_selector_all(
        "[aria-label='Engines'] tbody tr",
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.getBoundingClientRect().left))",
    )
    assert first == second
    rows = page.page.eval_on_selector_all("[aria-label='Engines'] tbody tr", CELLS)
    assert rows[0][2].endswith(" %")
    assert not rows[1][2].endswith(" %")
    assert page.page.locator(".trend rect").count() > 0
