"""Shows a run: a line that is updated while it runs, what failed, and a table of tiers at the end."""

import shutil
import sys
import time
from collections.abc import Iterable
from typing import Final

from scripts.tiers.counting import Count, summed
from scripts.tiers.running import Result, Run, Running
from scripts.tiers.steps import BY_FOLDER
from scripts.tiers.workers import NOTE

LOOK_S: Final = 0.5
LINE_EVERY_S: Final = 20.0
"""How often a new line is written if there is no terminal on which a line can be updated."""


class Screen:
    """Writes to standard output. On a terminal, the last line is updated in place."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._terminal = sys.stdout.isatty()
        self._next_s = 0.0
        self._moving = False

    def line(self, text: str) -> None:
        """Write a line that stays."""
        if self._moving:
            print("\r\033[K", end="")
            self._moving = False
        print(text, flush=True)

    def moving(self, run: Run) -> None:
        """Update the line that shows what runs now."""
        now_s = time.time()
        if not self._terminal and now_s < self._next_s:
            return
        self._next_s = now_s + LINE_EVERY_S
        text = f"{now_s - self._began_s:5.0f} s  " + ", ".join(_goes_on(run))
        if self._terminal:
            width = shutil.get_terminal_size().columns
            print(f"\r\033[K{text[: width - 1]}", end="", flush=True)
            self._moving = True
        else:
            print(text, flush=True)

    def ended(self, running: Running) -> None:
        """Write a line about a step that has ended, and its whole output if it failed."""
        said = running.log.read_text(errors="replace") if running.log.exists() else ""
        if running.result is not Result.OK:
            self.line(f"== {running.step.name}")
            self.line(said.rstrip() or "(it said nothing)")
        else:
            for note in (line for line in said.splitlines() if line.startswith(NOTE)):
                self.line(note)
        count = running.counter.total()
        tests = f", {_outcomes(count)}" if count.ended else ""
        self.line(
            f"== {running.step.name}: {running.result.value}{tests}, {running.wall_s:.0f} s, CPU {running.cpu_s:.0f} s"
        )


def table(run: Run, set_up_s: float, began_s: float) -> str:
    """A row for each tier, then how many tests passed."""
    rows = [("tier", "passed", "failed", "skipped", "time")]
    rows.append(("set-up", "", "", "", f"{set_up_s:.0f} s"))
    tiers: dict[str, list[Running]] = {}
    for running in run.steps.values():
        tiers.setdefault(running.step.shown_as, []).append(running)
    for tier, each in tiers.items():
        if tier == BY_FOLDER:
            rows += [
                _row(name, count, count.time_s) for one in each for name, count in sorted(one.counter.by_folder.items())
            ]
        elif any(one.counter.by_folder for one in each):
            rows += [_row(tier, one.counter.total(), one.wall_s) for one in each]
        else:
            passed = sum(one.result is Result.OK for one in each)
            rows.append(_row(tier, Count(passed=passed, failed=len(each) - passed), sum(one.wall_s for one in each)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(_cell(cell, width, column) for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    lines.insert(1, "─" * max(map(len, lines)))
    total = summed(one.counter.total() for one in run.steps.values())
    failures = f"{total.failed} failed, " if total.failed else ""
    lines += ["", f"{failures}{total.passed:,} passed in {time.time() - began_s:.0f} s"]
    return "\n".join(lines)


def _row(tier: str, count: Count, time_s: float) -> tuple[str, str, str, str, str]:
    return (tier, f"{count.passed:,}", f"{count.failed or ''}", f"{count.skipped or ''}", f"{time_s:.0f} s")


def _cell(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)


def _goes_on(run: Run) -> Iterable[str]:
    for running in run.steps.values():
        if running.result is Result.RUNS:
            running.counter.read()
            folders = running.counter.by_folder if running.step.tier == BY_FOLDER else {}
            if folders:
                yield from (
                    f"{name} {count.ended}/{count.planned}"
                    for name, count in folders.items()
                    if count.ended < count.planned
                )
            elif running.counter.by_folder:
                count = running.counter.total()
                yield f"{running.step.name} {count.ended}/{count.planned}"
            else:
                yield running.step.name


def _outcomes(count: Count) -> str:
    parts = ((count.failed, "failed"), (count.passed, "passed"), (count.skipped, "skipped"))
    return ", ".join(f"{number:,} {word}" for number, word in parts if number)
