"""The number of a turn goes on after a compaction, where the program's own words show one; a fork stays what it is."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess
from warmroute.contract.compactions import MARKS

pytestmark = pytest.mark.full

MODEL: Final = "kimi-k2.5"
SYSTEM: Final = "You help with the code of this project."
CLAUDE: Final = (
    "This session is being continued from a previous conversation that ran out of context. The summary below"
)
GEMINI: Final = "Got it. Thanks for the additional context!"
Message = dict[str, Any]


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def grown(beginning: list[Message], answers: int) -> list[Message]:
    """A conversation after some more answers."""
    found = [*beginning]
    for number in range(answers):
        found += [answer(f"Done, step {number}."), user(f"And step {number + 1}.")]
    return found


def turn_of(
    client: httpx.Client,
    session: str | None,
    messages: list[Message],
    agent: str = "",
    system: str = SYSTEM,
    home: str = "",
) -> int:
    """The number of a turn by its receipt."""
    headers = {"x-session-affinity": session or "", "thread-id": agent, "x-warmroute-home": home}
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "system", "content": system}, *messages]}
    named = {name: each for name, each in headers.items() if each}
    found = client.post("/v1/chat/completions", json=body, headers=named)
    assert found.status_code == 200, found.text
    return int(found.json()["usage"]["warmroute"]["turn"])


def begun(client: httpx.Client, session: str, turns: int = 4, agent: str = "") -> list[Message]:
    """A conversation of some turns."""
    messages = [user(f"Read the files of {session}.")]
    for number in range(turns):
        assert turn_of(client, session, grown(messages, number), agent) == number + 1
    return grown(messages, turns)


def compacted(words: str, role: str = "user", summary: str = "We have read the files.") -> list[Message]:
    """What a program sends in place of a history: its summary, or an answer behind that."""
    if role == "user":
        return [user(f"{words} {summary}")]
    return [user(summary), answer(words), user("Go on.")]


def test_what_a_program_keeps_of_its_history_is_not_counted_twice(client: httpx.Client) -> None:
    history = begun(client, "kept", 6)
    kept = [user("What did we do so far?"), answer("We have read the files."), *history[-4:]]
    assert turn_of(client, "kept", kept) == 7
    assert turn_of(client, "kept", grown(kept, 1)) == 8


def test_a_compaction_goes_on_and_a_fork_does_not(client: httpx.Client) -> None:
    """Which words are a compaction's: `tests/unit/core/test_compactions.py`."""
    begun(client, "listed")
    assert [turn_of(client, "listed", grown(compacted(CLAUDE), answers)) for answers in range(3)] == [5, 6, 7]
    second = compacted(CLAUDE, summary="We have read more files.")
    assert [turn_of(client, "listed", grown(second, answers)) for answers in range(2)] == [8, 9]
    assert turn_of(client, "listed", [user("Read other files."), answer("Done."), user(CLAUDE)]) == 2
    found = client.get("/v1/usage/receipts", headers={"x-session-affinity": "listed"}).json()
    assert sorted(each["turn"] for each in found["data"]) == [1, 2, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("turns", [0, 1])
def test_a_compaction_of_less_than_two_turns_counts_by_its_prompt(client: httpx.Client, turns: int) -> None:
    begun(client, f"after {turns}", turns)
    assert turn_of(client, f"after {turns}", compacted(CLAUDE)) == 1


def test_another_key_agent_or_system_prompt_begins_at_one(client: httpx.Client) -> None:
    begun(client, "own", agent="main")
    assert turn_of(client, "another", compacted(CLAUDE), "main") == 1
    assert turn_of(client, "own", compacted(CLAUDE), "sub") == 1
    assert turn_of(client, "own", compacted(CLAUDE), "main", "You are another agent.") == 1
    assert turn_of(client, "own", compacted(CLAUDE), "main") == 5


def test_without_a_key_a_compaction_is_a_conversation_of_its_own(client: httpx.Client) -> None:
    for answers in range(3):
        assert turn_of(client, None, grown([user("Read without a key.")], answers)) == answers + 1
    assert turn_of(client, None, compacted(CLAUDE, summary="Without a key.")) == 1


def test_another_tenant_with_the_same_key_is_apart(proxy: ProxyProcess) -> None:
    with proxy.client(0) as one, proxy.client(1) as other:
        begun(one, "shared key")
        assert turn_of(other, "shared key", compacted(CLAUDE)) == 1
        assert turn_of(one, "shared key", compacted(CLAUDE)) == 5


def test_two_agents_that_compact_at_once_go_on_each_by_itself(client: httpx.Client) -> None:
    begun(client, "two", 3, "a")
    begun(client, "two", 6, "b")
    with ThreadPoolExecutor(2) as pool:
        roots = {agent: compacted(CLAUDE, summary=f"By {agent}.") for agent in "ab"}
        first = {agent: pool.submit(turn_of, client, "two", roots[agent], agent) for agent in "ab"}
        assert {agent: each.result() for agent, each in first.items()} == {"a": 4, "b": 7}
        later = {agent: pool.submit(turn_of, client, "two", grown(roots[agent], 1), agent) for agent in "ab"}
        assert {agent: each.result() for agent, each in later.items()} == {"a": 5, "b": 8}


def test_two_compactions_of_one_conversation_each_keep_their_numbers(client: httpx.Client) -> None:
    """A program that is run twice with one key: what one has compacted does not move the other."""
    begun(client, "twice")
    one, other = compacted(CLAUDE, summary="By one."), compacted(CLAUDE, summary="By the other.")
    assert turn_of(client, "twice", one) == 5
    assert turn_of(client, "twice", other) == 6
    assert [turn_of(client, "twice", grown(one, answers)) for answers in (1, 2)] == [6, 7]
    assert turn_of(client, "twice", grown(other, 1)) == 7


def test_the_same_prompt_again_has_the_same_number(client: httpx.Client) -> None:
    begun(client, "again")
    assert [turn_of(client, "again", compacted(CLAUDE)) for _ in range(3)] == [5, 5, 5]


def test_a_resumed_or_edited_conversation_follows_the_newest_turn(client: httpx.Client) -> None:
    begun(client, "edited")
    root = compacted(CLAUDE)
    for answers in range(3):
        turn_of(client, "edited", grown(root, answers))
    assert turn_of(client, "edited", [*root, answer("Something else."), user("Go on.")]) == 8


def test_numbers_go_on_after_a_restart_of_the_proxy(engine: EngineProcess, tmp_path: Path) -> None:
    root = compacted(CLAUDE)
    with ProxyProcess(tmp_path / "p", [engine.toml("east")]) as started:
        with started.client() as client:
            begun(client, "restarted")
            assert turn_of(client, "restarted", root) == 5
        started.stop()
        with started.start().client() as client:
            assert turn_of(client, "restarted", grown(root, 1)) == 6
            assert turn_of(client, "restarted", compacted(CLAUDE, summary="Again.")) == 7
            assert turn_of(client, "restarted", [user("A fork.")]) == 1


def test_numbers_go_on_in_another_region(regions: tuple[ProxyProcess, ProxyProcess]) -> None:
    east, west = regions
    with east.client() as client:
        history = [user("Read the files of both.")]
        for answers in range(3):
            assert turn_of(client, "both", grown(history, answers), home="west") == answers + 1
        assert [row["turn"] for row in west.rows(3)] == [1, 2, 3]
        west.kill()
        assert turn_of(client, "both", compacted(CLAUDE)) == 4


Asked = tuple[str, Message]


def of_claude_code(messages: list[Message]) -> Asked:
    reminder = {"type": "text", "text": "<system-reminder>\nThe date is known.\n</system-reminder>"}
    first = user([reminder, {"type": "text", "text": messages[0]["content"]}])
    return "/v1/messages", {"model": MODEL, "max_tokens": 4, "system": SYSTEM, "messages": [first, *messages[1:]]}


def of_codex(messages: list[Message]) -> Asked:
    context = user("<environment_context>\n  <shell>bash</shell>\n</environment_context>")
    return "/v1/responses", {"model": MODEL, "instructions": SYSTEM, "input": [context, *messages]}


def of_gemini_cli(messages: list[Message]) -> Asked:
    context = user("<session_context>\nThis is the Gemini CLI.\n</session_context>")
    contents = [
        {"role": "model" if each["role"] == "assistant" else "user", "parts": [{"text": each["content"]}]}
        for each in (context, *messages)
    ]
    asked = {"systemInstruction": {"parts": [{"text": SYSTEM}]}, "contents": contents}
    return f"/v1beta/models/{MODEL}:generateContent", asked


def asked_turn(client: httpx.Client, session: str, asked: Asked) -> int:
    path, body = asked
    sent = client.post(path, json=body, headers={"x-session-affinity": session}).raise_for_status()
    receipt = client.get(f"/v1/usage/receipts/{sent.headers['x-warmroute-receipt']}").raise_for_status().json()
    return int(receipt["usage"]["warmroute"]["turn"])


@pytest.mark.parametrize(
    ("as_sent", "first"),
    [
        (of_claude_code, [user(CLAUDE)]),
        (of_codex, [user("Read the files."), user(f"{MARKS[1].words} of its thinking process.")]),
        (of_gemini_cli, compacted(GEMINI, "assistant", "<state_snapshot>We have read the files.</state_snapshot>")),
    ],
)
def test_the_mark_of_a_program_is_read_in_its_own_api(
    client: httpx.Client, as_sent: Callable[[list[Message]], Asked], first: list[Message]
) -> None:
    session = as_sent.__name__
    for answers in range(4):
        assert asked_turn(client, session, as_sent(grown([user("Read the files.")], answers))) == answers + 1
    assert [asked_turn(client, session, as_sent(grown(first, answers))) for answers in range(2)] == [5, 6]
    assert asked_turn(client, session, as_sent([user("Read other files.")])) == 1


def test_an_item_that_the_proxy_has_compacted_goes_on(client: httpx.Client) -> None:
    history = [user("Read the files.")]
    for answers in range(3):
        asked_turn(client, "item", of_codex(grown(history, answers)))
    path, body = of_codex([*grown(history, 2), {"type": "compaction_trigger"}])
    done = client.post(path, json=body, headers={"x-session-affinity": "item"}).raise_for_status().json()
    (item,) = done["output"]
    number = asked_turn(client, "item", of_codex([*history, item]))
    assert number == done["usage"]["warmroute"]["turn"] + 1
    assert asked_turn(client, "item", of_codex([*grown([*history, item], 1)])) == number + 1
