"""Money: rates in integer picodollars a token, amounts in integer nanodollars.

A price of 1 USD per million tokens is 1e-6 USD a token, that is 1,000,000 picodollars. Rates keep six decimals of a
USD-per-million price exactly. Sums are taken in picodollars and rounded once, half to even, to nanodollars, so that an
amount never depends on the order of its items.

    price = (prompt - cached - written) * input + device hits * cached + host hits * cached_host
          + storage hits * cached_storage + 5-minute writes * cache_write_5m + 1-hour writes * cache_write_1h
          + completion * output

Tokens that are written to a cache are prompt tokens that were not cached before. The 5-minute and 1-hour writes are
Anthropic's: the cache lives for five minutes or for an hour (platform.claude.com/docs, prompt caching). Without rates
for writes and tiers, a written token costs `input`, and a hit in any tier costs `cached`.
"""

import functools
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

NANO_PER_USD: Final = 1_000_000_000
PICO_PER_USD_PER_MTOK: Final = 1_000_000
MAX_USD_PER_MTOK: Final = Decimal(1_000_000)
_HALF: Final = 500  # half a nanodollar, in picodollars
MAX_PRICE_CHARS: Final = 28  # the precision of decimal arithmetic: longer strings would be rounded silently


class CacheRates(NamedTuple):
    """Rates for cache tiers and cache writes, picodollars per token."""

    cached_host: int
    cached_storage: int
    cache_write_5m: int
    cache_write_1h: int


class Rates(NamedTuple):
    """Prices of one model in one price book (the rates from a date on), picodollars per token."""

    input: int
    cached: int
    output: int
    price_book: str = ""
    """The name of the price book; empty for a free turn."""

    cache_rates: CacheRates | None = None
    """None: hits of all tiers are priced as `cached`, and writes as `input`."""

    @classmethod
    def from_usd_per_mtok(cls, input_: str, cached: str, output: str) -> "Rates":
        """Rates from decimal strings, USD per million tokens; `ValueError` says which string is not a price."""
        return cls(rate_from_usd_per_mtok(input_), rate_from_usd_per_mtok(cached), rate_from_usd_per_mtok(output))

    @classmethod
    def from_texts(cls, texts: Mapping[str, str], price_book: str = "") -> "Rates":
        """Rates from the value of `as_usd_per_mtok`. An absent rate of a tier equals `cached`, that of a write `input`.

        Raises: KeyError, ValueError.
        """
        rates = {name: rate_from_usd_per_mtok(text) for name, text in texts.items()}
        input_, cached, output = rates["input"], rates["cached"], rates["output"]
        more = None
        if any(name in rates for name in CacheRates._fields):
            defaults = CacheRates(cached, cached, input_, input_)
            more = defaults._replace(**{name: rates[name] for name in CacheRates._fields if name in rates})
        return cls(input_, cached, output, price_book, more)

    def as_usd_per_mtok(self) -> dict[str, str]:
        """The rates as the receipt shows them: decimal strings, USD per million tokens."""
        shown = {"input": self.input, "cached": self.cached, "output": self.output}
        if self.cache_rates is not None:
            shown |= self.cache_rates._asdict()
        return {name: usd_per_mtok(rate) for name, rate in shown.items()}


def rate_from_usd_per_mtok(text: str) -> int:
    """Picodollars per token, from a decimal string of USD per million tokens."""
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
    """Cost of the turn if no token had been cached, nanodollars."""
    return nano_from_pico(prompt_tokens * rates.input + completion_tokens * rates.output)


def price_nanousd(
    rates: Rates,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    host: int = 0,
    storage: int = 0,
    write_5m: int = 0,
    write_1h: int = 0,
) -> int:
    """Cost of the turn, nanodollars. `host`, `storage`: tokens cached in these tiers. `write_5m`, `write_1h`: tokens
    written to a cache of this lifetime.
    """
    return list_and_price(rates, prompt_tokens, cached_tokens, completion_tokens, host, storage, write_5m, write_1h)[1]


def list_and_price(
    rates: Rates,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    host: int = 0,
    storage: int = 0,
    write_5m: int = 0,
    write_1h: int = 0,
) -> tuple[int, int]:
    """The amounts of `list_nanousd` and `price_nanousd`."""
    input_, cached = rates.input, rates.cached
    full_pico = prompt_tokens * input_ + completion_tokens * rates.output
    price_pico = full_pico - cached_tokens * (input_ - cached)
    more = rates.cache_rates
    if more is not None:
        price_pico += host * (more.cached_host - cached) + storage * (more.cached_storage - cached)
        price_pico += write_5m * (more.cache_write_5m - input_) + write_1h * (more.cache_write_1h - input_)
    if full_pico % 1000 == _HALF or price_pico % 1000 == _HALF:
        return nano_from_pico(full_pico), nano_from_pico(price_pico)
    return (full_pico + _HALF) // 1000, (price_pico + _HALF) // 1000


def usd(amount_nanousd: int) -> str:
    """An amount as an exact decimal number of USD, fit to stand in JSON as a number."""
    if 0 < amount_nanousd < 1_000_000_000:  # the common case
        return "0." + str(amount_nanousd).zfill(9).rstrip("0")
    sign = "-" if amount_nanousd < 0 else ""
    whole, rest = divmod(abs(amount_nanousd), 1_000_000_000)
    return f"{sign}{whole}.{rest:09d}".rstrip("0") if rest else f"{sign}{whole}"
