"""What a person sees of a demo on real SGLang: every turn, the prediction error, the sums beside SGLang's own."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

CAVEAT = (
    "Cached tokens are SGLang's own count (0.5.23, prefill and decode over NIXL, a tiny random model on a CPU); times "
    "would say nothing about a GPU and are not shown."
)


def show(out: Console, summary: Mapping[str, Any]) -> None:
    out.print()
    out.print(table(summary))
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
    print_line(CAVEAT)


def table(summary: Mapping[str, Any]) -> Table:
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
