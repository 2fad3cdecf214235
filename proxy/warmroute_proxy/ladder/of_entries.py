"""Makes turns of the ladder from rows of the ledger.

The receipt in a row has a loss class for each token that was not cached. The row also has `predicted_cached`: how many
cached tokens the proxy expected on the chosen worker. Together they give each step, from the bottom up:

    delivered = cached                                chosen    = predicted_cached
    predicted = chosen + moved + elsewhere            kept      = cached + unknown + moved + elsewhere
    reachable = kept + losses of `CAUSES["kept"]`     prompt    = reachable + all other classes

`kept` and `predicted` differ by the error of the prediction. At `delivered` the error is taken back, and tokens of the
class `unknown` are lost.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry, StoredReceipt
from warmroute_proxy.core.accounting.entry_steps import CREDIT_SUFFIX, turns_in
from warmroute_proxy.ladder.steps import CAUSES, UNEXPLAINED
from warmroute_proxy.ladder.turn import Bill, Cost, LadderTurn, Loss, priced

UNPAID: Final = frozenset({"refused", "engine_error", "cut_off", "interrupted"})
"""Outcomes of turns that were charged nothing, if the rates in their rows are zero."""

_FREE: Final = (0, 0, 0)


def turn_of(entry: Entry) -> LadderTurn:
    receipt = entry.receipt()
    keys = _keys(entry, receipt)
    counts = turns_in(entry.id)
    if entry.id.endswith(CREDIT_SUFFIX):
        given = (Cost("billed", "credit", 0, entry.price_nanousd),)
        return LadderTurn(0, 0, 0, entry.price_nanousd, given, keys)
    sign = -1 if counts < 0 else 1
    bill = _bill(entry, receipt, sign)
    losses = tuple(_losses(entry, receipt, sign))
    costs = priced(losses, bill, sign)
    rest = entry.price_nanousd - sign * bill.price(bill.prompt_tokens) - sum(cost.nanousd for cost in costs)
    voided = _voided(entry, receipt, bill, rest) if sign < 0 else 0
    off = rest - voided
    costs += tuple(Cost("billed", name, 0, each) for name, each in (("voided", voided), (UNEXPLAINED, off)) if each)
    return LadderTurn(
        counts, entry.prompt_tokens, entry.list_nanousd, entry.price_nanousd, costs, keys, off_nanousd=off
    )


def _voided(entry: Entry, receipt: StoredReceipt, bill: Bill, rest: int) -> int:
    """The part of `rest` that is explained, in a row that takes another row back.

    The row also takes back a credit, and the prices of cache tiers, which are in its receipt only as a sum.
    """
    credit = receipt.credit_nanousd
    if bill.rates.cache_rates is None:
        return -credit
    if receipt.price_nanousd is None:
        return rest
    return rest - (entry.price_nanousd - receipt.price_nanousd + credit)


def _keys(entry: Entry, receipt: StoredReceipt) -> dict[str, str]:
    day = datetime.fromtimestamp(entry.settled_at, UTC).strftime("%Y-%m-%d")
    return {
        "session": entry.session or "",
        "tenant": entry.tenant,
        "model": entry.model,
        "harness": receipt.harness,
        "day": day,
        "kind": receipt.kind,
    }


def _bill(entry: Entry, receipt: StoredReceipt, sign: int) -> Bill:
    tiers, written = receipt.cached, receipt.cache_write
    return Bill(
        Rates(*entry.rates),
        sign * entry.prompt_tokens,
        sign * entry.completion_tokens,
        tiers.get("host", 0),
        tiers.get("storage", 0),
        written.get("5m", 0),
        written.get("1h", 0),
    )


def _losses(entry: Entry, receipt: StoredReceipt, sign: int) -> Iterator[Loss]:
    """The losses of a row in the order of the steps, without losses of zero tokens."""
    cached, expected = sign * entry.cached_tokens, entry.predicted_cached
    loss = {name: sign * tokens for name, tokens in receipt.loss.items()}
    unknown = loss.get("unknown", 0) + _of_no_step(loss)
    error = expected - cached - unknown
    rows = [
        *(("reachable", name, loss.get(name, 0)) for name in CAUSES["reachable"]),
        *(("kept", name, loss.get(name, 0)) for name in CAUSES["kept"]),
        ("predicted", "underpredicted", max(0, -error)),
        ("predicted", "overpredicted", min(0, -error)),
        *(("chosen", name, loss.get(name, 0)) for name in CAUSES["chosen"]),
        ("delivered", "overpredicted", max(0, error)),
        ("delivered", "underpredicted", min(0, error)),
        ("delivered", "unknown", unknown),
        *_reported(entry, receipt, cached),
    ]
    for step, cause, tokens in rows:
        if tokens:
            yield Loss(step, cause, tokens)


def _reported(entry: Entry, receipt: StoredReceipt, cached: int) -> Iterator[tuple[str, str, int]]:
    guessed = "cached_tokens" in receipt.estimated
    if guessed:
        yield "reported", "not_reported", cached
    if tuple(entry.rates)[:3] == _FREE and entry.outcome in UNPAID:
        yield "billed", "not_charged", 0 if guessed else cached
    elif guessed:
        yield "billed", "estimated", -cached


_NAMED: Final = frozenset(name for names in CAUSES.values() for name in names)


def _of_no_step(loss: Mapping[str, int]) -> int:
    return sum(tokens for name, tokens in loss.items() if name not in _NAMED)
