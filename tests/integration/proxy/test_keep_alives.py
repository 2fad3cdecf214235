"""Keep-alives: the last request again, with an answer of one token."""

from typing import Any

import httpx

TEXT = "The files say this, line by line. " * 300


def _ask(client: httpx.Client, session: str, turns: int, tokens: int, kind: str = "") -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{session}: {TEXT}"}]
    for number in range(turns - 1):
        messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"Go on with {number}."}]
    headers = {"x-session-affinity": session} | ({"x-warmroute-kind": kind} if kind else {})
    body = {"model": "kimi-k2.5", "messages": messages, "max_tokens": tokens}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["usage"]
    return found


def _of(client: httpx.Client, usage: dict[str, Any]) -> dict[str, Any]:
    """What is added up for the session of a turn."""
    session = usage["warmroute"]["session"]
    groups = client.get("/v1/usage", params={"by": "session"}).json()["groups"]
    found: dict[str, Any] = next(group for group in groups if group["key"] == session)
    return found


def test_a_keep_alive_is_warm_and_out_of_hit_ratios(client: httpx.Client) -> None:
    first, second = _ask(client, "pi", 1, 5), _ask(client, "pi", 2, 5)
    for _ in range(4):
        assert _ask(client, "pi", 2, 1)["warmroute"]["kind"] == "warm"
    third = _ask(client, "pi", 3, 5)
    turns = (first, second, third)
    assert not any("kind" in usage["warmroute"] for usage in turns)
    sums = _of(client, third)
    assert sums["turns"] == 7
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in turns)
    assert sums["hit_ratio"] == round(cached / sum(usage["prompt_tokens"] for usage in turns), 6)


def test_a_client_that_says_what_it_sends_is_believed_but_for_keep_alives(client: httpx.Client) -> None:
    assert _ask(client, "said", 1, 5, "main")["warmroute"]["kind"] == "main"
    assert _ask(client, "said", 1, 1, "main")["warmroute"]["kind"] == "warm"
    assert _ask(client, "said", 2, 1, "main")["warmroute"]["kind"] == "main"


def test_all_turns_of_a_session_that_is_only_kept_warm_have_no_hit_ratio(client: httpx.Client) -> None:
    usage = _ask(client, "only", 1, 1, "warm")
    assert _of(client, usage)["hit_ratio"] is None


def test_a_session_has_the_name_that_its_client_gives_it(client: httpx.Client) -> None:
    body = {"model": "kimi-k2.5", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
    for name, shown in (("fix the tests", "fix the tests"), ("x" * 65, None)):
        headers = {"x-session-affinity": "named", "x-warmroute-session-name": name}
        usage = client.post("/v1/chat/completions", json=body, headers=headers).json()["usage"]
        assert usage["warmroute"].get("name") == shown
        newest = client.get("/v1/usage/receipts", params={"limit": "1"}).json()["data"][0]
        assert newest["name"] == shown
