"""Tokens and cost of a turn, from the `usage` of its answer.

The cost is that of the turn's receipt (`usage.warmroute`), or an estimate by the table in `_prices`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warmroute._prices import Price, price_of
from warmroute.contract import receipt as contract
from warmroute.contract.usage import Tokens, tokens_of, whole

MAX_FAULT_CHARS: Final = 300
MAX_CLASSES: Final = 32  # loss classes of a receipt; a newer proxy may name some that are not in the contract
MAX_CLASS_CHARS: Final = 64
_NANOUSD_PER_USD_PER_MTOK: Final = 1000


class Amounts(NamedTuple):
    """What a turn costs, nanodollars."""

    listed: int
    cost: int
    saved: int


class Measured(NamedTuple):
    """One turn's numbers. `faults`: what is wrong with its receipt, a sentence each."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    has_receipt: bool
    amounts_nanousd: Amounts | None
    losses: Mapping[str, int]
    region: str | None
    continued: bool
    faults: tuple[str, ...]
    is_estimated: bool
    """Whether the amounts come from the table in `_prices`."""
    rates: Price | None
    """The rates of the receipt, or of the table."""


def measure(usage: Mapping[str, Any], announced: str | None, model: str = "") -> Measured:
    """The numbers of `usage`. `announced`: the receipt's id in the response head, with which the receipt must agree."""
    tokens = tokens_of(usage)
    found = usage.get("warmroute")
    receipt: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    loss, region = receipt.get("loss"), receipt.get("region")
    price = None if receipt else price_of(model)
    estimated = None if price is None or tokens.cached is None else _estimated(tokens, price.for_prompt(tokens.prompt))
    return Measured(
        prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached,
        completion_tokens=tokens.completion,
        has_receipt=bool(receipt),
        amounts_nanousd=_amounts(receipt) if receipt else estimated,
        losses=_losses(loss) if isinstance(loss, Mapping) else {},
        region=region if isinstance(region, str) else None,
        continued="continued" in receipt,
        faults=_faults(usage, receipt, announced) if receipt or announced else (),
        is_estimated=estimated is not None,
        rates=price or _rates(receipt),
    )


def _estimated(tokens: Tokens, price: Price) -> Amounts:
    cached = tokens.cached or 0
    output = tokens.completion * price.output
    listed = tokens.prompt * price.input + output
    hour, written = tokens.written_for_an_hour, tokens.written - tokens.written_for_an_hour
    uncached = tokens.prompt - cached - tokens.written + written * price.write_factor + hour * price.hour_factor
    cost = uncached * price.input + cached * price.cached + output
    listed_nanousd, cost_nanousd = (round(usd * _NANOUSD_PER_USD_PER_MTOK) for usd in (listed, cost))
    return Amounts(listed_nanousd, cost_nanousd, listed_nanousd - cost_nanousd)


def _rates(receipt: Mapping[str, Any]) -> Price | None:
    rates = receipt.get("rates_usd_per_mtok")
    if not isinstance(rates, Mapping):
        return None
    try:
        found = {name: float(rate) for name, rate in rates.items()}
        # The dearest rate of the prompt is that of writes to the cache, if there is one.
        dearest = max(rate for name, rate in found.items() if name != "output")
        return Price(found["input"], found["cached"], found["output"], dearest / found["input"] if dearest else 1.0)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _losses(loss: Mapping[Any, Any]) -> dict[str, int]:
    """Tokens by loss class: at most `MAX_CLASSES`, beginning with the classes that this version knows."""
    names = [name for name in contract.LOSS_CLASSES if name in loss]
    names += [name for name in loss if isinstance(name, str) and name not in names and len(name) <= MAX_CLASS_CHARS]
    return {name: tokens for name in names[:MAX_CLASSES] if (tokens := whole(loss[name]))}


def _faults(usage: Mapping[str, Any], receipt: Mapping[str, Any], announced: str | None) -> tuple[str, ...]:
    if not receipt:
        return (f"{announced}: the response head announced this receipt, and the usage has none",)
    identifier = receipt.get("id")
    try:
        found = contract.check(usage)
    except Exception as error:  # a receipt that is wrong in an unforeseen way counts as faulty, too
        found = [f"the receipt cannot be checked: {type(error).__name__}: {error}"]
    if announced is not None and identifier != announced:
        found = [*found, f"its id is not the {announced} of the response head"]
    return tuple(f"{identifier}: {fault}"[:MAX_FAULT_CHARS] for fault in found)


def _amounts(receipt: Mapping[str, Any]) -> Amounts | None:
    listed, cost = whole(receipt.get("list_nanousd")), whole(receipt.get("price_nanousd"))
    saved = receipt.get("saved_nanousd")
    if listed is None or cost is None or type(saved) is not int:
        return None
    return Amounts(listed, cost, saved)
