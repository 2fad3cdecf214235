"""Rates as the command line takes them: `INPUT:CACHED:OUTPUT`, USD per million tokens."""

from warmroute.contract.money import Rates


def rates_of(text: str) -> Rates:
    """The rates of such a text. Raises: ValueError."""
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError(f"{text!r} is not INPUT:CACHED:OUTPUT in USD per million tokens, like 0.60:0.10:3")
    input_, cached, output = parts
    return Rates.from_usd_per_mtok(input_, cached, output)
