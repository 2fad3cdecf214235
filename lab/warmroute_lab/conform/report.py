"""The results as a table for people, and as JSON."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from warmroute_cli.tables import GAP, LEAST_NOTES, Column, Row, fitted
from warmroute_lab.conform.trial import Trial
from warmroute_lab.conform.verdicts import FAIL, NOT_TRIED, Cell

VERSION = 1
"""Of the profile that is checked, and of this JSON."""

Results = dict[str, tuple[Trial, Sequence[Cell]]]
"""API -> what was sent, and a cell for each check."""


def table(api: str, trial: Trial, cells: Sequence[Cell], most: int) -> list[str]:
    """Format one API's results, wrapped to `most` except for requests that are longer."""
    title = trial.endpoint.hider.text(f"{api}, model {trial.model}")
    first = max(len(title), *(len(cell.check) for cell in cells))
    beside = most - first - len(NOT_TRIED) - 2 * len(GAP)
    line_width = beside if beside >= LEAST_NOTES else most - len(GAP)
    rows = [Row([cell.check, cell.state], _words(cell.finding, line_width)) for cell in cells]
    lines = fitted([Column(title), Column("state")], rows, "finding", most, "")
    for cell in cells:
        if cell.state == FAIL:
            lines += ["", f"{cell.check}: shown by"]
            for exchange in cell.shown_by:
                lines += textwrap.wrap(exchange.line(), most, initial_indent="  ", subsequent_indent="    ")
    return lines


def _words(finding: str, most: int) -> list[str]:
    """Its words; those that are longer than a line, such as a server's JSON, in pieces."""
    return [word[at : at + most] for word in finding.split() for at in range(0, len(word), most)]


def counted(cells: Sequence[Cell]) -> str:
    states = Counter(cell.state for cell in cells)
    return f"{states['pass']} pass, {states[FAIL]} fail, {states[NOT_TRIED]} not tried"


def as_dict(url: str, results: Results) -> dict[str, Any]:
    found: dict[str, Any] = {"v": VERSION, "url": url, "apis": {}}
    for api, (trial, cells) in results.items():
        counts = [each.counts for each in trial.sent]
        found["apis"][api] = {
            "model": trial.model,
            "requests": len(trial.sent),
            "prompt_tokens": sum(each.prompt or 0 for each in counts),
            "completion_tokens": sum(each.completion or 0 for each in counts),
            "server": next((each.headers["server"] for each in trial.sent if "server" in each.headers), ""),
            "cells": [cell.as_dict() for cell in cells],
        }
    cells = [cell for _, found_cells in results.values() for cell in found_cells]
    found["conforms"] = all(cell.state != FAIL for cell in cells)
    return found
