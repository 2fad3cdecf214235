"""Texts that spoil a prefix: what rules take out stays warm, and the receipt says which did, or would have."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess, until
from warmroute.contract import receipt as contract_receipt
from warmroute_proxy.server.base.config_file import ConfigError, load_config

PROMPT = "You are an agent that reads before it writes. " * 100


@pytest.fixture(scope="module")
def plain(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("off")
    with ProxyProcess(folder / "p", [engine.toml("east")], model="normalise = []") as started:
        yield started


def line(nonce: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.177.{nonce}; cc_entrypoint=cli; cch={nonce};"


def counter(left: int) -> dict[str, Any]:
    return {"role": "system", "content": f"<total_tokens>{left} tokens left</total_tokens>"}


def history(session: str, turns: int) -> list[dict[str, Any]]:
    said = [[{"role": "user", "content": f"{session} {turn} " * 50}, {"role": "assistant", "content": f"a{turn}"}]
            for turn in range(turns)]  # fmt: skip
    return [message for pair in said for message in pair][:-1]


def messages_turn(proxy: ProxyProcess, session: str, turn: int) -> dict[str, Any]:
    """A turn of Claude Code: its line with a nonce first, its counter last."""
    blocks = [{"type": "text", "text": line(f"{turn}ab")}, {"type": "text", "text": PROMPT}]
    messages = [*history(session, turn), counter(15_000_000 - turn)]
    asked = {"model": "kimi-k2.5", "max_tokens": 8, "system": blocks, "messages": messages}
    return told(proxy, "/v1/messages", asked, session)


def chat_turn(proxy: ProxyProcess, session: str, turn: int) -> dict[str, Any]:
    """The same as a gateway translates it."""
    system = {"role": "system", "content": f"{line(f'{turn}cd')}\n{PROMPT}"}
    asked = {"model": "kimi-k2.5", "max_tokens": 8, "messages": [system, *history(session, turn), counter(turn)]}
    return told(proxy, "/v1/chat/completions", asked, session)


def told(proxy: ProxyProcess, path: str, asked: dict[str, Any], session: str) -> dict[str, Any]:
    with proxy.client() as client:
        answer = client.post(path, json=asked, headers={"x-session-affinity": session})
    assert answer.status_code == 200, answer.text
    receipt: dict[str, Any] = answer.json()["usage"]["warmroute"]
    found = httpx.get(
        f"{proxy.url}/v1/usage/receipts/{receipt['id']}", headers={"authorization": f"Bearer {proxy.keys[0]}"}
    ).json()
    assert contract_receipt.check(found["usage"]) == []
    return receipt


@pytest.mark.parametrize("turn_of", [messages_turn, chat_turn])
def test_what_a_rule_takes_out_does_not_break_a_prefix(proxy: ProxyProcess, turn_of: Any) -> None:
    receipts = [turn_of(proxy, turn_of.__name__, turn) for turn in (1, 2, 3)]
    assert [receipt["normalised"] for receipt in receipts] == [["billing_line", "token_counter"]] * 3
    assert all(set(receipt["loss"]) <= {"new", "page_rounding"} for receipt in receipts[1:])
    assert receipts[-1]["cached"]["device"] > 1000
    until(lambda: 'warmroute_normalised_total{rule="billing_line"}' in proxy.metrics(), "it is counted")


@pytest.mark.parametrize("turn_of", [messages_turn, chat_turn])
def test_a_rule_that_is_off_is_named_where_the_prefix_changed(plain: ProxyProcess, turn_of: Any) -> None:
    first, second = (turn_of(plain, turn_of.__name__, turn) for turn in (1, 2))
    assert "normalised" not in first
    assert "prefix_changed_by" not in first
    assert second["loss"]["prefix_changed"] > 1000
    assert second["prefix_changed_by"] == ["billing_line", "token_counter"]


def test_a_rule_that_is_not_known_is_a_problem_of_the_config(engine: EngineProcess, tmp_path: Any) -> None:
    proxy = ProxyProcess(tmp_path / "p", [engine.toml("east")], model='normalise = ["biling_line"]')
    with pytest.raises(ConfigError, match=r"is not one of billing_line, .*did you mean"):
        load_config(proxy.write_config())
