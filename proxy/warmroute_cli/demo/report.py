"""What a person sees of a demo: progress while it runs, a table, one receipt, and what is wrong."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from warmroute.contract import receipt as receipts
from warmroute_cli.demo.audit import ClientTurn, Violation
from warmroute_cli.demo.results import Pass, token_sums

WIDTH = 120
VIOLATIONS_SHOWN = 10
NANO_PER_USD = 1e9
PLAIN_LINES = 4
"""Lines a pass prints on its way where the output is no terminal."""

CAVEAT = (
    "These are figures of the embedded engine: a model of a serving engine's scheduler and cache, not a measurement "
    "of any GPU."
)


class Advance(Protocol):
    """Called when one more turn is done."""

    def __call__(self, turn: ClientTurn, /) -> None: ...


def console() -> Console:
    """The terminal, or a page of fixed width where there is none."""
    found = Console(highlight=False)
    return found if found.is_terminal and found.width <= WIDTH else Console(highlight=False, width=WIDTH)


@contextmanager
def progress(out: Console, title: str, total: int) -> Iterator[Advance]:
    """A bar that grows by a turn; a few plain lines where the output is no terminal."""
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
    """Print the table, one receipt, and the caveat."""
    out.print()
    out.print(table(summary, on))
    out.print()
    best = _shown_turn(on.turns)
    if best is not None:
        out.print(f"The receipt of {best.label}, from the usage object of its answer:")
        out.print_json(json.dumps(best.usage), indent=2)
        out.print()
    out.print(CAVEAT)


def show_problems(out: Console, failures: Sequence[str], violations: Sequence[Violation]) -> None:
    """Why a demo failed."""
    for sentence in failures:
        out.print(f"FAILED: {sentence}", markup=False, soft_wrap=True)
    for violation in violations[:VIOLATIONS_SHOWN]:
        out.print(f"  {violation.sentence}", markup=False, soft_wrap=True)
    if len(violations) > VIOLATIONS_SHOWN:
        out.print(f"  and {len(violations) - VIOLATIONS_SHOWN} more")


def table(summary: Mapping[str, Any], on: Pass) -> Table:
    """Per harness and in total; tokens and money are those of the pass with affinity on."""
    found = Table(
        title="Affinity off (round robin) and on; tokens and prices: on",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        collapse_padding=True,
    )
    found.add_column("harness", no_wrap=True)
    for head in ("turns", "prompt\ntokens", "cached\ntokens", "hit\noff", "hit\non", "hit\nideal"):
        found.add_column(head, justify="right", no_wrap=True)
    for head in ("TTFT p50 ms\noff / on", "TTFT p90 ms\noff / on", "list\nUSD", "price\nUSD", "saved\nUSD"):
        found.add_column(head, justify="right", no_wrap=True)
    for name, figures in summary["by_harness"].items():
        found.add_row(name, *_cells(figures, [turn for turn in on.turns if turn.harness == name]))
    found.add_section()
    found.add_row("all", *_cells(summary, on.turns), style="bold")
    return found


def _cells(figures: Mapping[str, Any], turns: Sequence[ClientTurn]) -> Iterable[str]:
    prompt, cached = token_sums(turns)
    ratio, ttft, cost = figures["hit_ratio"], figures["ttft_ms"], figures["cost_nanousd"]
    yield from (f"{len(turns)}", f"{prompt:,}", f"{cached:,}")
    yield from (f"{ratio[name]:.1%}" for name in ("off", "on", "ideal_session"))
    yield from (f"{_ms(ttft['off'][rank])} / {_ms(ttft['on'][rank])}" for rank in ("p50", "p90"))
    amounts = (cost["list"], cost["charged"], cost["list"] - cost["charged"])
    yield from (f"{amount / NANO_PER_USD:.4f}" for amount in amounts)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _shown_turn(turns: Iterable[ClientTurn]) -> ClientTurn | None:
    """The turn with the most cached tokens: the one whose receipt shows most."""
    with_usage = [turn for turn in turns if turn.usage is not None]
    return max(with_usage, key=lambda turn: receipts.cached_tokens(turn.usage or {}), default=None)
