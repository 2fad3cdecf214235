"""`warmroute conform URL`. Exits with 0: nothing failed, 1: a check failed, 2: not tried."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from warmroute.contract.money import Rates, usd
from warmroute_cli.conform.checks import Check, Cost, checks_of, cost_of
from warmroute_cli.conform.report import as_dict, counted, table
from warmroute_cli.conform.trial import Trial, TrialOptions
from warmroute_cli.conform.verdicts import FAIL, Cell
from warmroute_cli.conform.wire import Endpoint, NotReached
from warmroute_cli.tables import width
from warmroute_cli.usd_rates import rates_of

MAX_KEY_BYTES: Final = 4_096


def run(arguments: Namespace) -> int:
    """Say what it costs, send the requests, and print what they show."""
    try:
        rates = None if arguments.price is None else rates_of(arguments.price)
        keys = tuple(_key(file) for file in (arguments.key_file, arguments.other_key_file))
        endpoint = Endpoint(arguments.url, keys, arguments.timeout_s)
        options = TrialOptions(arguments.prompt_bytes, arguments.turns, arguments.other_key_file is not None, rates)
        plans = {api: checks_of(api, options) for api in dict.fromkeys(arguments.api)}
        cost = cost_of([check for checks in plans.values() for check in checks], options)
        print(f"warmroute conform: {_announced(cost, rates)}", file=sys.stderr)
        if arguments.most_usd is not None:
            _within(cost, rates, arguments.most_usd)
        if arguments.dry_run:
            return 0
        model = arguments.model or endpoint.models()[0]
    except (NotReached, ValueError) as error:
        print(f"warmroute conform: {error}", file=sys.stderr)
        return 2
    results = {api: _tried(endpoint, api, model, options, checks) for api, checks in plans.items()}
    if arguments.json:
        print(json.dumps(as_dict(endpoint.name, results), indent=2))
    else:
        for api, (trial, cells) in results.items():
            print("\n".join([*table(api, trial, cells, width()), "", f"{api}: {counted(cells)}", ""]))
    return int(any(cell.state == FAIL for _, cells in results.values() for cell in cells))


def _tried(
    endpoint: Endpoint, api: str, model: str, options: TrialOptions, checks: list[Check]
) -> tuple[Trial, list[Cell]]:
    trial, cells = Trial(endpoint, api, model, options, sum(check.requests for check in checks)), []
    for check in checks:
        cells.append(check.run(trial))
        if sys.stderr.isatty():
            print(f"\r{api}: {len(cells)} of {len(checks)} checks", end="", file=sys.stderr, flush=True)
        if cells[0].state == FAIL and not trial.sent[0].ok:
            break  # nothing answers: the other checks would only say so again
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return trial, cells


def _announced(cost: Cost, rates: Rates | None) -> str:
    text = f"at most {cost.requests} requests with {cost.prompt_tokens:,} prompt tokens in all"
    if rates is None:
        return f"{text}; --price says what they cost"
    return f"{text}, at most {usd(cost.nanousd(rates))} USD"


def _within(cost: Cost, rates: Rates | None, most_usd: float) -> None:
    """Raises: ValueError, where it may cost more."""
    if rates is None:
        raise ValueError("--most-usd needs --price")
    if cost.nanousd(rates) > most_usd * 1e9:
        raise ValueError(f"it may cost more than {most_usd:g} USD: nothing was sent; try --turns 1 or fewer APIs")


def _key(file: Path | None) -> str:
    """Raises: ValueError, where a file holds none."""
    if file is None:
        return ""
    try:
        key = file.read_bytes()[:MAX_KEY_BYTES].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"{file} cannot be read: {reason}") from None
    if not key or not key.isprintable():
        raise ValueError(f"{file} holds no key")
    return key
