"""`warmroute conform URL`. Exits with 0: nothing failed, 1: a check failed, 2: not tried."""

import json
import sys
from argparse import Namespace
from collections.abc import Collection

from warmroute.contract.money import Rates, usd
from warmroute.files.printable import printable
from warmroute_cli.arguments import key_in
from warmroute_cli.tables import width
from warmroute_cli.usd_rates import rates_of
from warmroute_lab.conform.checks import Check, Cost, checks_of, cost_of, results_of
from warmroute_lab.conform.hiding import MAX_DEPTH, Hider
from warmroute_lab.conform.report import Results, as_dict, counted, table
from warmroute_lab.conform.trial import Allowed, Trial, TrialOptions
from warmroute_lab.conform.verdicts import FAIL, Cell
from warmroute_lab.conform.wire import Endpoint, NotReached


def run(arguments: Namespace) -> int:
    """Say what it costs, send the requests, and print what they show."""
    hider = Hider(())
    try:
        rates = None if arguments.price is None else rates_of(arguments.price)
        keys = _keys(arguments)
        hider = Hider(keys)
        endpoint = Endpoint(arguments.url, keys, arguments.timeout_s)
        options = TrialOptions(arguments.prompt_bytes, arguments.turns, arguments.other_key_file is not None, rates)
        plans = {api: checks_of(api, options) for api in dict.fromkeys(arguments.api)}
        costs = {api: cost_of(api, checks, options) for api, checks in plans.items()}
        print(f"warmroute conform: {_announced(costs.values(), rates)}", file=sys.stderr)
        if arguments.most_usd is not None:
            _within(costs.values(), rates, arguments.most_usd)
        if arguments.dry_run:
            return 0
        model = arguments.model or endpoint.models()[0]
        results: Results = {}
        for api, checks in plans.items():
            results[api] = _tried(Trial(endpoint, api, model, options, Allowed(*costs[api][:3])), checks, not results)
    except (NotReached, ValueError) as error:
        print(printable(hider.text(f"warmroute conform: {error}")), file=sys.stderr)
        return 2
    _print(arguments.json, endpoint, results)
    return int(any(cell.state == FAIL for _, cells in results.values() for cell in cells))


def _print(as_json: bool, endpoint: Endpoint, results: Results) -> None:
    """Print the results: whatever came from the endpoint, no key is in it."""
    if as_json:
        print(json.dumps(endpoint.hider.value(as_dict(endpoint.name, results), 2 * MAX_DEPTH), indent=2))
        return
    for api, (trial, cells) in results.items():
        lines = [*table(api, trial, cells, width()), "", f"{api}: {counted(cells)}", ""]
        print(endpoint.hider.text("\n".join(lines)))


def _tried(trial: Trial, checks: list[Check], is_first: bool) -> tuple[Trial, list[Cell]]:
    """The cells of an API. Raises: NotReached, where the first request of all gets no answer."""
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
    """Raises: ValueError, where it may cost more."""
    if rates is None:
        raise ValueError("--most-usd needs --price")
    if _nanousd(costs, rates) > most_usd * 1e9:
        raise ValueError(f"it may cost more than {most_usd:g} USD: nothing was sent; try --turns 1 or fewer APIs")


def _keys(arguments: Namespace) -> tuple[str, str]:
    """The keys of both tenants. Raises: ValueError."""
    first, second = (
        key_in(file) if file is not None else "" for file in (arguments.key_file, arguments.other_key_file)
    )
    if second and first == second:
        raise ValueError("--key-file and --other-key-file hold the same key: isolation needs keys of two tenants")
    return first, second
