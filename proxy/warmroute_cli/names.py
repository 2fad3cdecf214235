"""What people know sessions and agents by: the program, when it began, a short name; and which session a text names.

Keys of sessions are secret, so receipts have their hashes. A session that has no name is called by its program and its
start. Behind it stands the beginning of its hash, which tells two of one name apart. All of it is read from the newest
turns, `MOST`.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from warmroute_cli.api import ApiError

if TYPE_CHECKING:
    from warmroute_cli.api import Api
    from warmroute_cli.past import PastFleet

MOST: Final = "200"
SHORT_HASH: Final = 6
LEAST_HASH: Final = 4
WHOLE_HASH: Final = 16
UNNAMED: Final = "client"
"""A program that its head does not tell."""

_HASH: Final = re.compile(r"[0-9a-f]{16}")
_BEHIND: Final = re.compile(rf"\(?([0-9a-f]{{{LEAST_HASH},16}})\)?$")

Turns = Iterable[Mapping[str, Any]]


def newest(api: "Api | PastFleet", since: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The newest turns; none if they cannot be asked for."""
    try:
        found: list[dict[str, Any]] = api.ask("/usage/receipts", {"limit": MOST, **(since or {})})["data"]
    except ApiError:
        return []
    return found


def session_names(turns: Turns) -> dict[str, str]:
    """What sessions are called, by their hashes. `turns`: the newest first."""
    found: dict[str, str] = {}
    for turn in turns:  # so the oldest one counts
        session = turn["session"]
        if session:
            began = datetime.fromtimestamp(turn["settled_at"]).astimezone()
            today = datetime.now().astimezone().date() == began.date()
            start = began.strftime("%H:%M" if today else "%m-%d %H:%M")
            found[session] = turn.get("name") or f"{turn.get('harness') or UNNAMED} {start}"
    return {session: f"{name} ({session[:SHORT_HASH]})" for session, name in found.items()}


def agent_name(turn: Mapping[str, Any], numbers: dict[str, dict[str, int]]) -> str:
    """What the agent of a turn is called: its own name, its kind, `main`, or `sub 2` if it has an id alone.
    `numbers`: of the agents of each session that were seen, which grows.
    """
    agent, kind = turn.get("agent") or "", turn.get("kind") or ""
    if not _HASH.fullmatch(agent):
        return agent or kind or "main"
    if kind in {"", "main"}:
        return "main"
    known = numbers.setdefault(f"{turn['session']} {kind}", {})
    return f"{kind} {known.setdefault(agent, len(known) + 1)}"


def agent_names(turns: Turns) -> list[str]:
    """What the agents of some turns are called. `turns`: the newest first."""
    numbers: dict[str, dict[str, int]] = {}
    return [agent_name(turn, numbers) for turn in reversed(list(turns))][::-1]


def question_of(api: "Api | PastFleet", text: str) -> tuple[dict[str, str], str]:
    """Which session a text names: the parameter with its hash, or else its key for the header.

    The text is what a table has printed, a hash or the beginning of one, or else a key.
    """
    behind = _BEHIND.search(text)
    if behind is not None and len(behind[1]) == WHOLE_HASH and (text == behind[1] or text.endswith(")")):
        return {"session_hash": behind[1]}, ""
    names = session_names(newest(api))
    named = [each for each, name in names.items() if text in {name, name.rpartition(" (")[0]}]
    if len(named) != 1 and behind is not None and (text.startswith(behind[0]) or text.endswith(f"({behind[1]})")):
        named = [each for each in names if each.startswith(behind[1])]
    return ({"session_hash": named[0]}, "") if len(named) == 1 else ({}, text)
