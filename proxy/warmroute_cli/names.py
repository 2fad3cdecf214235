"""Makes readable names of sessions and agents, and finds the session that a text names.

Session keys are secret, so receipts have only hashes of them. A session without a name is called by its program and
start time. Each name ends with the beginning of the session's hash, to tell sessions with equal names apart. Names are
read from the `MOST` newest turns.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from warmroute_cli.api import ApiError

if TYPE_CHECKING:
    from warmroute_cli.api import Api
    from warmroute_cli.asking import OperatorsApi
    from warmroute_cli.past import PastFleet

MOST: Final = "200"
SHORT_HASH: Final = 6
LEAST_HASH: Final = 4
WHOLE_HASH: Final = 16
UNNAMED: Final = "client"
"""Stands for the program if a turn does not state it."""

_HASH: Final = re.compile(r"[0-9a-f]{16}")
_BEHIND: Final = re.compile(rf"\(?([0-9a-f]{{{LEAST_HASH},16}})\)?$")

Turns = Iterable[Mapping[str, Any]]


def newest(api: "Api | OperatorsApi | PastFleet", since: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The newest turns; empty if the API does not answer."""
    try:
        found: list[dict[str, Any]] = api.ask("/usage/receipts", {"limit": MOST, **(since or {})})["data"]
    except ApiError:
        return []
    return found


def session_names(turns: Turns) -> dict[str, str]:
    """Hash of a session -> its name. `turns`: the newest first."""
    found: dict[str, str] = {}
    for turn in turns:  # the oldest turn of a session is the last to set its name
        session = turn["session"]
        if session:
            began = datetime.fromtimestamp(turn["settled_at"]).astimezone()
            today = datetime.now().astimezone().date() == began.date()
            start = began.strftime("%H:%M" if today else "%m-%d %H:%M")
            found[session] = turn.get("name") or f"{turn.get('harness') or UNNAMED} {start}"
    return {session: f"{name} ({session[:SHORT_HASH]})" for session, name in found.items()}


def agent_name(turn: Mapping[str, Any], numbers: dict[str, dict[str, int]]) -> str:
    """The name of a turn's agent: its own name, its kind, `main`, or kind and number, like `sub 2`, if it only has an
    id. `numbers`: the numbers given so far, by session and kind; a new agent is added.
    """
    agent, kind = turn.get("agent") or "", turn.get("kind") or ""
    if not _HASH.fullmatch(agent):
        return agent or kind or "main"
    if kind in {"", "main"}:
        return "main"
    known = numbers.setdefault(f"{turn['session']} {kind}", {})
    return f"{kind} {known.setdefault(agent, len(known) + 1)}"


def agent_names(turns: Turns) -> list[str]:
    """The name of each turn's agent. `turns`: the newest first."""
    numbers: dict[str, dict[str, int]] = {}
    return [agent_name(turn, numbers) for turn in reversed(list(turns))][::-1]


def question_of(api: "Api | OperatorsApi | PastFleet", text: str) -> tuple[dict[str, str], str]:
    """Find the session that a text names. Returns the query parameter with the session's hash, and the session's key
    for the header. One of the two is empty.

    The text is a name as a table prints it, a hash or its beginning, or else a key.
    """
    behind = _BEHIND.search(text)
    if behind is not None and len(behind[1]) == WHOLE_HASH and (text == behind[1] or text.endswith(")")):
        return {"session_hash": behind[1]}, ""
    names = session_names(newest(api))
    named = [each for each, name in names.items() if text in {name, name.rpartition(" (")[0]}]
    if len(named) != 1 and behind is not None and (text.startswith(behind[0]) or text.endswith(f"({behind[1]})")):
        named = [each for each in names if each.startswith(behind[1])]
    return ({"session_hash": named[0]}, "") if len(named) == 1 else ({}, text)
