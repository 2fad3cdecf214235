"""The page's routes: files for everyone, an operator's view of all tenants, a tenant's of itself alone."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, ProxyProcess, chat
from warmroute_proxy.server.control.page_files import page_files

from .test_usage import Regions, used_regions

pytestmark = pytest.mark.full

NAMESPACE = b"http://www.w3.org/2000/svg"
PATHS = ("", "/minutes", "/usage", "/usage?by=hour", "/ladder", "/receipts", "/keys", "/budgets")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    with used_regions(tmp_path_factory.mktemp("view")) as made:
        yield made


def view(proxy: ProxyProcess, path: str, key: str, method: str = "GET") -> httpx.Response:
    address = f"{proxy.line['admin_url']}/admin/view{path}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.request(method, address, headers=headers, timeout=seconds(20), verify=PLAIN)


def of_operator(fleet: Regions, path: str) -> Any:
    return view(fleet.east, path, fleet.east.admin_key).raise_for_status().json()


def of_tenant(fleet: Regions, path: str) -> Any:
    return view(fleet.east, path, fleet.east.keys[1]).raise_for_status().json()


def names(fleet: Regions) -> tuple[str, str]:
    """The tenant that has the admin key in these tests, and the other one."""
    theirs = of_tenant(fleet, "")["tenant"]
    (own,) = set(of_operator(fleet, "")["tenants"]) - {theirs}
    return own, theirs


def test_the_files_need_no_key_and_come_with_headers_that_keep_the_page_to_itself(fleet: Regions) -> None:
    url = fleet.east.line["admin_url"]
    page = httpx.get(f"{url}/page", verify=PLAIN)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert httpx.head(f"{url}/page", verify=PLAIN).status_code == 200
    assert httpx.get(f"{url}/", verify=PLAIN, follow_redirects=True).content == page.content
    assert httpx.post(f"{url}/page", content=b"x", verify=PLAIN).status_code == 405
    for path in ("/page/none.js", "/page/../admin/usage", "/page/%2e%2e/page_files.py"):
        assert httpx.get(f"{url}{path}", verify=PLAIN).status_code in {401, 404}


@pytest.mark.parametrize("path", PATHS)
def test_nobody_sees_anything_without_a_key(fleet: Regions, path: str) -> None:
    assert view(fleet.east, path, "").status_code == 401
    assert view(fleet.east, path, "wr-00000000000000000000000000000000").status_code == 401


@pytest.mark.parametrize("path", ["/usage", "/workers", "/engines", "/decisions", "/admission", "/keys", "/viewer"])
def test_a_tenants_key_opens_nothing_else_of_the_admin_listener(fleet: Regions, path: str) -> None:
    headers = {"authorization": f"Bearer {fleet.east.keys[1]}"}
    url = f"{fleet.east.line['admin_url']}/admin"
    assert httpx.get(f"{url}{path}", headers=headers, verify=PLAIN).status_code == 401
    assert httpx.get(f"{url}/view/..{path}", headers=headers, verify=PLAIN).status_code in {401, 404}
    assert httpx.post(f"{url}/view", headers=headers, verify=PLAIN).status_code == 401
    assert httpx.get(f"{fleet.east.line['admin_url']}/metrics", headers=headers, verify=PLAIN).status_code == 401


def test_each_sees_whose_view_it_is(fleet: Regions) -> None:
    own, theirs = names(fleet)
    assert of_operator(fleet, "")["role"] == "operator"
    assert of_tenant(fleet, "") == {**of_tenant(fleet, ""), "role": "tenant", "tenant": theirs, "tenants": [theirs]}
    assert own != theirs


def test_a_tenant_sees_its_own_money_turns_and_keys_alone(fleet: Regions) -> None:
    own, theirs = names(fleet)
    usage = of_tenant(fleet, "/usage?by=hour")
    wanted = fleet.sums(tenant=1)
    assert {name: usage[name] for name in wanted} == wanted
    assert usage["regions"] == {"east": "counted", "west": "counted"}
    rows = of_tenant(fleet, "/receipts?limit=200")["data"]
    assert {row["id"] for row in rows} == {u["warmroute"]["id"] for u in fleet.usages if u["tenant"] == 1}
    assert {key["tenant"] for key in of_tenant(fleet, "/keys")["data"]} == {theirs}
    assert set(of_tenant(fleet, "/budgets")["tenants"]) <= {theirs}
    for path in ("/usage", "/receipts", "/keys", "/budgets", "/receipts/wr-000000000000000000000000"):
        refused = view(fleet.east, f"{path}?tenant={own}", fleet.east.keys[1])
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")
    assert view(fleet.east, "/usage?by=tenant", fleet.east.keys[1]).status_code == 403


def test_the_last_hour_has_each_turn_that_was_served_here(fleet: Regions) -> None:
    own, _ = names(fleet)
    here = [u for u in fleet.usages if u["warmroute"]["region"] == "east"]
    found = of_operator(fleet, "/minutes")
    assert found["turns"] == sum(minute["turns"] for minute in found["minutes"]) == len(here)
    assert len(found["minutes"]) == 60
    assert found["price_nanousd"] == sum(u["warmroute"]["price_nanousd"] for u in here)
    assert sum(found["losses"].values()) == found["prompt_tokens"] - found["cached_tokens"]
    assert {row["key"]: row["turns"] for row in found["tenants"]} == {own: len(here)}
    assert sum(minute["cached_tokens"] for minute in found["workers"]["east-a0"]) == found["cached_tokens"]


def test_a_tenant_gets_its_own_last_hour_alone(fleet: Regions) -> None:
    own, _ = names(fleet)
    found = of_tenant(fleet, "/minutes")
    assert (found["turns"], found["complete"]) == (0, True)
    assert not {"tenants", "workers"} & found.keys()
    assert view(fleet.east, f"/minutes?tenant={own}", fleet.east.keys[1]).status_code == 403


def test_a_session_has_its_tenant_program_and_start(fleet: Regions) -> None:
    own, theirs = names(fleet)
    found = {group["key"]: group for group in of_operator(fleet, "/usage?by=session")["groups"]}
    for tenant, name in enumerate((own, theirs)):
        for usage in (u for u in fleet.usages if u["tenant"] == tenant):
            group = found[usage["warmroute"]["session"]]
            assert (group["tenant"], group["harness"], group["name"]) == (name, "python-httpx", "")
            assert group["began_at"] <= time.time()


def test_a_receipt_of_another_tenant_is_not_there(fleet: Regions) -> None:
    mine = next(u["warmroute"]["id"] for u in fleet.usages if u["tenant"] == 0)
    assert view(fleet.east, f"/receipts/{mine}", fleet.east.keys[1]).status_code == 404


def test_an_operator_sees_all_tenants_or_one(fleet: Regions) -> None:
    own, theirs = names(fleet)
    everything = of_operator(fleet, "/usage?by=tenant")
    assert {group["key"] for group in everything["groups"]} == {own, theirs}
    for name, tenant in ((own, 0), (theirs, 1)):
        found = of_operator(fleet, f"/usage?by=session&tenant={name}")
        wanted = fleet.sums(tenant=tenant)
        assert {each: found[each] for each in wanted} == wanted
    assert {key["tenant"] for key in of_operator(fleet, "/keys")["data"]} == {own, theirs}
    here = [u for u in fleet.usages if u["warmroute"]["region"] == "east"]
    assert {row["id"] for row in of_operator(fleet, "/receipts")["data"]} == {u["warmroute"]["id"] for u in here}


def test_the_turns_of_a_session_are_found_by_its_hash_in_all_regions(fleet: Regions) -> None:
    own, _ = names(fleet)
    far = [u["warmroute"] for u in fleet.usages if u["key"] == "far"]
    hashed = far[0]["session"]
    rows = of_operator(fleet, f"/receipts?tenant={own}&session_hash={hashed}")["data"]
    assert [row["id"] for row in rows] == [receipt["id"] for receipt in far][::-1]
    assert of_tenant(fleet, f"/receipts?session_hash={hashed}")["data"] == []
    for path in (f"/receipts?session_hash={hashed}", f"/receipts?tenant={own}&session_hash=x", "/receipts/wr-1"):
        assert view(fleet.east, path, fleet.east.admin_key).status_code == 400


def test_a_receipt_comes_with_its_words_and_for_operators_with_its_placement(fleet: Regions) -> None:
    own, _ = names(fleet)
    receipt = next(u["warmroute"] for u in fleet.usages if u["tenant"] == 0 and u["warmroute"]["region"] == "east")
    found = of_operator(fleet, f"/receipts/{receipt['id']}?tenant={own}")
    assert found["usage"]["warmroute"] == receipt
    text = "\n".join(found["words"])
    assert f"Where: in region east, {receipt['workers'][0]['id']} computed prompt and answer." in text
    assert "Its cost there was" in text
    with fleet.east.client(1) as client:
        answer = client.post("/v1/chat/completions", json=chat("more")).raise_for_status().json()
    fleet.usages.append(answer["usage"] | {"tenant": 1, "key": None, "model": "kimi-k2.5"})
    words = "\n".join(of_tenant(fleet, f"/receipts/{answer['usage']['warmroute']['id']}")["words"])
    assert "Why there: " in words
    assert "Its cost there was" not in words
    unknown = view(fleet.east, f"/receipts/wr-{'0' * 24}?tenant={own}", fleet.east.admin_key)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "receipt_not_found")


def test_the_hash_and_the_key_of_a_session_are_not_asked_for_together(fleet: Regions) -> None:
    with fleet.east.client(0) as client:
        headers = {"x-session-affinity": "mine"}
        found = client.get("/v1/usage/receipts?session_hash=0123456789abcdef", headers=headers)
    assert (found.status_code, found.json()["error"]["param"]) == (400, "session_hash")


def test_the_page_is_small_and_makes_no_markup_of_text(fleet: Regions) -> None:
    sources = {path: file.content for path, file in page_files().items()}
    assert sum(map(len, sources.values())) < 60_000
    assert all(len(source.splitlines()) < 400 for source in sources.values())
    for word in b"innerHTML outerHTML insertAdjacentHTML document.write eval( http:// https://".split():
        assert not [path for path, source in sources.items() if word in source.replace(NAMESPACE, b"")], word
    for path, source in sources.items():
        served = httpx.get(f"{fleet.east.line['admin_url']}{path}", verify=PLAIN)
        assert (served.status_code, served.content) == (200, source)
        assert served.headers["x-content-type-options"] == "nosniff"


def test_the_ladder_ends_at_what_the_ledger_has_billed(fleet: Regions) -> None:
    for turn in (1, 2, 3):
        fleet.turn(fleet.east, "climbing", turn, headers={"x-warmroute-harness": "climber"})
    found = of_operator(fleet, "/ladder?by=harness")
    rows = fleet.east.rows(found["turns"])
    assert found["price_nanousd"] == sum(row["price_nanousd"] for row in rows)
    steps = {step["step"]: step for step in found["steps"]}
    assert next(iter(steps)) == "prompt"
    assert list(steps)[-1] == "billed"
    assert steps["billed"]["price_nanousd"] == found["price_nanousd"]
    assert steps["delivered"]["tokens"] == sum(row["cached_tokens"] for row in rows)
    assert found["complete"] is True
    assert "climber" in {group["key"] for group in found["groups"]}


def test_a_tenant_sees_the_ladder_of_its_own_turns_alone(fleet: Regions) -> None:
    own, theirs = names(fleet)
    assert of_tenant(fleet, "/ladder")["turns"] == of_operator(fleet, f"/ladder?tenant={theirs}")["turns"]
    assert view(fleet.east, f"/ladder?tenant={own}", fleet.east.keys[1]).status_code == 403
    refused = view(fleet.east, "/ladder?by=key", fleet.east.admin_key)
    assert refused.status_code == 400
    assert "session, tenant, model, harness, day, kind" in refused.json()["error"]["message"]
