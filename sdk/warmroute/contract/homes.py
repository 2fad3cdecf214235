"""The home of each lineage: the region that the server named in the head of the lineage's last answer.

A *lineage* is turns whose prompts continue each other. One session has several lineages: the main loop, titles,
compactions, sub-agents. Each lineage has a separate home, so that a lineage served elsewhere does not move the others.
A new lineage begins at the home of its session's longest lineage, or else at that of its parent session's longest
lineage. Limit: `MAX_HOMES`; the least recently used home is dropped first.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from warmroute.contract.bounded import put
from warmroute.contract.identity import lineage_parts

MAX_HOMES: Final = 10_000
MAX_SYSTEM_CHARS: Final = 4_096  # the part of a system prompt that is compared
_NUMBERS: Final = re.compile(r"\d+")


class Lineage(NamedTuple):
    """A lineage at a server. `parent`: the session that started `session`, or empty. `prompt`: a digest of what all
    prompts of the lineage have in common. `parts`: the number of tools and messages in the current prompt.
    """

    base_url: str
    session: str
    parent: str
    prompt: int
    parts: int


class _SessionHome(NamedTuple):
    region: str
    prompt: int
    parts: int


class Homes:
    """The homes of lineages and sessions. Not thread-safe."""

    def __init__(self, max_homes: int = MAX_HOMES) -> None:
        self._max = max_homes
        self._by_lineage: OrderedDict[tuple[str, str, int], str] = OrderedDict()
        self._by_session: OrderedDict[tuple[str, str], _SessionHome] = OrderedDict()

    def of(self, lineage: Lineage) -> str | None:
        """The first known home: that of the lineage, of its session or of its parent session; else None."""
        base_url, session, parent, prompt, _ = lineage
        home = self._by_lineage.get((base_url, session, prompt))
        if home is not None:
            self._by_lineage.move_to_end((base_url, session, prompt))
            return home
        found = self._by_session.get((base_url, session)) or self._by_session.get((base_url, parent))
        return None if found is None else found.region

    def of_session(self, session: str) -> dict[str, str]:
        """The home of a session at each server."""
        return {base_url: home.region for (base_url, key), home in self._by_session.items() if key == session}

    def put(self, base_url: str, session: str, region: str) -> None:
        """Note the home of a session, which is where the session's next lineage begins."""
        put(self._by_session, (base_url, session), _SessionHome(region, 0, 0), self._max)

    def answered(self, lineage: Lineage, region: str) -> None:
        """Note the region that has served a lineage."""
        base_url, session, _, prompt, parts = lineage
        put(self._by_lineage, (base_url, session, prompt), region, self._max)
        home = self._by_session.get((base_url, session))
        if home is None or home.prompt == prompt or home.parts < parts:
            home = _SessionHome(region, prompt, parts)
        put(self._by_session, (base_url, session), home, self._max)


def lineage_of(
    base_url: str, session: str | None, caller: Mapping[str, object], body: Mapping[str, Any]
) -> Lineage | None:
    """The lineage of a call; None without a session. `caller`: the headers that the caller has set, in lower case.

    Of tools, only the names count. Of system prompts, the beginning without numbers counts, so that a date changes
    nothing.
    """
    if session is None:
        return None
    agent, parent = lineage_parts({name: value for name, value in caller.items() if isinstance(value, str)})
    tools, messages = _items(body.get("tools")), _items(body.get("messages") or body.get("input"))
    system = [message.get("content") for message in takewhile(_is_system, messages)]
    text = _NUMBERS.sub("#", repr((body.get("system") or body.get("instructions"), system))[:MAX_SYSTEM_CHARS])
    common = hash((str(body.get("model")), agent, tuple(map(_name, tools)), text))
    return Lineage(base_url, session, parent, common, len(tools) + len(messages))


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _is_system(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _name(tool: object) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else ""
