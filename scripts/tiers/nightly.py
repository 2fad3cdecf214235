"""Writes a row about a complete run of `scripts/test nightly` into docs/contribute/nightly.md, the newest first."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scripts.tiers.counting import summed
from scripts.tiers.running import Run

PAGE: Final = Path("docs/contribute/nightly.md")
HEAD: Final = "|---|---|---|---|---|\n"
MAX_ROWS: Final = 30


def record(ran: Run, took_s: float) -> None:
    """Add the row of this run to the page, and remove the oldest rows."""
    commit = subprocess.run(
        ("git", "rev-parse", "--short=8", "HEAD"), capture_output=True, text=True, check=True
    ).stdout.strip()
    page = PAGE.read_text()
    PAGE.write_text(with_row(page, row(datetime.now(UTC).date().isoformat(), commit, ran, took_s)))


def row(date: str, commit: str, ran: Run, took_s: float) -> str:
    """A row: date, commit, numbers of tests passed, failed and skipped, minutes, and the steps that failed."""
    count = summed(each.counter.total() for each in ran.steps.values())
    failed = ", ".join(each.step.name for each in ran.failed) or "nothing"
    counts = f"{count.passed:,} passed, {count.failed} failed, {count.skipped} skipped"
    return f"| {date} | `{commit}` | {counts} | {took_s / 60:.0f} | {failed} |\n"


def with_row(page: str, new: str) -> str:
    """The page with a new row at the head of its table."""
    before, head, rows = page.partition(HEAD)
    kept = rows.splitlines(keepends=True)[: MAX_ROWS - 1]
    return f"{before}{head}{new}{''.join(kept)}"
