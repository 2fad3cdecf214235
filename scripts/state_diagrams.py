#!/usr/bin/env python3
"""Write the diagrams of the state tables into docs/architecture.md, between their markers. `--check` only compares.

The tables are those of `warmroute_proxy.server.request.states`.
"""

import sys
from pathlib import Path
from typing import Final

from warmroute_proxy.server.request.states import ATTEMPT, REQUEST, diagram

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"


def with_diagrams(page: str) -> str:
    """The page with the diagrams of the tables as they are now."""
    for name, text in (("request", diagram(REQUEST)), ("attempt", diagram(ATTEMPT))):
        marker = f"<!-- states:{name} -->\n"
        before, found, rest = page.partition(marker)
        if not found:
            raise ValueError(f"{PAGE.name} has no marker {marker.strip()}")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{marker}{text}\n{end}{after}"
    return page


def main() -> int:
    """The command line."""
    page = PAGE.read_text()
    current = with_diagrams(page)
    if "--check" in sys.argv[1:]:
        return int(page != current)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
