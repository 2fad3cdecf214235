"""One turn on the ladder: what it lost at each step, by cause, and the cost of each loss.

The price of a step is what the turn would have cost at its rates if exactly that step's tokens had been cached. It is
rounded as in a receipt. So the price of the last step is the ledger's, to the nanodollar, and the losses add up to it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from warmroute.contract.money import Rates, list_and_price
from warmroute_proxy.ladder.steps import STEPS


class Loss(NamedTuple):
    """Tokens that are lost between the step before and this step; negative if this step has more tokens."""

    step: str
    cause: str
    tokens: int


class Cost(NamedTuple):
    """A loss, and what it cost in nanodollars."""

    step: str
    cause: str
    tokens: int
    nanousd: int


class Bill(NamedTuple):
    """What determines a price, besides the cached tokens.

    `host`, `storage`: tokens of the turn that came from these cache tiers. `write_5m`, `write_1h`: tokens written to a
    cache for 5 minutes or 1 hour.
    """

    rates: Rates
    prompt_tokens: int
    completion_tokens: int
    host: int = 0
    storage: int = 0
    write_5m: int = 0
    write_1h: int = 0

    def price(self, cached_tokens: int) -> int:
        cached = min(max(0, cached_tokens), self.prompt_tokens)
        host = min(self.host, cached)
        storage = min(self.storage, cached - host)
        write_1h = min(self.write_1h, self.prompt_tokens - cached)
        write_5m = min(self.write_5m, self.prompt_tokens - cached - write_1h)
        return list_and_price(
            self.rates, self.prompt_tokens, cached, self.completion_tokens, host, storage, write_5m, write_1h
        )[1]


class LadderTurn(NamedTuple):
    """One turn. `counts`: 1; -1 if the row takes another row back, 0 if the row (such as a credit) is not a turn.

    `costs` are in the order of the steps. `keys`: the values that group the turn, such as `model`. `known`: the steps
    that its source knows. `is_rated`: whether its rates are known. `is_billed`: whether the billed amount is known.
    `off_nanousd`: its price minus the price that follows from its counts and rates; may be negative.
    """

    counts: int
    prompt_tokens: int
    list_nanousd: int
    price_nanousd: int
    costs: tuple[Cost, ...]
    keys: Mapping[str, str]
    known: frozenset[str] = frozenset(STEPS)
    is_rated: bool = True
    is_billed: bool = True
    off_nanousd: int = 0


def priced(losses: Iterable[Loss], bill: Bill, sign: int = 1) -> tuple[Cost, ...]:
    """The cost of each loss. `losses`: in the order of the steps. `sign`: -1 for a row that takes another row back."""
    level, price = bill.prompt_tokens, bill.price(bill.prompt_tokens)
    found = []
    for step, cause, tokens in losses:
        level -= tokens
        next_price = bill.price(level)
        found.append(Cost(step, cause, sign * tokens, sign * (next_price - price)))
        price = next_price
    return tuple(found)
