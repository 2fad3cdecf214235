"""What did my session cost: sums and receipts over all regions, of a tenant's own turns alone."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat
from tests.subjects.small_fleet import two_regions
from warmroute_cli.main import main
from warmroute_proxy.server.base.secrets import Secrets, load_secret
from warmroute_proxy.server.regions.forward_claim import SHA256_OF_NOTHING, Forwards

pytestmark = pytest.mark.full


class Regions:
    """East, which knows west's address, and the usage of each turn that was sent."""

    def __init__(self, east: ProxyProcess, west: ProxyProcess) -> None:
        self.east, self.west = east, west
        self.usages: list[dict[str, Any]] = []

    def turn(
        self,
        proxy: ProxyProcess,
        session: str,
        turns: int,
        tenant: int = 0,
        model: str = "kimi-k2.5",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        with proxy.client(tenant) as client:
            head = {"x-session-affinity": session, **(headers or {})}
            body = chat(session, turns=turns) | {"model": model}
            answer = client.post("/v1/chat/completions", json=body, headers=head).json()
        self.usages.append(answer["usage"] | {"tenant": tenant, "key": session, "model": model})

    def sums(self, **wanted: Any) -> dict[str, Any]:
        some = [u for u in self.usages if all(u[name] == value for name, value in wanted.items())]
        losses: dict[str, int] = {}
        for usage in some:
            for name, tokens in usage["warmroute"]["loss"].items():
                losses[name] = losses.get(name, 0) + tokens
        return {
            "turns": len(some),
            "prompt_tokens": sum(u["prompt_tokens"] for u in some),
            "cached_tokens": sum(u["prompt_tokens_details"]["cached_tokens"] for u in some),
            "price_nanousd": sum(u["warmroute"]["price_nanousd"] for u in some),
            "saved_nanousd": sum(u["warmroute"]["saved_nanousd"] for u in some),
            "losses": losses,
        }


@contextlib.contextmanager
def used_regions(
    folder: Path, made_by: type[Regions] = Regions, tables: str = "", extra: str = ""
) -> Iterator[Regions]:
    """Two regions whose tenants have sent some turns. `tables`: more of each proxy's config; `extra`: of [proxy]."""
    with two_regions(folder, "--model", "other", limits=tables, extra=extra) as (east, west, _):
        made = made_by(east, west)
        for turns in (1, 2):
            made.turn(east, "mine", turns)
            made.turn(west, "far", turns)
        made.turn(west, "far", 1, model="other")
        made.turn(west, "theirs", 1, tenant=1)
        yield made


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    with used_regions(tmp_path_factory.mktemp("usage")) as made:
        yield made


def get(proxy: ProxyProcess, path: str, tenant: int = 0, session: str = "") -> httpx.Response:
    with proxy.client(tenant) as client:
        return client.get(path, headers={"x-session-affinity": session} if session else {})


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return {name: found[name] for name in wanted} == wanted


def test_a_session_is_added_up_where_it_was_not_served(regions: Regions) -> None:
    found = get(regions.east, "/v1/usage?by=model", session="far").json()
    assert found["regions"] == {"east": "counted", "west": "counted"}
    assert found["complete"]
    assert same(found, regions.sums(key="far"))
    for group in found["groups"]:
        assert same(group, regions.sums(key="far", model=group["key"]))
    assert {group["key"] for group in found["groups"]} == {"kimi-k2.5", "other"}


@pytest.mark.parametrize("by", ["session", "model", "day", "hour"])
def test_groups_add_up_to_all_turns_of_the_tenant(regions: Regions, by: str) -> None:
    found = get(regions.east, f"/v1/usage?by={by}").json()
    assert same(found, regions.sums(tenant=0))
    assert sum(group["turns"] for group in found["groups"]) == found["turns"]
    assert sum(group["price_nanousd"] for group in found["groups"]) == found["price_nanousd"]


def test_a_list_says_who_sent_each_turn_and_what_was_lost(regions: Regions) -> None:
    heads = [
        {"x-warmroute-agent": "build", "x-warmroute-kind": "main"},
        {"x-warmroute-agent": "explore", "x-parent-session-id": "root"},
        {"x-opencode-session-id": "ses_own", "x-opencode-parent-session-id": "root"},
        {},
    ]
    for head in heads:
        regions.turn(regions.east if head else regions.west, "root", 1, headers=head)
    receipts = [usage["warmroute"] for usage in regions.usages if usage["key"] == "root"]
    rows = get(regions.east, "/v1/usage/receipts", session="root").json()["data"][::-1]
    assert [row["loss"] for row in rows] == [receipt["loss"] for receipt in receipts]
    told = ("agent", "parent", "kind")
    assert [[row[name] for name in told] for row in rows] == [
        [receipt.get(name) for name in told] for receipt in receipts
    ]
    root, agent = receipts[0]["session"], receipts[2]["agent"]
    assert [[row[name] for name in told] for row in rows] == [
        ["build", None, "main"],
        ["explore", root, "sub"],
        [agent, root, "sub"],
        [None, None, None],
    ]
    assert len(agent) == 16
    assert agent not in {"ses_own", root}


def test_without_a_question_it_is_the_total_of_all_regions(regions: Regions) -> None:
    found = get(regions.east, "/v1/usage").json()
    wanted = regions.sums(tenant=0)
    del wanted["losses"]
    assert same(found, wanted)
    assert found["losses"] is None
    assert found["hit_ratio"] == round(found["cached_tokens"] / found["prompt_tokens"], 6)


def test_a_session_key_may_have_any_letters_in_any_region(regions: Regions) -> None:
    key = "schlüssel 鍵".encode()
    with regions.west.client() as client:
        usage = client.post("/v1/chat/completions", json=chat("letters"), headers={b"x-session-affinity": key}).json()[
            "usage"
        ]
    with regions.east.client() as client:
        found = client.get("/v1/usage?by=session", headers={b"x-session-affinity": key}).json()
    regions.usages.append(usage | {"tenant": 0, "key": "letters", "model": "kimi-k2.5"})
    assert [group["key"] for group in found["groups"]] == [usage["warmroute"]["session"]]
    assert same(found, regions.sums(key="letters"))


def test_a_time_limits_what_is_counted(regions: Regions) -> None:
    assert get(regions.east, "/v1/usage?since=1h").json()["turns"] == regions.sums(tenant=0)["turns"]
    assert get(regions.east, "/v1/usage?since=2099-01-01").json()["turns"] == 0


def test_a_tenant_gets_nothing_of_another_one(regions: Regions) -> None:
    assert get(regions.east, "/v1/usage?by=session", tenant=1).json()["turns"] == 1
    assert get(regions.east, "/v1/usage?since=1h", tenant=1, session="far").json()["turns"] == 0
    assert len(get(regions.east, "/v1/usage/receipts", tenant=1).json()["data"]) == 1
    refused = get(regions.east, "/v1/usage?by=tenant")
    assert refused.status_code == 403
    assert "admin key" in refused.json()["error"]["message"]
    assert get(regions.east, "/v1/usage/operator?by=tenant").status_code == 404


def test_a_token_between_proxies_is_for_one_question(regions: Regions) -> None:
    secrets = Secrets(load_secret(regions.east.folder.parent / "secret", {}))
    signer = Forwards(secrets, "west", time.time, lambda count: os.urandom(count).hex())
    asked = "/v1/usage?by=model"
    for path, status in ((asked, 200), ("/v1/usage?by=session", 401), ("/v1/usage/operator?by=tenant", 401)):
        token = signer.sign("first", "first", asked, "east", SHA256_OF_NOTHING, 30.0)
        answer = httpx.get(f"{regions.east.url}{path}", headers={"x-warmroute-forward": token}, verify=PLAIN)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("session=far", "the session's key goes in the header x-session-affinity"),
        ("bye=model", "there is no parameter 'bye' here, but: by, since"),
        ("by=colour", "by: 'colour' is not one of session, model, tenant, day"),
        ("since=yesterday", "since: 'yesterday' is not a time ago like 1h"),
        ("since=1h&since=2h", "since is given twice"),
        ("tenant=second", "there is no parameter 'tenant' here"),
    ],
)
def test_a_wrong_question_is_a_400_that_says_what_can_be_asked(regions: Regions, query: str, words: str) -> None:
    refused = get(regions.east, f"/v1/usage?{query}")
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]


def test_receipts_are_listed_newest_first_from_all_regions(regions: Regions) -> None:
    found = get(regions.east, "/v1/usage/receipts?limit=8").json()
    mine = [usage["warmroute"]["id"] for usage in regions.usages if usage["tenant"] == 0]
    assert [row["id"] for row in found["data"]] == mine[::-1][:8]
    assert {row["region"] for row in found["data"]} == {"east", "west"}
    far = get(regions.east, "/v1/usage/receipts", session="far").json()["data"]
    assert [row["id"] for row in far] == [u["warmroute"]["id"] for u in regions.usages if u["key"] == "far"][::-1]
    assert get(regions.east, "/v1/usage/receipts?limit=0").status_code == 400


def test_operators_see_all_tenants_of_all_regions(regions: Regions) -> None:
    with regions.east.admin() as admin:
        found = admin.get("/admin/usage?by=tenant").json()
        one = admin.get("/admin/usage?by=session&tenant=second").json()
        of_session = admin.get("/admin/usage?tenant=first", headers={"x-session-affinity": "far"}).json()
        nobody = admin.get("/admin/usage?tenant=nobody")
        whose = admin.get("/admin/usage", headers={"x-session-affinity": "far"})
    for group in found["groups"]:
        assert same(group, regions.sums(tenant=["first", "second"].index(group["key"])))
    assert len(found["groups"]) == 2
    assert one["turns"] == 1
    assert same(of_session, regions.sums(key="far"))
    assert (nobody.status_code, whose.status_code) == (400, 400)


def test_an_operator_without_a_fleet_here_asks_about_a_session_by_any_of_its_names(
    regions: Regions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    east = regions.east
    monkeypatch.setenv("WARMROUTE_ADMIN_KEY", east.admin_key)
    session = next(usage["warmroute"]["session"] for usage in regions.usages if usage["key"] == "mine")
    ask = ["usage", "--config", str(east.config), "--admin-url", str(east.line["admin_url"]), "--tenant", "first"]
    for name in (session, session[:8], "mine"):
        assert main([*ask, "--session", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["turns"], found["price_nanousd"]) == (2, regions.sums(key="mine")["price_nanousd"])
    assert main([*ask, "--by", "session"]) == 0
    assert f"({session[:6]})" in capsys.readouterr().out


def test_a_region_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with (
        EngineProcess(tmp_path, "east-a0", "aggregated") as engine,
        ProxyProcess(tmp_path / "p", [engine.toml("east")], peer=("west", "http://127.0.0.1:9")) as proxy,
    ):
        found = get(proxy, "/v1/usage?by=model").json()
    assert found["regions"] == {"east": "counted", "west": "no answer"}
    assert not found["complete"]
