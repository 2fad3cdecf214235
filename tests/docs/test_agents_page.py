"""docs/how-to/agents.md has a line for each program and library that is tried, and for many that are not."""

import re
from pathlib import Path

from tests.field.agents.cases import CASES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/agents.md").read_text()
TABLE = PAGE.partition("<!-- agents -->")[2].partition("<!-- end of agents -->")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.strip().splitlines()[2:]]
TITLES = {"pydantic-ai": "Pydantic AI", "qwen-code": "Qwen Code"}
"""Sections of the page of snippets, where they are spelled otherwise."""


def test_there_are_forty_lines_and_each_says_how_a_key_is_set() -> None:
    assert len(ROWS) >= 40
    assert len({row[0] for row in ROWS}) == len(ROWS)
    for _, api, key, breaks, tried in ROWS:
        assert set(api.split(", ")) <= {"chat", "Responses", "Messages", "Gemini"}
        assert key
        assert breaks
        assert tried in {"yes", ""}


def test_all_that_is_tried_is_there() -> None:
    snippets = (ROOT / "docs/how-to/integrations.md").read_text()
    sections = [title for title in re.findall(r"^## (.+)$", snippets, re.MULTILINE) if not title.startswith("What ")]
    tried = {row[0] for row in ROWS if row[4] == "yes"}
    assert {case.title for case in CASES.values()} <= tried
    assert {TITLES.get(title, title) for title in sections} <= tried
