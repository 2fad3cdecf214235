"""What broke a prefix, as the receipts of clients say it that only have another base_url."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.subjects.processes import EngineProcess, ProxyProcess
from tests.subjects.small_fleet import regions  # noqa: F401 - a fixture
from warmroute.contract import receipt as contract_receipt

pytestmark = pytest.mark.full

RULES = "\n".join(f"Rule {number}: keep to the conventions of the code around you." for number in range(200))
FILES = [f"File {number} says this. " + "It is a long line of text. " * 60 for number in range(12)]


def _tool(name: str, *keys: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": f"The {key} that {name} needs."} for key in keys}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [_tool("read", "path", "limit"), _tool("write", "path", "text"), _tool("search", "pattern")]


def _system(first: str = "Today is 2026-11-24.") -> dict[str, Any]:
    return {"role": "system", "content": f"{first}\n{RULES}"}


def _history(turns: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "user", "content": "Read the files, one after the other."}]
    for number in range(turns):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": f"c{number}", "content": FILES[number]})
    return found


def _of(session: str | None, message: dict[str, Any]) -> dict[str, Any]:
    """A user's message with its session's name: an unknown session is compared with others that begin alike."""
    return {**message, "content": f"{message['content']} ({session})"} if message["role"] == "user" else message


def _ask(
    client: httpx.Client,
    session: str | None,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] = TOOLS,
    home: str | None = None,
    agent: str | None = None,
) -> dict[str, Any]:
    named = [_of(session, each) for each in messages]
    body = {"model": "kimi-k2.5", "max_tokens": 4, "tools": tools, "messages": named}
    given = {"x-session-affinity": session, "x-warmroute-home": home, "thread-id": agent}
    headers = {name: value for name, value in given.items() if value}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    assert contract_receipt.check(usage) == []
    receipt: dict[str, Any] = usage["warmroute"]
    return receipt


def _broken(receipt: dict[str, Any]) -> tuple[str, str]:
    found = receipt["prefix_break"]
    assert found["tokens"] == receipt["loss"]["prefix_changed"] > 1000
    rates = {name: round(float(rate) * 1e6) for name, rate in receipt["rates_usd_per_mtok"].items()}
    assert found["nanousd"] == round(found["tokens"] * (rates["input"] - rates["cached"]) / 1000)
    return found["where"], found["cause"]


@pytest.mark.parametrize(
    ("name", "before", "now", "cause"),
    [
        ("date", "Today is 2026-11-24.", "Today is 2026-11-25.", "date"),
        ("weekday", "Today is Monday, 30 November 2026.", "Today is Tuesday, 10 December 2026.", "date"),
        ("path", "Today is 2026-11-24.", "Work in /home/other/project now.", "working-directory"),
        ("words", "Today is 2026-11-24.", "You are another agent, with other aims.", "system"),
    ],
)
def test_a_changed_system_prompt_is_named_by_its_line(
    client: httpx.Client, name: str, before: str, now: str, cause: str
) -> None:
    for turns in (1, 2, 3):
        receipt = _ask(client, f"system-{name}", [_system(before), *_history(turns)])
        assert "prefix_break" not in receipt
    receipt = _ask(client, f"system-{name}", [_system(now), *_history(4)])
    assert _broken(receipt) == ("system, line 1", cause)


@pytest.mark.parametrize(
    ("name", "tools", "expected"),
    [
        ("order", [TOOLS[0], TOOLS[2], TOOLS[1]], ("tools, number 2", "tool-order")),
        ("keys", [_tool("read", "limit", "path"), *TOOLS[1:]], ("tools, number 1", "key-order")),
        ("schema", [*TOOLS[:2], _tool("search", "pattern", "folder")], ("tools, number 3", "tool-schema")),
        ("set", [*TOOLS, _tool("run", "command")], ("tools, number 4", "tool-set")),
        # Claude Code leaves most tools out, and offers all of them once its search for tools is off.
        (
            "searched",
            [*TOOLS, *[_tool(f"more{number}", "path") for number in range(10)]],
            ("tools, number 4", "tool-set"),
        ),
    ],
)
def test_changed_tools_are_named(
    client: httpx.Client, name: str, tools: list[dict[str, Any]], expected: tuple[str, str]
) -> None:
    for turns in (1, 2, 3):
        _ask(client, f"tools-{name}", [_system(), *_history(turns)])
    assert _broken(_ask(client, f"tools-{name}", [_system(), *_history(4)], tools)) == expected


def test_a_sub_agent_with_fewer_tools_breaks_nothing_of_its_parent(client: httpx.Client) -> None:
    task = [{"role": "user", "content": "Write the letter."}]
    _ask(client, "subs", [_system(), *_history(1)], TOOLS, agent="parent")
    receipt = _ask(client, "subs", [_system(), *task], TOOLS[:2], agent="sub")
    assert {"prefix_changed", "prefix_break"}.isdisjoint({*receipt["loss"], *receipt})
    assert "prefix_break" not in _ask(client, "subs", [_system(), *_history(2)], TOOLS, agent="parent")


@pytest.mark.parametrize(
    ("session", "content", "cause"),
    [
        ("edited", FILES[2].upper(), "history-edited"),
        (None, FILES[2].upper(), "history-edited"),
        ("pruned", "[old result removed]", "history-pruned"),
    ],
    ids=["edited", "edited without a session", "pruned"],
)
def test_a_changed_history_is_named(client: httpx.Client, session: str | None, content: str, cause: str) -> None:
    history = _history(5)
    history[0]["content"] = f"Read the files for {session}, one after the other."
    for end in (3, 5, 7, 9):
        _ask(client, session, [_system(), *history[:end]])
    history[2] = {**history[2], "content": content}
    assert _broken(_ask(client, session, [_system(), *history])) == ("message 4 (tool)", cause)


@pytest.mark.parametrize(("place", "where"), [(1, "message 3 (assistant)"), (2, "message 4 (user)")])
def test_a_change_near_the_end_of_a_long_prompt_is_the_clients(client: httpx.Client, place: int, where: str) -> None:
    """It is less than what an estimate of tokens is off by, and nothing was evicted."""
    system = _system(f"You help.\n{RULES}")
    turns = [{"role": role, "content": f"{role} says {n}. " * 9} for n in range(3) for role in ("user", "assistant")]
    for end in (1, 3, 5):
        _ask(client, f"small-{place}", [system, *turns[:end]], [])
    turns[place] = {**turns[place], "content": "This is something else. " * 9}
    receipt = _ask(client, f"small-{place}", [system, *turns, {"role": "user", "content": "Go on."}], [])
    assert receipt["prefix_break"]["where"] == where
    assert receipt["loss"]["prefix_changed"] > 50
    assert {"evicted", "unknown"}.isdisjoint(receipt["loss"])


def test_a_system_prompt_of_one_line_is_compared_where_the_conversation_goes_on(client: httpx.Client) -> None:
    one_line, history = RULES.replace("\n", " "), _history(4)
    for end in (1, 3, 5):
        _ask(client, "one-line", [{"role": "system", "content": f"It is Monday. {one_line}"}, *history[:end]], [])
    receipt = _ask(client, "one-line", [{"role": "system", "content": f"It is Tuesday. {one_line}"}, *history], [])
    assert _broken(receipt) == ("system, line 1", "system")


def test_another_agent_that_is_asked_the_same_is_no_break(client: httpx.Client) -> None:
    """Programs ask a small model for the title of a conversation, under its session."""
    history = _history(2)
    _ask(client, "titles", [{"role": "system", "content": "Write a title. " * 400}, history[0]], [])
    for end in (1, 3, 5):
        assert "prefix_break" not in _ask(client, "titles", [_system("You help."), *history[:end]], [])


def test_a_compaction_is_named_with_what_it_cost_and_saves(client: httpx.Client) -> None:
    history = _history(10)
    for end in (3, 9, 15, 21):
        _ask(client, "compacted", [_system(), *history[:end]])
    summary = "This session is being continued from a previous conversation. Summary: " + "We read the files. " * 400
    receipt = _ask(client, "compacted", [_system(), {"role": "user", "content": summary}])
    assert _broken(receipt) == ("message 2 (user)", "compaction")
    found = receipt["prefix_break"]
    assert found["compacted_tokens"] > 2000
    assert found["saved_nanousd_a_turn"] > 0


def test_another_conversation_of_a_session_is_no_break(client: httpx.Client) -> None:
    _ask(client, "two", [_system(), *_history(4)])
    title = {"role": "system", "content": "Make a title of the conversation. " * 200}
    receipt = _ask(client, "two", [title, {"role": "user", "content": FILES[0] * 3}], [])
    assert "prefix_break" not in receipt
    other = [_system(), {"role": "user", "content": "Write a letter. " * 500}]
    assert "prefix_break" not in _ask(client, "two", other)


def test_nothing_of_it_is_kept_where_it_is_off(engine: EngineProcess, tmp_path: Path) -> None:
    with (
        ProxyProcess(tmp_path / "p", [engine.toml("east")], limits="prompt_parts_bytes = 0") as proxy,
        proxy.client() as client,
    ):
        for turns in (1, 2, 3):
            _ask(client, "off", [_system(), *_history(turns)])
        receipt = _ask(client, "off", [_system("Today is 2026-11-25."), *_history(4)])
        assert receipt["loss"]["prefix_changed"] > 1000
        assert "prefix_break" not in receipt


def test_a_change_that_another_region_has_served_is_no_change_of_the_next_turn(
    regions: tuple[ProxyProcess, ProxyProcess],  # noqa: F811
) -> None:
    east, west = regions
    history = _history(6)
    with east.client() as client:
        for end in (3, 5, 7):
            _ask(client, "roams", [_system(), *history[:end]])
        history[2] = {**history[2], "content": FILES[2].upper()}
        changed = _ask(client, "roams", [_system(), *history[:9]], home="west")
        west.kill()
        receipt = _ask(client, "roams", [_system(), *history[:11]])
    assert changed["region"] == "west"
    assert (receipt["region"], receipt["elsewhere_region"]) == ("east", "west")
    assert receipt["loss"]["elsewhere"] > 1000
    assert {"prefix_changed", "prefix_break"}.isdisjoint({*receipt["loss"], *receipt})
