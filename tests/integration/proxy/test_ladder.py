"""`warmroute ladder` beside a running proxy: it ends at what `/v1/usage` says, in 80 columns."""

import json
from typing import Any

import pytest

from tests.subjects.processes import ProxyProcess, chat
from warmroute_cli.main import main

Capture = pytest.CaptureFixture[str]
HARNESSES = ("opencode/1.18.34 bun", "claude-cli/2.1.273 (external, cli)")


@pytest.fixture(scope="module")
def worked(proxy: ProxyProcess) -> ProxyProcess:
    """A proxy that has served two sessions of four turns, each by another harness, and one of another tenant."""
    for tenant, harness in ((0, HARNESSES[0]), (0, HARNESSES[1]), (1, HARNESSES[0])):
        with proxy.client(tenant) as client:
            for turn in range(1, 5):
                heads = {"x-session-affinity": f"ladder-{tenant}-{harness[:4]}", "user-agent": harness}
                body = chat("what is next?", turns=turn, max_tokens=4)
                client.post("/v1/chat/completions", json=body, headers=heads).raise_for_status()
    return proxy


def ladder(capture: Capture, proxy: ProxyProcess, *words: str) -> dict[str, Any]:
    assert main(["ladder", "--config", str(proxy.config), *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capture.readouterr().out)
    return found


def prices(proxy: ProxyProcess) -> list[int]:
    found = []
    for tenant in (0, 1):
        with proxy.client(tenant) as client:
            found.append(int(client.get("/v1/usage?by=model").raise_for_status().json()["price_nanousd"]))
    return found


def test_it_ends_at_what_the_proxy_has_billed(worked: ProxyProcess, capsys: Capture) -> None:
    found = ladder(capsys, worked, "--by", "tenant")
    assert found["off_nanousd"] == 0
    assert found["price_nanousd"] == sum(prices(worked))
    assert found["steps"][-1]["price_nanousd"] == found["price_nanousd"]
    by_tenant = {group["key"]: group["price_nanousd"] for group in found["groups"]}
    assert by_tenant == dict(zip(("first", "second"), prices(worked), strict=True))


def test_it_groups_by_the_harness_that_sent_the_turns(worked: ProxyProcess, capsys: Capture) -> None:
    found = ladder(capsys, worked, "--by", "harness")
    assert {group["key"]: group["turns"] for group in found["groups"]} == {"opencode": 8, "claude-code": 4}


def test_a_time_to_come_has_no_turn(worked: ProxyProcess, capsys: Capture) -> None:
    assert ladder(capsys, worked, "--since", "99999999999")["turns"] == 0


@pytest.mark.parametrize("by", ["session", "tenant", "model", "harness", "day", "kind"])
def test_each_table_fits_eighty_columns(
    by: str, worked: ProxyProcess, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ladder", str(worked.state_dir), "--by", by]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert any(line.startswith("billed") for line in lines)


def test_a_folder_that_is_given_twice_counts_once(
    worked: ProxyProcess, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = ladder(capsys, worked)["turns"]
    monkeypatch.chdir(worked.state_dir)
    assert main(["ladder", ".", str(worked.state_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["turns"] == once


@pytest.mark.parametrize(
    "words", [["--price", "1:1:1"], ["--kv-tokens", "600k"], ["--format", "sglang"], ["--config", "proxy.toml"]]
)
def test_options_that_a_ledger_cannot_follow_are_refused(
    words: list[str], worked: ProxyProcess, capsys: Capture
) -> None:
    assert main(["ladder", str(worked.state_dir), *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_a_folder_without_a_ledger_is_said(capsys: Capture, tmp_path: Any) -> None:
    assert main(["ladder", str(tmp_path)]) == 2
    assert "has no ledger.sqlite" in capsys.readouterr().err
