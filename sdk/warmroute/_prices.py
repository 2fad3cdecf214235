"""Estimated prices of models whose server sends no prices, USD per million tokens, as of November 2026.

A row is for the model of that name, after its last slash and without a date, `-latest`, `-preview`, `@default`, `-fp8`
or `-nvfp4` at its end. Any other ending, such as `-pro` or `-mini`, may have another price. For turns with a receipt
(`usage.warmroute`), the receipt's rates are used instead. Source: `model_prices_and_context_window_backup.json` of
LiteLLM 1.106.2, whose numbers are from the vendors' pages. The row `deepseek-v3.1` is from DeepSeek's page.
"""

import math
import re
from typing import Final, NamedTuple


class Price(NamedTuple):
    """USD per million tokens."""

    input: float
    cached: float
    output: float
    write_factor: float = 1.0
    """The price of a token that is written to the cache, as a multiple of `input`."""
    long_tokens: int | None = None
    """A prompt with more tokens has the dearer price of `for_prompt`."""

    def for_prompt(self, tokens: int) -> "Price":
        """The price of a turn whose prompt has these tokens. Long prompts cost twice as much, their answers 1.5 times.

        The vendors of all rows with `long_tokens` have these factors.
        """
        if self.long_tokens is None or tokens <= self.long_tokens:
            return self
        return Price(2 * self.input, 2 * self.cached, 1.5 * self.output, self.write_factor)

    @property
    def hour_factor(self) -> float:
        """`write_factor` for a cache that lives an hour: at least 2, or 1 if writes cost no more than `input`.

        Source: docs.anthropic.com, prompt caching (1.25 for five minutes, 2 for an hour).
        """
        return 1.0 if self.write_factor == 1.0 else max(self.write_factor, 2.0)

    @property
    def usd_per_token(self) -> float:
        """The extra price of an uncached token over a cached one."""
        return (self.input - self.cached) / 1e6

    @property
    def cached_share(self) -> float | None:
        """The price of a cached token as a share of an uncached one's; None if `input` is free."""
        return self.cached / self.input if self.input > 0 else None

    def worst_nanousd(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The highest cost of a turn: no token is cached, and all are written to a cache that lives an hour."""
        price = self.for_prompt(prompt_tokens)
        return math.ceil((prompt_tokens * price.input * price.hour_factor + completion_tokens * price.output) * 1000)


_PRICES: Final = {
    "gpt-5.1": Price(1.25, 0.125, 10.0),
    "gpt-5.1-chat": Price(1.25, 0.125, 10.0),
    "gpt-5.1-codex": Price(1.25, 0.125, 10.0),
    "gpt-5.1-codex-max": Price(1.25, 0.125, 10.0),
    "gpt-5.4": Price(2.50, 0.25, 15.0, long_tokens=272_000),
    "gpt-5.5": Price(5.0, 0.5, 30.0, long_tokens=272_000),
    "claude-opus-5": Price(5.0, 0.5, 25.0, 1.25),
    "claude-opus-4-5": Price(5.0, 0.5, 25.0, 1.25),
    "claude-sonnet-4": Price(3.0, 0.3, 15.0, 1.25, long_tokens=200_000),
    "claude-sonnet-4-0": Price(3.0, 0.3, 15.0, 1.25, long_tokens=200_000),
    "claude-sonnet-4-5": Price(3.0, 0.3, 15.0, 1.25, long_tokens=200_000),
    "claude-sonnet-4-6": Price(3.0, 0.3, 15.0, 1.25),
    "claude-sonnet-5": Price(2.0, 0.2, 10.0, 1.25),
    "claude-sonnet-5-5": Price(2.0, 0.1, 10.0, 1.25),
    "claude-haiku-4-5": Price(1.0, 0.1, 5.0, 1.25),
    "deepseek-chat": Price(0.28, 0.028, 0.42),
    "deepseek-reasoner": Price(0.28, 0.028, 0.42),
    "deepseek-v3.1": Price(0.56, 0.07, 1.68),
    "kimi-k2.5": Price(0.60, 0.10, 3.0),
    "kimi-k2.6": Price(0.95, 0.16, 4.0),
    "glm-5.2": Price(1.40, 0.26, 4.40),
    "gemini-2.5-pro": Price(1.25, 0.125, 10.0, long_tokens=200_000),
    "gemini-2.5-flash": Price(0.30, 0.03, 2.50),
}


_VERSION: Final = re.compile(r"(?:-latest|-preview)?(?:[-@]\d{2}[\d-]{1,8}|@default|-fp8|-nvfp4)?$")


def price_of(model: str) -> Price | None:
    """The row of a model; None for a model that has no row."""
    name = _VERSION.sub("", model.rpartition("/")[2].lower())
    return _PRICES.get(name) or _PRICES.get(name.replace(".", "-"))
