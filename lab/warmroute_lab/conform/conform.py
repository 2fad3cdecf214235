"""Runs `warmroute conform URL`. Exit codes: 0: nothing failed; 1: a check failed; 2: the endpoint was not tested."""

import argparse
import json
import sys
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from warmroute.contract.money import Rates, usd
from warmroute.files.printable import printable
from warmroute_cli.arguments import above_zero, count, keys_in, rates_of
from warmroute_cli.tables import GAP, LEAST_NOTES, Column, Row, fitted, width
from warmroute_lab.conform.checks import Check, checks_of, cost_of, results_of
from warmroute_lab.conform.trial import FAIL, NOT_TRIED, Cell, Cost, Trial, TrialOptions
from warmroute_lab.conform.wire import MAX_DEPTH, Endpoint, Hider, NotReached

APIS: Final = ("openai", "anthropic", "gemini", "responses")


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("url", metavar="URL", help="address of the endpoint, with or without /v1")
    option("--api", choices=APIS, nargs="+", default=["openai"], metavar="API", help=f"of {', '.join(APIS)} (openai)")
    option("--model", metavar="NAME", help="the model to ask (default: the first of /v1/models)")
    option("--key-file", type=Path, metavar="FILE", help="file with the API key (default: none)")
    option("--other-key-file", type=Path, metavar="FILE", help="key of another tenant, to try isolation")
    option(
        "--prompt-bytes", type=count, default=6_000, metavar="N",
        help="size of the prompts; some servers cache from 1,024 tokens on (%(default)d)",
    )  # fmt: skip
    option("--turns", type=count, default=3, metavar="N", help="turns that must find their prompt again (%(default)d)")
    option("--price", metavar="INPUT:CACHED:OUTPUT", help="USD per million tokens, to state the cost of the requests")
    option("--most-usd", type=above_zero, metavar="USD", help="send nothing if it may cost more; needs --price")
    option("--timeout-s", type=above_zero, default=120.0, metavar="S", help="for one whole answer (%(default)g)")
    option("--dry-run", action="store_true", help="print the requests and their cost, and send none")
    option("--json", action="store_true", help="print JSON")


VERSION = 1
"""The version of the profile that is checked, and of the JSON that is printed."""

Results = dict[str, tuple[Trial, Sequence[Cell]]]
"""API -> the requests that were sent, and the result of each check."""


def table(api: str, trial: Trial, cells: Sequence[Cell], most: int) -> list[str]:
    """The lines of one API's results, at most `most` characters wide, except for requests that cannot be wrapped."""
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
    """The words of a finding. Words longer than `most`, such as a server's JSON, are cut into pieces."""
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


def run(arguments: Namespace) -> int:
    """Print what the requests cost at most, send them, and print the results. Returns the exit code."""
    hider = Hider(())
    try:
        rates = None if arguments.price is None else rates_of(arguments.price)
        keys = keys_in({"--key-file": arguments.key_file, "--other-key-file": arguments.other_key_file})
        hider = Hider(keys)
        endpoint = Endpoint(arguments.url, keys, arguments.timeout_s)
        options = TrialOptions(arguments.prompt_bytes, arguments.turns, arguments.other_key_file is not None, rates)
        plans = {api: checks_of(api, options) for api in dict.fromkeys(arguments.api)}
        costs = {api: cost_of(api, checks, options) for api, checks in plans.items()}
        announced = f"warmroute conform: {_announced(costs.values(), rates)}"
        print(textwrap.fill(announced, width(), break_long_words=False, break_on_hyphens=False), file=sys.stderr)
        if arguments.most_usd is not None:
            _within(costs.values(), rates, arguments.most_usd)
        if arguments.dry_run:
            return 0
        model = arguments.model or endpoint.models()[0]
        results: Results = {}
        for api, checks in plans.items():
            results[api] = _tried(Trial(endpoint, api, model, options, costs[api]), checks, not results)
    except (NotReached, ValueError) as error:
        print(printable(hider.text(f"warmroute conform: {error}")), file=sys.stderr)
        return 2
    _print(arguments.json, endpoint, results)
    return int(any(cell.state == FAIL for _, cells in results.values() for cell in cells))


def _print(as_json: bool, endpoint: Endpoint, results: Results) -> None:
    """Print the results without keys, even if the endpoint sent one back."""
    if as_json:
        print(json.dumps(endpoint.hider.value(as_dict(endpoint.name, results), 2 * MAX_DEPTH), indent=2))
        return
    for api, (trial, cells) in results.items():
        lines = [*table(api, trial, cells, width()), "", f"{api}: {counted(cells)}", ""]
        print(endpoint.hider.text("\n".join(lines)))


def _tried(trial: Trial, checks: list[Check], is_first: bool) -> tuple[Trial, list[Cell]]:
    """Run the checks of an API. Raises: NotReached, if this is the first API and its first request gets no answer."""
    cells: list[Cell] = []
    for cell in results_of(checks, trial):
        cells.append(cell)
        if is_first and trial.sent and trial.sent[0].status == 0:
            raise NotReached(trial.sent[0].error)
        if sys.stderr.isatty():
            print(f"\r{trial.api}: {len(cells)} of {len(checks)} checks", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return trial, cells


def _announced(costs: Collection[Cost], rates: Rates | None) -> str:
    requests, prompt_tokens = sum(cost.requests for cost in costs), sum(cost.prompt_tokens for cost in costs)
    text = f"at most {requests} requests with {prompt_tokens:,} prompt tokens in all"
    if rates is None:
        return f"{text}; --price states their cost"
    return f"{text}, at most {usd(_nanousd(costs, rates))} USD"


def _nanousd(costs: Collection[Cost], rates: Rates) -> int:
    return sum(cost.nanousd(rates) for cost in costs)


def _within(costs: Collection[Cost], rates: Rates | None, most_usd: float) -> None:
    """Raises: ValueError, if the requests may cost more than `most_usd`, or if `rates` is None."""
    if rates is None:
        raise ValueError("--most-usd needs --price")
    if _nanousd(costs, rates) > most_usd * 1e9:
        raise ValueError(f"it may cost more than {most_usd:g} USD: nothing was sent; try --turns 1 or fewer APIs")
