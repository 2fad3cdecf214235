"""A hook of MkDocs: tables of measurements with many rows are folded, so that a page of figures reads as text."""

import re
from typing import Any, Final

FOLDERS: Final = ("benchmarks/", "contribute/placement/", "spec/results")
MOST_ROWS: Final = 20

_TABLE: Final = re.compile(r"<table>.*?</table>", re.DOTALL)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The content of a page, with long tables folded if it is a page of measurements."""
    return folded(html) if page.file.src_uri.startswith(FOLDERS) else html


def folded(html: str) -> str:
    """Fold each table of more than `MOST_ROWS` rows, its head not counted."""
    return _TABLE.sub(lambda table: _fold(table[0], table[0].count("<tr>") - 1), html)


def _fold(table: str, rows: int) -> str:
    return f"<details><summary>The table: {rows} rows</summary>{table}</details>" if rows > MOST_ROWS else table
