"""Lays out tables that fit any width of the terminal, and never cut a number or an id.

A table has the first of three shapes that fits: a line per row with its notes in a last column; a line per row with its
notes below it; a block per row, of a heading and `name value` pairs. Before a table becomes blocks, its optional
columns are left out, and a line names them. `at_work` prints a line if a command has printed nothing for `SILENT_S`.
"""

import contextlib
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TextIO

from warmroute.files.printable import printable

WIDTH_OF_PAGES: Final = 170
"""The width of output to a file or a pipe, unless `COLUMNS` is set."""

SILENT_S: Final = 2.0
"""Seconds without output after which a command reports that it is working."""

LEAST_NOTES: Final = 30
GAP: Final = "  "


class Column(NamedTuple):
    """A column. `optional`: left out if the table is too wide, the last optional column first."""

    name: str
    is_number: bool = False
    optional: bool = False


class Row(NamedTuple):
    """A row: a cell for each column, and notes. Lines may break between notes, but not within a note."""

    cells: Sequence[str]
    notes: Sequence[str] = ()


def width() -> int:
    """The width of the output: `COLUMNS`, else that of the terminal."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(20, shutil.get_terminal_size().columns)
    return WIDTH_OF_PAGES


@contextlib.contextmanager
def at_work(name: str, out: TextIO, wait: Callable[[threading.Event, float], bool] | None = None) -> Iterator[None]:
    """Within this context, report on a terminal after `SILENT_S` that the command is working."""
    ended, waited = threading.Event(), wait or threading.Event.wait
    if not out.isatty():
        yield
        return

    def report() -> None:
        if not waited(ended, SILENT_S):
            print(f"{name}: at work ...", file=out, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)


def fitted(columns: Sequence[Column], rows: Sequence[Row], notes_name: str, most: int, comma: str = ",") -> list[str]:
    """The lines of a table. A line is wider than `most` only if a single cell is. `comma`: the separator of notes,
    empty if the notes are the words of a sentence. Control characters are shown as escapes.
    """
    columns = [column._replace(name=printable(column.name)) for column in columns]
    rows = [Row([printable(cell) for cell in row.cells], [printable(note) for note in row.notes]) for row in rows]
    shown = list(range(len(columns)))
    widths = [max([len(column.name), *(len(row.cells[at]) for row in rows)]) for at, column in enumerate(columns)]
    notes = max([0, *(len(", ".join(row.notes)) for row in rows)])
    left_out: list[str] = []
    while _total(widths, shown) > most and any(columns[at].optional for at in shown):
        leaves = max(at for at in shown if columns[at].optional)
        shown.remove(leaves)
        left_out.insert(0, columns[leaves].name)
    if _total(widths, shown) > most:
        return _blocks(columns, rows, notes_name, most, comma)
    beside = most - _total(widths, shown) - len(GAP)
    if notes and beside >= min(max(LEAST_NOTES, len(notes_name)), max(notes, len(notes_name))):
        lines = _table(columns, rows, shown, widths, (notes_name, comma), beside)
    else:
        lines = _table(columns, rows, shown, widths, (notes_name, comma), 0, below=most)
    if left_out:
        lines += [
            "",
            *textwrap.wrap(f"Left out here: {', '.join(left_out)}. A wider terminal or --json shows them.", most),
        ]
    return lines


def wrapped(pieces: Sequence[str], most: int, comma: str = ",") -> list[str]:
    """Fill lines with pieces, separated by `comma`. A piece is never broken."""
    lines: list[str] = []
    for number, piece in enumerate(pieces):
        text = piece if number == len(pieces) - 1 else f"{piece}{comma}"
        if lines and len(lines[-1]) + 1 + len(text) <= most:
            lines[-1] = f"{lines[-1]} {text}"
        else:
            lines.append(text)
    return lines


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + len(GAP) * (len(shown) - 1)


def _table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    shown: Sequence[int],
    widths: Sequence[int],
    notes: tuple[str, str],
    beside: int,
    below: int = 0,
) -> list[str]:
    notes_name, comma = notes

    def line(cells: Sequence[str]) -> str:
        return GAP.join(
            [cells[at].rjust(widths[at]) if columns[at].is_number else cells[at].ljust(widths[at]) for at in shown]
        )

    head = line([column.name for column in columns])
    lines = [f"{head}{GAP}{notes_name}" if beside else head.rstrip()]
    indent = " " * len(head) + GAP
    for row in rows:
        text = line(row.cells)
        if beside:
            first, *more = wrapped(row.notes, beside, comma) or [""]
            lines += [f"{text}{GAP}{first}".rstrip(), *(f"{indent}{each}" for each in more)]
        else:
            lines.append(text.rstrip())
            if row.notes:
                given = wrapped([f"{notes_name}: {row.notes[0]}", *row.notes[1:]], below - len(GAP), comma)
                lines += [f"{GAP}{each}" for each in given]
    return lines


def _blocks(columns: Sequence[Column], rows: Sequence[Row], notes_name: str, most: int, comma: str) -> list[str]:
    lines: list[str] = []
    for row in rows:
        pairs = [f"{column.name} {cell}" for column, cell in zip(columns[1:], row.cells[1:], strict=True)]
        lines += ["", row.cells[0], *(f"{GAP}{each}" for each in wrapped(pairs, most - len(GAP), ""))]
        if row.notes:
            given = wrapped([f"{notes_name}: {row.notes[0]}", *row.notes[1:]], most - len(GAP), comma)
            lines += [f"{GAP}{each}" for each in given]
    return lines[1:]
