#!/usr/bin/env python3
"""Write the diagrams of the state tables into their pages, between markers. `--check` only compares.

The tables are those of `warmroute_proxy.server.request.states` and of `warmroute_backend.launch.states`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from warmroute_backend.launch.states import TABLE, State
from warmroute_proxy.server.request.states import ATTEMPT, REQUEST, diagram

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"


def of_launch() -> str:
    """The life of a launched process."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.WAITING}"]
    lines += [f"    {state} --> {after}: {event}" for state, row in TABLE.items() for event, after in row.items()]
    return "\n".join([*lines, "```"])


PAGES: Final = {
    DOCS / "contribute" / "architecture.md": {"request": diagram(REQUEST), "attempt": diagram(ATTEMPT)},
    DOCS / "reference" / "launch.md": {"launch": of_launch()},
}


def with_diagrams(page: str, diagrams: Mapping[str, str]) -> str:
    """The page with the diagrams of the tables as they are now."""
    for name, text in diagrams.items():
        marker = f"<!-- states:{name} -->\n"
        before, found, rest = page.partition(marker)
        if not found:
            raise ValueError(f"the page has no marker {marker.strip()}")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{marker}{text}\n{end}{after}"
    return page


def main() -> int:
    """The command line."""
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
