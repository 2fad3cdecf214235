"""Money: rates in integer picodollars a token, amounts in integer nanodollars.

A price of 1 USD per million tokens is 1e-6 USD a token, that is 1,000,000 picodollars. Rates keep six decimals of a
USD-per-million price exactly. Sums are taken in picodollars and rounded once, half to even, to nanodollars, so that a
receipt never depends on the order of its items.
"""

import functools
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

PICO_PER_USD_PER_MTOK: Final = 1_000_000
MAX_USD_PER_MTOK: Final = Decimal(1_000_000)
_HALF: Final = 500  # of a nanodollar
MAX_PRICE_CHARS: Final = 28  # the precision of decimal arithmetic: longer strings would be rounded unseen


class Rates(NamedTuple):
    """Prices of one model, picodollars per token."""

    input: int
    cached: int
    output: int

    @classmethod
    def from_usd_per_mtok(cls, input_: str, cached: str, output: str) -> "Rates":
        """Rates from decimal strings, USD per million tokens; `ValueError` says which string is not a price."""
        return cls(rate_from_usd_per_mtok(input_), rate_from_usd_per_mtok(cached), rate_from_usd_per_mtok(output))

    def as_usd_per_mtok(self) -> dict[str, str]:
        """The rates as the receipt shows them: decimal strings, USD per million tokens."""
        return {
            "input": usd_per_mtok(self.input),
            "cached": usd_per_mtok(self.cached),
            "output": usd_per_mtok(self.output),
        }


def rate_from_usd_per_mtok(text: str) -> int:
    """Picodollars a token from a decimal string of USD per million tokens."""
    if len(text) > MAX_PRICE_CHARS:
        raise ValueError(f"a price of {len(text)} characters is too long (USD per million tokens)")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a decimal number (USD per million tokens)") from None
    if not value.is_finite() or value < 0 or value > MAX_USD_PER_MTOK:
        raise ValueError(f"{text!r} is not a price between 0 and {MAX_USD_PER_MTOK} USD per million tokens")
    pico = value * PICO_PER_USD_PER_MTOK
    if pico != pico.to_integral_value():
        raise ValueError(f"{text!r} has more than six decimals (USD per million tokens)")
    return int(pico)


@functools.lru_cache(maxsize=4_096)
def usd_per_mtok(rate_pico: int) -> str:
    """A rate as the shortest decimal string of USD per million tokens."""
    whole, rest = divmod(rate_pico, PICO_PER_USD_PER_MTOK)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".") if rest else str(whole)


def nano_from_pico(amount_pico: int) -> int:
    """Nanodollars, rounded half to even."""
    rounded = (amount_pico + _HALF) // 1000
    return rounded - 1 if rounded & 1 and amount_pico % 1000 == _HALF else rounded


def list_nanousd(rates: Rates, prompt_tokens: int, completion_tokens: int) -> int:
    """What the turn would cost with nothing cached."""
    return nano_from_pico(prompt_tokens * rates.input + completion_tokens * rates.output)


def price_nanousd(rates: Rates, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
    """What the turn costs: cached prompt tokens at the cached rate."""
    uncached = prompt_tokens - cached_tokens
    return nano_from_pico(uncached * rates.input + cached_tokens * rates.cached + completion_tokens * rates.output)


def list_and_price(rates: Rates, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> tuple[int, int]:
    """Both of the two amounts above."""
    input_, cached, output = rates
    full_pico = prompt_tokens * input_ + completion_tokens * output
    price_pico = full_pico - cached_tokens * (input_ - cached)
    if full_pico % 1000 == _HALF or price_pico % 1000 == _HALF:
        return nano_from_pico(full_pico), nano_from_pico(price_pico)
    return (full_pico + _HALF) // 1000, (price_pico + _HALF) // 1000


def usd(amount_nanousd: int) -> str:
    """An amount as an exact decimal number of USD, fit to stand in JSON as a number."""
    if 0 < amount_nanousd < 1_000_000_000:  # most
        return "0." + str(amount_nanousd).zfill(9).rstrip("0")
    sign = "-" if amount_nanousd < 0 else ""
    whole, rest = divmod(abs(amount_nanousd), 1_000_000_000)
    return f"{sign}{whole}.{rest:09d}".rstrip("0") if rest else f"{sign}{whole}"
