"""Conversations whose client sends no session key: what their receipts say, through a proxy and the SDK."""

from pathlib import Path
from typing import Any, Final

import httpx

import warmroute
from tests.subjects.processes import EngineProcess, ProxyProcess

CHAT: Final = "/v1/chat/completions"
EXAMPLE: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "You say what kind of thing something is. " * 40},
    {"role": "user", "content": "Example: dog, which barks, and runs in the park. " * 20},
    {"role": "assistant", "content": "animal"},
]


def about(text: str, *more: dict[str, Any]) -> list[dict[str, Any]]:
    return [*EXAMPLE, {"role": "user", "content": f"{text}, of which I have seen {len(text)}. " * 20}, *more]


MORE: Final = ({"role": "assistant", "content": "I see."}, {"role": "user", "content": "Are you sure?"})


def ask(client: httpx.Client, messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
    return client.post(CHAT, json={"model": "kimi-k2.5", "messages": messages, "max_tokens": 2, **more})


def told(client: httpx.Client, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The receipt of a turn."""
    return dict(ask(client, messages).json()["usage"]["warmroute"])


def test_a_conversation_goes_on_after_a_restart_of_the_proxy(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, "e", "aggregated") as engine:
        proxy = ProxyProcess(tmp_path / "p", [engine.toml("east")])
        with proxy, proxy.client() as client:
            first = told(client, about("a gnu"))
        assert "a gnu" not in (proxy.state_dir / "conversations.json").read_text()
        proxy.start()
        with proxy, proxy.client() as client:
            second = told(client, about("a gnu", *MORE))
    assert second["session"] == first["session"]
    assert "cold" not in second["loss"]
    assert second["cached"]["device"] > 100


def test_the_sdk_tells_them_apart_and_explains_each_by_itself(proxy: ProxyProcess) -> None:
    with warmroute.OpenAI(base_url=proxy.base_url, api_key=proxy.keys[0]) as client:

        def explain(messages: list[Any]) -> str:
            client.chat.completions.create(model="kimi-k2.5", messages=messages, max_tokens=2)
            return client.cache.explain()

        explained = [explain(about(text)) for text in ("a dove", "a lime", "a brick")]
        assert not any("On your side" in text or "prefix_changed" in text for text in explained)
        assert "the prompt only grew" in explain(about("a lime", *MORE))
        assert sorted(totals.turns for totals in client.cache.report().by_session.values()) == [1, 1, 2]


def test_what_failed_and_is_sent_again_is_of_the_same_conversation(client: httpx.Client) -> None:
    session = told(client, about("a whale"))["session"]
    failing = {"metadata": {"script": '{"error_after_tokens": 1}'}}
    assert ask(client, about("a whale", *MORE), **failing).status_code >= 500
    assert told(client, about("a whale", *MORE))["session"] == session
    assert told(client, about("a whale", *MORE))["session"] != session, "another sample"
