"""Forks: several sub-agents that continue one prompt. The simulations, and the tables of docs/benchmarks/forks.md.

warmroute has two bars: in each column the figure of the best other router, and 1.3 times the tokens that a single cache
for all workers would compute. The constants of `core.placement.forks` were chosen at seeds 1 and 2 of these rows
and of rows that are not here, never at `SEEDS`.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bench.page import put
from bench.placement.tables import table

from warmroute_lab.replay.made_up import made_up
from warmroute_lab.replay.setup import Setup, run

PAGE: Final = Path("docs/benchmarks/forks.md")
BEGIN: Final = "<!-- forks -->"
END: Final = "<!-- end of forks -->"

SEEDS: Final = (31, 32, 33, 34, 35)
OURS: Final = "warmroute"
ROUTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "llm-d": ("llmd_affinity",),
    "SMG": ("smg_event",),
    "Dynamo": ("dynamo_kv", "dynamo_kv+scale16"),
}
FLEETS: Final[Mapping[str, Setup]] = {
    "": Setup(8, kv_tokens=1_500_000),
    "with a store": Setup(8, kv_tokens=1_500_000, host_tokens=3_000_000, store_tokens=100_000_000),
}
FORKS: Final = tuple(f"fork-{branches}-{head}" for branches in (8, 43, 128) for head in ("10k", "40k", "100k"))
MOST_COMPUTED: Final = 1.3


class Reached(NamedTuple):
    """The results of a policy on a row: medians over the seeds. Tokens are multiples of those of a single cache."""

    p90_s: float
    mean_s: float
    start_p90_s: float
    token_p90_ms: float
    computed: float


def reached(name: str, setup: Setup, policy: str) -> Reached:
    """Run a row at all seeds."""
    drawn = []
    for seed in SEEDS:
        trace = made_up(name, seed)
        ideal = (1 - trace.ceiling()) * sum(request.input_tokens for request in trace.requests)
        found = run(trace, setup, policy)
        drawn.append(
            (found.ttft_p90_s, found.ttft_mean_s, found.new_p90_s, found.tpot_p90_s * 1000,
             found.computed_tokens / ideal)
        )  # fmt: skip
    return Reached(*map(statistics.median, zip(*drawn, strict=True)))


def fork_tables() -> list[str]:
    """Return the tables for warm and cold caches, without and with a shared store."""
    lines = []
    for suffix, state in (("", "warm"), ("-cold", "cold")):
        for fleet, setup in FLEETS.items():
            cells = [_cells(f"{name}{suffix}", setup) for name in FORKS]
            lines += [f"### {state.capitalize()}{', ' if fleet else ''}{fleet}", ""]
            heads = ("sub-agents, head", "TTFT p90 s", "mean s", "start p90 s", "TPOT p90 ms", "computed", *ROUTERS)
            lines += table(heads, cells)
    return lines


def write() -> None:
    """Put the tables into the page."""
    PAGE.write_text(put(PAGE.read_text("utf-8"), BEGIN, fork_tables()[:-1], END), "utf-8")


def _cells(name: str, setup: Setup) -> tuple[str, ...]:
    ours = reached(name, setup, OURS)
    others = {router: [reached(name, setup, policy) for policy in each] for router, each in ROUTERS.items()}
    every = [found for each in others.values() for found in each]
    shown = []
    for at, digits in enumerate((2, 2, 2, 1)):
        best = min(found[at] for found in every)
        factor = ours[at] / best
        bold = "**" if factor > 1.005 else ""
        shown.append(f"{ours[at]:.{digits}f} ({bold}{factor:.2f}{bold} x {best:.{digits}f})")
    bold = "**" if ours.computed > MOST_COMPUTED else ""
    shown.append(f"{bold}{ours.computed:.2f}{bold}")
    _, branches, head, *_ = name.split("-")
    return f"{branches}, {head}", *shown, *("/".join(f"{x.computed:.2f}" for x in each) for each in others.values())
