"""The reports and explanations that `client.cache` returns. `_books` counts what they show.

Mappings are plain dicts, copied for each report, so that a report can be pickled and given to `dataclasses.asdict`.
A figure that no server reported is None, never 0: the hit ratio is None if no server reported cached tokens, and the
cost is None if no prices are known. A *receipt* is the part of a turn's usage in which a proxy states cached tokens,
losses and price.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from warmroute._turns import Turn
from warmroute.contract.meanings import meaning
from warmroute.contract.money import NANO_PER_USD

_SHOWN_SESSIONS = 10


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over turns."""

    turns: int
    """Turns whose answer began."""
    turns_measured: int
    """Turns whose usage is known; the token counts below are sums over these turns."""
    receipts: int
    """Turns with a receipt; `losses` are sums over these turns."""
    estimated: int
    """Turns without a receipt, priced by the SDK's table."""
    continued: int
    """Turns that another engine continued after the first one failed in the middle of the answer."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """None if no server reported cached tokens."""
    cached_of_tokens: int
    """Prompt tokens of the turns for which a server reported cached tokens: the divisor of `hit_ratio`."""
    list_nanousd: int | None
    """Cost of the turns if no token had been cached, nanodollars."""
    cost_nanousd: int | None
    """Cost of the turns, nanodollars."""
    saved_nanousd: int | None
    losses: Mapping[str, int]
    """Prompt tokens that were not cached, by loss class."""

    @property
    def hit_ratio(self) -> float | None:
        """Cached share of the prompt tokens, 0 to 1."""
        if self.cached_tokens is None or not self.cached_of_tokens:
            return None
        return self.cached_tokens / self.cached_of_tokens

    @property
    def list_usd(self) -> float | None:
        """`list_nanousd` in USD."""
        return _usd(self.list_nanousd)

    @property
    def cost_usd(self) -> float | None:
        """`cost_nanousd` in USD."""
        return _usd(self.cost_nanousd)

    @property
    def saved_usd(self) -> float | None:
        """`saved_nanousd` in USD."""
        return _usd(self.saved_nanousd)

    def __str__(self) -> str:
        cached = "not reported" if self.cached_tokens is None else f"{self.cached_tokens:,}"
        ratio = "" if self.hit_ratio is None else f" ({self.hit_ratio:.1%})"
        text = f"{self.turns} turns, {self.prompt_tokens:,} prompt tokens, cached {cached}{ratio}"
        text += f", {self.completion_tokens:,} completion tokens"
        if self.cost_nanousd is None:
            return text
        return f"{text}, cost {self.cost_usd:.6f} USD, saved {self.saved_usd:.6f} of {self.list_usd:.6f}"


@dataclass(frozen=True, slots=True)
class CacheReport(Totals):
    """Figures that a client and its `with_options()` copies have observed so far."""

    warmed: Totals
    """Turns that were computed ahead (`warm`, `keep_warm`); no other sum includes them."""
    receipts_pending: int
    """Receipts that were announced in a response head but not read yet: `client.cache.pending()` has their ids."""
    violations: tuple[str, ...]
    """The newest hundred faults found in receipts, newest last."""
    violations_found: int
    """The number of all faults found in receipts."""
    internal_errors: int
    """Errors of the SDK that were suppressed so that calls did not fail."""
    by_session: Mapping[str, Totals]
    """The thousand sessions used last, by key, newest last."""

    def __str__(self) -> str:
        lines = [Totals.__str__(self)]
        if self.losses:
            order = sorted(self.losses.items(), key=lambda item: -item[1])
            lines.append("not cached: " + ", ".join(f"{name} {tokens:,}" for name, tokens in order))
        if self.continued:
            lines.append(f"answers that another engine continued: {self.continued}")
        if self.warmed.turns:
            lines.append(f"computed ahead: {self.warmed}")
        if self.receipts_pending:
            lines.append(f"receipts announced and not read: {self.receipts_pending}")
        if self.violations_found:
            lines.append(f"receipts with faults: {self.violations_found}; the last one: {self.violations[-1]}")
        if self.internal_errors:
            lines.append(f"errors inside the SDK, kept from the calls: {self.internal_errors}")
        lines.extend(f"  {key}: {totals}" for key, totals in list(self.by_session.items())[-_SHOWN_SESSIONS:])
        if len(self.by_session) > _SHOWN_SESSIONS:
            lines.append(f"  and {len(self.by_session) - _SHOWN_SESSIONS} sessions before these")
        return "\n".join(lines)


def _usd(amount_nanousd: int | None) -> float | None:
    return None if amount_nanousd is None else amount_nanousd / NANO_PER_USD


def explain(turn: Turn | None, name: str | None) -> str:
    """The text of `client.cache.explain()`; `name` is the session that was asked for, if any."""
    if turn is None:
        return "No turn was seen yet." if name is None else f"No turn of session {name} was seen."
    lines = [_headline(turn), *_losses(turn)]
    if turn.checked is not None:
        lines += [f"Repaired: {event}" for event in turn.checked.repairs]
        if turn.checked.event is not None:
            lines.append(f"On your side: {turn.checked.event}")
        elif turn.checked.continues:
            lines.append("On your side nothing broke the prefix: the prompt only grew since the turn before.")
    if turn.miss is not None:
        lines.append(f"Not on your side: {turn.miss}")
    return "\n".join(lines)


def _headline(turn: Turn) -> str:
    measured = turn.measured
    of = "The last turn" if turn.session is None else f"The last turn of session {turn.session}"
    if measured is None:
        later = f"; its receipt is {turn.receipt_id}" if turn.receipt_id else ""
        return f"{of}: its usage was not seen, because the answer had none or was not read to its end{later}."
    if measured.cached_tokens is None:
        return f"{of}: {measured.prompt_tokens:,} prompt tokens; the server does not say how many were cached."
    share = measured.cached_tokens / measured.prompt_tokens if measured.prompt_tokens else 0.0
    counts = f"{measured.cached_tokens:,} of {measured.prompt_tokens:,} prompt tokens were cached ({share:.1%})"
    return f"{of}: {counts}{f', in region {measured.region}' if measured.region else ''}."


def _losses(turn: Turn) -> list[str]:
    losses = turn.measured.losses if turn.measured is not None else {}
    order = sorted(losses.items(), key=lambda item: -item[1])
    return [
        f"{tokens:,} prompt token{'' if tokens == 1 else 's'} ({name}) {meaning(name, tokens)}"
        for name, tokens in order
    ]
