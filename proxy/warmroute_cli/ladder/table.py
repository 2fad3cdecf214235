"""The ladder as text: a line for each step, what would win the losses back, and a line for each group."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from warmroute.contract.money import usd
from warmroute_cli.tables import Column, Row, fitted
from warmroute_proxy.ladder.steps import PROMPT, STEPS, wins
from warmroute_proxy.ladder.sums import Ladder, LadderSums

if TYPE_CHECKING:
    from warmroute_cli.ladder.what_if import Difference

UNKNOWN: Final = "-"
NO_REMEDY: Final = "nothing to recover"
_STEPS: Final = (
    Column("step"), Column("cached tokens", is_number=True), Column("of prompt", is_number=True),
    Column("lost", is_number=True), Column("price USD", is_number=True), Column("lost USD", is_number=True),
)  # fmt: skip
_REMEDIES: Final = (
    Column("would win back"), Column("tokens", is_number=True), Column("USD", is_number=True),
)  # fmt: skip
_SHARES: Final = ("reachable", "kept", "chosen", "billed")


def ladder_table(ladder: Ladder, most: int, limit: int) -> list[str]:
    """The lines, at most so wide. `limit`: groups that are shown."""
    lines = [*_steps(ladder.all, most), "", *_remedies(ladder.all, most)]
    if ladder.by is not None and ladder.groups:
        lines += ["", *_groups(ladder, most, limit)]
    return lines


def what_if_table(first: Ladder, others: "Sequence[Difference]", most: int) -> list[str]:
    """A line for each other case: what it delivers and costs, and the causes whose sum is the difference."""
    columns = [
        Column("what if"), Column("delivered", is_number=True), Column("price USD", is_number=True),
        Column("more USD", is_number=True),
    ]  # fmt: skip
    rows = []
    for each in others:
        notes = [f"{cause} {tokens:+,} ({_signed(nanousd)} USD)" for cause, (tokens, nanousd) in each.causes.items()]
        share = _share(each.delivered, first.all)
        price = usd(each.price_nanousd) if first.all.is_rated or each.price_nanousd else UNKNOWN
        rows.append(
            Row([each.name, share, price, _signed(each.more_nanousd) if first.all.is_rated else UNKNOWN], notes)
        )
    return fitted(columns, rows, "because", most)


def _signed(nanousd: int) -> str:
    return f"{'+' if nanousd > 0 else ''}{usd(nanousd)}"


def _steps(sums: LadderSums, most: int) -> list[str]:
    levels, rows = sums.levels(), []
    before_tokens, before_nanousd = levels[PROMPT]
    for step in (PROMPT, *STEPS):
        tokens, nanousd = levels[step]
        is_billed = step == STEPS[-1] and sums.billed_rows > 0
        price = usd(nanousd) if sums.is_rated or is_billed else UNKNOWN
        lost_usd = usd(nanousd - before_nanousd) if sums.is_rated else UNKNOWN
        if step == PROMPT:
            rows.append(Row([step, f"{tokens:,}", _share(tokens, sums), "", price, ""]))
        elif step in sums.known:
            counts = [f"{tokens:,}", _share(tokens, sums), f"{before_tokens - tokens:,}"]
            rows.append(Row([step, *counts, price, lost_usd], _reasons(sums, step)))
        else:
            rows.append(Row([step, *[UNKNOWN] * 3, price if is_billed else UNKNOWN, UNKNOWN]))
        before_tokens, before_nanousd = tokens, nanousd
    return fitted(_STEPS, rows, "why", most)


def _reasons(sums: LadderSums, step: str) -> list[str]:
    """Why a step is below the one before, and of how many turns it is known, if not of all."""
    rows = sums.known_rows[step]
    coverage = [] if rows == sums.rows else [f"known of {rows:,} of {sums.rows:,} turns"]
    return coverage + [f"{cause} {tokens:,}" for cause, (tokens, _) in sums.causes(step).items() if tokens]


def _remedies(sums: LadderSums, most: int) -> list[str]:
    rows = [
        Row(
            [win.remedy.name, f"{win.tokens:,}", usd(win.nanousd) if sums.is_rated else UNKNOWN],
            win.remedy.how.split(),
        )
        for win in wins(sums.by_cause())
    ]
    return fitted(_REMEDIES, rows, "how", most, "") if rows else textwrap.wrap(NO_REMEDY, most)


def _groups(ladder: Ladder, most: int, limit: int) -> list[str]:
    shown = [step for step in _SHARES if step in ladder.all.known]
    columns = [
        Column(ladder.by or ""), Column("turns", is_number=True), Column("prompt", is_number=True),
        *(Column(step, is_number=True, optional=step in {"kept", "chosen"}) for step in shown),
        Column("USD", is_number=True), Column("lost USD", is_number=True),
    ]  # fmt: skip
    groups = ladder.dearest()
    rows = [_group(key, sums, shown) for key, sums in groups[:limit]]
    lines = fitted(columns, rows, "", most)
    if len(groups) > limit:
        more = f"{len(groups) - limit} more groups, each cheaper than these: --limit or --json shows them"
        lines += textwrap.wrap(more, most)
    return lines


def _group(key: str, sums: LadderSums, shown: Sequence[str]) -> Row:
    levels = sums.levels()
    lost = sums.price_nanousd - levels["reachable"][1]
    shares = [_share(levels[step][0], sums) if step in sums.known else UNKNOWN for step in shown]
    billed = sums.billed_rows > 0
    money = [usd(sums.price_nanousd) if billed else UNKNOWN]
    money.append(usd(lost) if billed and sums.is_rated and "reachable" in sums.known else UNKNOWN)
    return Row([key or "(none)", f"{sums.turns:,}", f"{sums.prompt_tokens:,}", *shares, *money])


def _share(tokens: int, sums: LadderSums) -> str:
    return f"{tokens / sums.prompt_tokens:.1%}" if sums.prompt_tokens else UNKNOWN
