"""One turn on the ladder: what it lost at each step, by cause, and what that cost.

The price of a step is what the turn would have cost with that step's tokens cached, by its own rates. It is rounded as
a receipt's is, so that the last step costs what the ledger says, to the nanodollar, and all losses add up to it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from warmroute.contract.money import Rates, list_and_price
from warmroute_proxy.ladder.steps import STEPS


class Loss(NamedTuple):
    """Tokens that are lost on the way to a step; below zero where that step has more than the one before."""

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
    """What a price is made from, besides the cached tokens. `host`, `storage`: cached tokens of these tiers as they
    were; `write_5m`, `write_1h`: tokens written to a cache.
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
    """One turn. `counts`: 1; -1 if it takes another one back, 0 if it is not a turn. `costs` are in the order of the
    steps. `keys`: how it is grouped, such as `model`. `known`: the steps that its source knows. `is_rated`: its rates
    are known; `is_billed`: what was billed is known. `off_nanousd`: how far its price is from what its own row says,
    below zero too.
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
    """What each loss cost. `losses`: in the order of the steps; `sign`: -1 for a turn that takes another one back."""
    level, price = bill.prompt_tokens, bill.price(bill.prompt_tokens)
    found = []
    for step, cause, tokens in losses:
        level -= tokens
        next_price = bill.price(level)
        found.append(Cost(step, cause, sign * tokens, sign * (next_price - price)))
        price = next_price
    return tuple(found)
