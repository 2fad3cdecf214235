"""What a person sees of a demo: progress while it runs, a table, one receipt, and what is wrong."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from warmroute.contract import receipt as receipts
from warmroute_cli.tables import Column, Row, fitted, width
from warmroute_lab.demo.audit import ClientTurn, Violation
from warmroute_lab.demo.results import Pass, token_sums

WIDTH = 120
VIOLATIONS_SHOWN = 10
NANO_PER_USD = 1e9
PLAIN_LINES = 4
"""Lines of progress for each pass if the output is not a terminal."""

_LESS: Final = frozenset({"prompt", "cached", "TTFT p50 ms", "list USD"})
"""Columns that a narrow terminal leaves out. TTFT p90 stays: it shows the gain of affinity, the median does not."""

_COLUMNS: Final = (
    Column("harness"),
    *(Column(name, is_number=True, optional=name in _LESS) for name in (
        "turns", "prompt", "ideal", "hit off", "hit on", "TTFT p90 ms", "TTFT p50 ms", "cached", "list USD",
        "cost USD", "saved USD",
    )),
)  # fmt: skip

EXACT = (
    "Turns, prompt, ideal and list follow from the recordings and are the same in each run. The others depend on which "
    "turns meet: each run has its own. Ideal: the share of the prompt that one cache for all turns would have had."
)
CAVEAT = (
    "These are figures of the embedded engine: a model of a serving engine's scheduler and cache, not a measurement "
    "of any GPU."
)


def console() -> Console:
    """The terminal, or a page of fixed width if there is none."""
    return Console(highlight=False, width=min(WIDTH, width()))


@contextmanager
def progress(out: Console, title: str, total: int) -> Iterator[Callable[[ClientTurn], None]]:
    """A progress bar that counts turns; a few plain lines if the output is not a terminal. Yields a function, to be
    called with each turn that is done."""
    done = 0
    if not out.is_terminal:
        step = max(1, total // PLAIN_LINES)

        def line(_turn: ClientTurn) -> None:
            nonlocal done
            done += 1
            if done % step == 0 or done == total:
                out.print(f"{title}: {done} of {total} turns")

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[last]}"), console=out) as bar:
        task = bar.add_task(title, total=total, last="")

        def advance(turn: ClientTurn) -> None:
            bar.update(task, advance=1, last=turn.label)

        yield advance


def show(out: Console, summary: Mapping[str, Any], on: Pass) -> None:
    out.print()
    best = _shown_turn(on.turns)
    if best is not None:
        out.print(f"The receipt of {best.label}, from the usage object of its answer:")
        out.print_json(json.dumps(best.usage), indent=2)
        out.print()
    out.print("Affinity off (round robin), then on. Cached tokens and USD: with affinity on.")
    out.print("\n".join(table(summary, on, out.width)), markup=False, soft_wrap=True)
    out.print()
    out.print(EXACT)
    out.print(CAVEAT)


def show_problems(out: Console, failures: Sequence[str], violations: Sequence[Violation]) -> None:
    for sentence in failures:
        out.print(f"FAILED: {sentence}", markup=False, soft_wrap=True)
    for violation in violations[:VIOLATIONS_SHOWN]:
        out.print(f"  {violation.sentence}", markup=False, soft_wrap=True)
    if len(violations) > VIOLATIONS_SHOWN:
        out.print(f"  and {len(violations) - VIOLATIONS_SHOWN} more")


def table(summary: Mapping[str, Any], on: Pass, most: int) -> list[str]:
    """The lines of the table: a row for each harness, and the total. Tokens and money are of the pass with affinity."""
    rows = [
        Row([name, *_cells(figures, [turn for turn in on.turns if turn.harness == name])])
        for name, figures in summary["by_harness"].items()
    ]
    return fitted(_COLUMNS, [*rows, Row(["all", *_cells(summary, on.turns)])], "", most)


def _cells(figures: Mapping[str, Any], turns: Sequence[ClientTurn]) -> Iterable[str]:
    prompt, cached = token_sums(turns)
    ratio, ttft, cost = figures["hit_ratio"], figures["ttft_ms"], figures["cost_nanousd"]
    yield from (f"{len(turns)}", f"{prompt:,}")
    yield from (f"{ratio[name]:.1%}" for name in ("ideal_shared", "off", "on"))
    yield from (f"{_ms(ttft['off'][rank])} / {_ms(ttft['on'][rank])}" for rank in ("p90", "p50"))
    yield f"{cached:,}"
    amounts = (cost["list"], cost["charged"], cost["list"] - cost["charged"])
    yield from (f"{amount / NANO_PER_USD:.4f}" for amount in amounts)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _shown_turn(turns: Iterable[ClientTurn]) -> ClientTurn | None:
    """The turn with the most cached tokens, whose receipt is shown."""
    with_usage = [turn for turn in turns if turn.usage is not None]
    return max(with_usage, key=lambda turn: receipts.cached_tokens(turn.usage or {}), default=None)


SGLANG_CAVEAT = (
    "Cached tokens are SGLang's own count (0.5.23, prefill and decode over NIXL, a tiny random model on a CPU); times "
    "would say nothing about a GPU and are not shown."
)


def show_sglang(out: Console, summary: Mapping[str, Any]) -> None:
    out.print()
    out.print(_sglang_table(summary))
    out.print()
    error, engine = summary["prediction_error"], summary["engine_counters"]
    print_line = partial(out.print, markup=False, soft_wrap=True)
    print_line(
        f"{summary['requests']} requests, {summary['receipts']} receipts checked by the SDK, "
        f"{summary['ledger_rows']} ledger rows, {summary['invariant_violations']} violations"
    )
    print_line(
        f"prompt tokens {summary['prompt_tokens']:,}, of which cached {summary['cached_tokens']:,} "
        f"({summary['hit_ratio']:.1%}); SGLang's counters: {engine['prompt_tokens']:,} and "
        f"{engine['cached_tokens']:,}"
    )
    print_line(
        f"prediction error (predicted - reported, share of the prompt): p50 {_share(error['p50'])}, "
        f"p95 {_share(error['p95'])}; without sign: p50 {_share(error['absolute_p50'])}, "
        f"p95 {_share(error['absolute_p95'])}"
    )
    print_line(SGLANG_CAVEAT)


def _sglang_table(summary: Mapping[str, Any]) -> Table:
    """A row for each turn, in the order of arrival."""
    found = Table(title="Cached tokens as SGLang reported them", box=box.SIMPLE_HEAD, show_edge=False)
    found.add_column("turn", no_wrap=True)
    for head in ("prompt", "cached", "predicted", "error", "device", "host", "storage"):
        found.add_column(head, justify="right", no_wrap=True)
    for turn in summary["turns"]:
        tokens = (turn["prompt_tokens"], turn["cached_tokens"], turn["predicted_cached"])
        tiers = (turn["cached"][tier] for tier in ("device", "host", "storage"))
        cells = [f"{value:,}" for value in tokens]
        found.add_row(turn["turn"], *cells, _share(turn["prediction_error"]), *(f"{value:,}" for value in tiers))
    return found


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"
