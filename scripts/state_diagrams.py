#!/usr/bin/env python3
"""Writes diagrams of states and the map of packages into pages of the docs, between markers, as read from the code.

    scripts/state_diagrams.py            writes the pages
    scripts/state_diagrams.py --check    fails if a page differs from what would be written

The tables of states are in `warmroute_proxy.server.request.states` and `warmroute_backend.launch.states`. A line of the
map is the first line of a package's docstring.
"""

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from warmroute_backend.launch import states as launch
from warmroute_proxy.server.request.states import ATTEMPT, REQUEST, Event, State

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
SOURCES: Final = "https://github.com/warmroute/warmroute/blob/main/"


def diagram(table: Mapping[tuple[State, Event], State]) -> str:
    """The table as a Mermaid state diagram. An event that leads from all states to one state is drawn only once."""
    states = type(next(iter(table.values())))
    targets: dict[Event, list[State]] = {}
    for (_, event), after in table.items():
        targets.setdefault(event, []).append(after)
    common = {event: after[0] for event, after in targets.items() if len(after) == len(states) and len(set(after)) == 1}
    drawn: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in table.items():
        if event not in common:
            drawn.setdefault((state.name.lower(), after.name.lower()), []).append(event.name.lower())
    lines = [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in drawn.items()]
    anywhere = [f"    any_state --> {after.name.lower()}: {event.name.lower()}" for event, after in common.items()]
    first = next(iter(states)).name.lower()
    ends = [state.name.lower() for state in states if not any(before is state for before, _ in _moves(table, common))]
    return "\n".join(
        [
            "```mermaid",
            "stateDiagram-v2",
            f"    [*] --> {first}",
            *lines,
            *anywhere,
            *(f"    {end} --> [*]" for end in ends),
            "```",
        ]
    )


def _moves(table: Mapping[tuple[State, Event], State], common: Mapping[Event, State]) -> list[tuple[State, State]]:
    """The transitions from a state to a different one, without the `common` events."""
    return [(state, after) for (state, event), after in table.items() if event not in common and after is not state]


def of_launch() -> str:
    """The diagram of a launched process's states."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {launch.State.WAITING}"]
    lines += [
        f"    {state} --> {after}: {event}" for state, row in launch.TABLE.items() for event, after in row.items()
    ]
    return "\n".join([*lines, "```"])


def rooms() -> str:
    """All packages, each with the first line of its docstring."""
    lines = ["| package | purpose |", "|---|---|"]
    for folder in ("sdk", "proxy", "backend", "lab"):
        for path in sorted((ROOT / folder).rglob("__init__.py"), key=lambda path: path.parent.parts):
            name = path.parent.relative_to(ROOT / folder).as_posix().replace("/", ".")
            purpose = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
            lines.append(f"| [{name}]({SOURCES}{path.relative_to(ROOT).as_posix()}) | {purpose} |")
    return "\n".join(lines)


PAGES: Final = {
    DOCS / "contribute" / "architecture.md": {
        "rooms": rooms(),
        "request": diagram(REQUEST),
        "attempt": diagram(ATTEMPT),
    },
    DOCS / "reference" / "launch.md": {"launch": of_launch()},
}


def with_diagrams(page: str, diagrams: Mapping[str, str]) -> str:
    """The page with the diagrams in place of those between its markers."""
    for name, text in diagrams.items():
        marker = f"<!-- states:{name} -->\n"
        before, found, rest = page.partition(marker)
        if not found:
            raise ValueError(f"the page has no marker {marker.strip()}")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{marker}{text}\n{end}{after}"
    return page


def main() -> int:
    stale = 0
    for path, diagrams in PAGES.items():
        page = path.read_text()
        current = with_diagrams(page, diagrams)
        stale += page != current
        if "--check" not in sys.argv[1:]:
            path.write_text(current)
    return int(stale > 0 and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
