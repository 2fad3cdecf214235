"""Another config while the proxy runs: engines, prices, tenants and limits change, and no request is lost."""

import os
import re
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.subjects.processes import answer, chat, until
from warmroute_cli.main import main
from warmroute_proxy.server.control.control_plane import described_routes

from .reload_scene import Scene, price, receipt

LONG = {"max_tokens": 150, "ignore_eos": True}  # some 1.5 s

BUDGET = '[[budget]]\nname = "of-second"\ntenants = ["second"]\nusd_per_month = "100"\n'


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("reload"), more=BUDGET) as found:
        yield found


@pytest.fixture(autouse=True)
def as_at_the_start(scene: Scene) -> Iterator[None]:
    yield
    scene.apply(scene.first)
    until(lambda: scene.states() == {"e0": "up", "e1": "up"}, "the engines of the start are up")


def test_engines_join_and_leave_under_traffic_and_no_request_is_lost(scene: Scene) -> None:
    over, has_left = threading.Event(), threading.Event()
    answers: list[httpx.Response] = []
    later: list[httpx.Response] = []  # to what was asked after the engine had left

    def keep_asking(number: int) -> None:
        with scene.proxy.client() as client:
            while not over.is_set():
                told = later if has_left.is_set() else answers
                body = chat(f"traffic {number} {len(answers)} {len(later)}", max_tokens=20, ignore_eos=True)
                told.append(client.post("/v1/chat/completions", json=body))

    threads = [threading.Thread(target=keep_asking, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    long = scene.proxy.send(chat("long", **LONG))
    try:
        until(lambda: scene.engines[0].running() + scene.engines[1].running() > 0, "requests run")
        done = scene.apply(scene.without(0) + scene.tables[2])
        assert {(each["name"], each["change"]) for each in done["changes"]} >= {("e0", "removed"), ("e2", "added")}
        until(lambda: scene.states() == {"e1": "up", "e2": "up"}, "e2 has joined and e0 has left")
        has_left.set()
        until(lambda: "e2" in workers(later), "requests go to the engine that has joined")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    with long:
        assert answer(long)[0] == 200
    assert {each.status_code for each in answers + later} == {200}
    assert workers(later) <= {"e1", "e2"}
    gauges = [line for line in scene.metrics().splitlines() if line.startswith("warmroute_worker_running")]
    assert not [line for line in gauges if 'worker="e0"' in line]


def workers(answers: list[httpx.Response]) -> set[str]:
    return {receipt(each)["workers"][0]["id"] for each in answers}


def test_a_stream_under_way_keeps_its_price(scene: Scene) -> None:
    body = chat("price", stream=True, stream_options={"include_usage": True}, **LONG)
    with scene.proxy.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as under_way:
        assert under_way.status_code == 200
        chunks = under_way.iter_text()
        begun = next(chunks)  # its first token has come
        scene.apply(scene.first.replace('output = "3.00"', 'output = "6.00"'))
        new = price(scene.ask("new price"))
        rest = "".join(chunks)
    assert '"output":"3"' in rest
    assert '"output":"6"' not in begun + rest
    assert new == "6"
    until(lambda: any(row["id"] in rest for row in scene.proxy.rows()), "its row")
    (row,) = [row for row in scene.proxy.rows() if row["id"] in rest]
    assert row["outcome"] == "completed"
    assert f'"price_nanousd":{row["price_nanousd"]},' in rest


def test_a_file_with_a_problem_changes_nothing(scene: Scene) -> None:
    scene.write(scene.first.replace('output = "3.00"', 'output = "-3"') + scene.tables[2])
    refused = scene.reload()
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_config"
    assert "model[0].output" in refused.json()["error"]["message"]
    assert "1 problem" in scene.ready()["degraded"][0]
    assert 'warmroute_trouble{trouble="config_refused"} 1\n' in scene.metrics()
    assert scene.states().keys() == {"e0", "e1"}
    scene.apply(scene.first)
    assert "degraded" not in scene.ready()
    assert 'warmroute_trouble{trouble="config_refused"} 0\n' in scene.metrics()


def test_a_dry_run_names_the_changes_and_applies_none(scene: Scene) -> None:
    text = (
        scene.without(1)
        .replace('output = "3.00"', 'output = "6.00"')
        .replace('policy = "cost"', 'policy = "round_robin"')
    )
    scene.write(text + scene.tables[2])
    found = scene.reload(dry_run=True).raise_for_status().json()
    assert [(each["table"], each["name"], each["change"], each["keys"]) for each in found["changes"]] == [
        ("proxy", "", "changed", ["policy"]),
        ("engine", "e2", "added", []),
        ("engine", "e1", "removed", []),
        ("model", "kimi-k2.5", "changed", ["output"]),
    ]
    assert found["waits_for_restart"] == ["proxy.policy"]
    assert scene.states().keys() == {"e0", "e1"}
    assert price(scene.ask()) == "3"


def test_a_tenant_joins_and_leaves_with_its_key(scene: Scene) -> None:
    assert scene.ask(tenant=1).status_code == 200
    of_first = scene.first.replace(BUDGET, "")
    scene.apply(re.sub(r'\[\[tenant\]\]\nname = "second".*', "", of_first, flags=re.DOTALL))
    assert scene.ask(tenant=1).status_code == 401
    assert scene.ask(tenant=0).status_code == 200
    scene.apply(scene.first)
    assert scene.ask(tenant=1).status_code == 200


def test_another_limit_counts_what_was_used_before(scene: Scene) -> None:
    def asked_until_refused() -> int:
        return next(count for count in range(20) if scene.ask(tenant=1).status_code == 429)

    scene.apply(scene.first.replace("requests_per_minute = 600", "requests_per_minute = 5"))
    assert asked_until_refused() <= 6
    scene.apply(scene.first.replace("requests_per_minute = 600", "requests_per_minute = 10"))
    assert 1 <= asked_until_refused() < 10


def test_another_budget_counts_what_was_spent_before(scene: Scene) -> None:
    assert scene.ask(tenant=1).status_code == 200
    changed = scene.apply(scene.first.replace('usd_per_month = "100"', 'usd_per_month = "0.000001"'))
    assert [(each["table"], each["keys"]) for each in changed["changes"]] == [("budget", ["usd_per_month"])]
    refused = scene.ask(tenant=1)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert "of 0.000001 USD are left" in refused.json()["error"]["message"]
    scene.apply(scene.first)
    assert scene.ask(tenant=1).status_code == 200


def test_a_tenants_default_priority_counts_for_turns_that_state_none(scene: Scene) -> None:
    def priority(tenant: int, **headers: str) -> str:
        with scene.proxy.client(tenant) as client, scene.proxy.admin() as admin:
            client.post("/v1/chat/completions", json=chat("now or later", max_tokens=2), headers=headers)
            newest = admin.get("/admin/decisions", params={"limit": 1}).json()["decisions"][0]
        return str(newest.get("priority", ""))

    assert priority(1) == ""
    changed = scene.apply(scene.first.replace('name = "second"', 'name = "second"\ndefault_priority = "background"'))
    assert [(each["table"], each["name"], each["keys"]) for each in changed["changes"]] == [
        ("tenant", "second", ["default_priority"])
    ]
    assert changed["waits_for_restart"] == []
    assert priority(1) == "background"
    assert priority(1, **{"x-warmroute-priority": "interactive"}) == "interactive"
    assert priority(0) == ""
    scene.apply(scene.first)
    assert priority(1) == ""


def test_limits_of_the_proxy_count_for_new_connections(scene: Scene) -> None:
    scene.apply(scene.first.replace("[limits]", "[limits]\nbody_bytes = 2048"))
    assert scene.ask("long " * 1000).status_code == 413


def test_sighup_applies_the_file(scene: Scene) -> None:
    scene.write(scene.first + scene.tables[2])
    os.kill(scene.proxy.child.pid, signal.SIGHUP)  # type: ignore[union-attr]
    until(lambda: scene.states().get("e2") == "up", "e2 has joined")


def test_a_watched_file_is_applied_when_it_changes(scene: Scene) -> None:
    scene.apply(scene.first.replace("[proxy]", "[proxy]\nwatch_config = true"))
    scene.write(scene.first.replace("[proxy]", "[proxy]\nwatch_config = true") + scene.tables[2])
    until(lambda: scene.states().get("e2") == "up", "e2 has joined")


def test_the_command_shows_and_applies_the_changes(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMROUTE_ADMIN_KEY", scene.proxy.admin_key)
    scene.write(scene.first + scene.tables[2])
    command = ["reload", "--config", str(scene.proxy.config), "--admin-url", str(scene.proxy.line["admin_url"])]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["+ engine e2", "nothing is applied: this was a dry run"]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("+ engine e2\nconfig ")
    assert "e2" in scene.states()


def test_the_answers_are_as_described(scene: Scene) -> None:
    document = described_routes()
    schemas = document["components"]["schemas"]
    responses = document["paths"]["/admin/reload"]["post"]["responses"]
    described = schemas["Reloaded"]
    scene.write(scene.first + scene.tables[2])
    dry, applied = scene.reload(dry_run=True).json(), scene.reload().json()
    assert set(described["required"]) == set(dry)
    assert set(described["properties"]) == set(applied)
    assert set(schemas["AppliedChange"]["required"]) == set(applied["changes"][0])
    with scene.proxy.admin() as admin:
        misspelt = admin.post("/admin/reload?dryrun=true")
    assert (misspelt.status_code, "400" in responses) == (400, True)
