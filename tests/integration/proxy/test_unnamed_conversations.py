"""Conversations whose client sends no session key: what their receipts say, through a proxy and the SDK."""

from pathlib import Path
from typing import Any, Final

import httpx

import warmroute
from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess
from warmroute_cli.processes import stop_all
from warmroute_lab.recordings import load_recordings

CHAT: Final = "/v1/chat/completions"
EXAMPLE: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "You say what kind of thing something is. " * 40},
    {"role": "user", "content": "Example: dog, which barks, and runs in the park. " * 20},
    {"role": "assistant", "content": "animal"},
]


def about(text: str, *more: dict[str, Any]) -> list[dict[str, Any]]:
    return [*EXAMPLE, {"role": "user", "content": f"{text}, of which I have seen {len(text)}. " * 20}, *more]


MORE: Final = ({"role": "assistant", "content": "I see."}, {"role": "user", "content": "Are you sure?"})


def test_a_conversation_goes_on_after_a_restart_of_the_proxy(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path, "e", "aggregated").listening()
    proxy = ProxyProcess(tmp_path / "p", [engine.toml("east")]).start()

    def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": "kimi-k2.5", "messages": messages, "max_tokens": 2}
        with proxy.client() as client:
            return dict(client.post(CHAT, json=body).json()["usage"]["warmroute"])

    try:
        first = ask(about("a gnu"))
        proxy.stop()
        assert "a gnu" not in (proxy.state_dir / "conversations.json").read_text()
        proxy.start()
        second = ask(about("a gnu", *MORE))
        assert second["session"] == first["session"]
        assert "cold" not in second["loss"]
        assert second["cached"]["device"] > 100
    finally:
        proxy.stop()
        stop_all([engine.child], seconds(5.0))


def test_chats_with_the_same_examples_are_told_apart_and_nobody_is_blamed(client: httpx.Client) -> None:
    def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": "kimi-k2.5", "messages": messages, "max_tokens": 2}
        return dict(client.post(CHAT, json=body).json()["usage"]["warmroute"])

    texts = ("a cat", "an oak", "a stone")
    first = [ask(about(text)) for text in texts]
    assert len({receipt["session"] for receipt in first}) == 3
    assert all("prefix_changed" not in receipt["loss"] for receipt in first)
    assert first[1]["loss"]["cold"] > 100, "behind the examples, which are cached"
    second = [ask(about(text, *MORE)) for text in texts]
    assert [receipt["session"] for receipt in second] == [receipt["session"] for receipt in first]
    assert all(set(receipt["loss"]) <= {"new", "page_rounding"} for receipt in second)


def test_the_sdk_tells_them_apart_and_explains_each_by_itself(proxy: ProxyProcess) -> None:
    with warmroute.OpenAI(base_url=proxy.base_url, api_key=proxy.keys[0]) as client:

        def ask(messages: list[Any]) -> str:
            client.chat.completions.create(model="kimi-k2.5", messages=messages, max_tokens=2)
            return client.cache.explain()

        explained = [ask(about(text)) for text in ("a dove", "a lime", "a brick")]
        assert not any("On your side" in text or "prefix_changed" in text for text in explained)
        assert "the prompt only grew" in ask(about("a lime", *MORE))
        assert sorted(totals.turns for totals in client.cache.report().by_session.values()) == [1, 1, 2]


def test_aiders_dropped_reminder_is_a_changed_prefix_of_its_own_conversation(client: httpx.Client) -> None:
    (aider,) = load_recordings(["aider"])
    receipts = []
    for request in aider.requests:
        body = {"model": "kimi-k2.5", "messages": request.body["messages"], "max_tokens": 2}
        receipts.append(client.post(CHAT, json=body).json()["usage"]["warmroute"])
    sessions = [receipt["session"] for receipt in receipts]
    commit, moved = sessions[2], sessions[3]
    assert sessions == [sessions[0], sessions[0], commit, moved, moved, moved]
    assert len({sessions[0], commit, moved}) == 3
    changed = [receipt["loss"].get("prefix_changed", 0) > 0 for receipt in receipts]
    assert changed == [False, True, False, True, True, True]


def test_what_failed_and_is_sent_again_is_of_the_same_conversation(client: httpx.Client) -> None:
    def ask(messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
        return client.post(CHAT, json={"model": "kimi-k2.5", "messages": messages, "max_tokens": 2, **more})

    session = ask(about("a whale")).json()["usage"]["warmroute"]["session"]
    failing = {"metadata": {"script": '{"error_after_tokens": 1}'}}
    assert ask(about("a whale", *MORE), **failing).status_code >= 500
    again = ask(about("a whale", *MORE))
    assert again.json()["usage"]["warmroute"]["session"] == session
    sample = ask(about("a whale", *MORE))
    assert sample.json()["usage"]["warmroute"]["session"] != session
