"""Numbers read from the `usage` of an answer, of warmroute or of any other server, in any dialect.

    OpenAI chat     prompt_tokens, prompt_tokens_details.cached_tokens, completion_tokens
    Responses       input_tokens, input_tokens_details.cached_tokens, output_tokens
    Anthropic       input_tokens + cache_read_input_tokens + cache_creation_input_tokens: cached ones stand outside
    DeepSeek        prompt_tokens, prompt_cache_hit_tokens
    Moonshot        prompt_tokens, cached_tokens
    Gemini          promptTokenCount, cachedContentTokenCount (absent for none), candidatesTokenCount

Servers may send anything, so every number is checked before it is added to a sum: a count that is not a whole number
from 0 to `MAX_COUNT` counts as absent.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warmroute._prices import Price, price_of
from warmroute.contract import receipt as contract

MAX_COUNT: Final = 2**53  # of tokens or nanodollars; above it a float is no longer exact
MAX_FAULT_CHARS: Final = 300
MAX_CLASSES: Final = 32  # of losses in a receipt; a newer proxy may name some that are not in the contract
MAX_CLASS_CHARS: Final = 64
_NANOUSD_PER_USD_PER_MTOK: Final = 1000


class Amounts(NamedTuple):
    """What a turn costs, nanodollars."""

    listed: int
    cost: int
    saved: int


class Tokens(NamedTuple):
    """The tokens of a turn; `prompt` includes cached and written ones."""

    prompt: int
    cached: int | None
    completion: int
    written: int = 0
    written_for_an_hour: int = 0
    """Of those; Anthropic's price of them is higher."""


class Measured(NamedTuple):
    """One turn's numbers. `faults` are sentences about its receipt."""

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
    """Whether the amounts come from our own table of prices."""
    rates: Price | None
    """Those of the receipt, or of our own table."""


def measure(usage: Mapping[str, Any], announced: str | None, model: str = "") -> Measured:
    """The numbers of `usage`; `announced` is the receipt id of the response head, which its receipt must have."""
    tokens = tokens_of(usage)
    found = usage.get("warmroute")
    receipt: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    loss, region = receipt.get("loss"), receipt.get("region")
    price = None if receipt else price_of(model)
    estimated = None if price is None or tokens.cached is None else _estimated(tokens, price)
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


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """The tokens of a `usage` object of any dialect."""
    if "promptTokenCount" in usage or "prompt_token_count" in usage:
        return _gemini(usage)
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    prompt = _count(usage.get("prompt_tokens"))
    if prompt is not None:
        ways = (_detail(usage, "prompt_tokens_details"), _count(usage.get("prompt_cache_hit_tokens")))
        cached = next((count for count in (*ways, _count(usage.get("cached_tokens"))) if count is not None), None)
        return _bounded(prompt, cached, completion, _detail(usage, "prompt_tokens_details", "cache_write_tokens") or 0)
    outside = _count(usage.get("input_tokens")) or 0
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    if read is None and written is None:
        return _bounded(outside, _detail(usage, "input_tokens_details"), completion, 0)
    hour = _detail(usage, "cache_creation", "ephemeral_1h_input_tokens") or 0
    return _bounded(outside + (read or 0) + (written or 0), read or 0, completion, written or 0, hour)


def _gemini(usage: Mapping[str, Any]) -> Tokens:
    def count(camel: str, snake: str) -> int:
        return _count(usage.get(camel)) or _count(usage.get(snake)) or 0

    completion = count("candidatesTokenCount", "candidates_token_count")
    completion += count("thoughtsTokenCount", "thoughts_token_count")
    prompt = count("promptTokenCount", "prompt_token_count")
    return _bounded(prompt, count("cachedContentTokenCount", "cached_content_token_count"), completion, 0)


def _bounded(prompt: int, cached: int | None, completion: object, written: int, hour: int = 0) -> Tokens:
    most = None if cached is None else min(cached, prompt)
    written = min(written, prompt - (most or 0))
    return Tokens(prompt, most, _count(completion) or 0, written, min(hour, written))


def _detail(usage: Mapping[str, Any], field: str, name: str = "cached_tokens") -> int | None:
    details = usage.get(field)
    return _count(details.get(name)) if isinstance(details, Mapping) else None


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
        dearest = max(
            rate for name, rate in found.items() if name != "output"
        )  # a write to the cache, if it has a price
        return Price(found["input"], found["cached"], found["output"], dearest / found["input"] if dearest else 1.0)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _losses(loss: Mapping[Any, Any]) -> dict[str, int]:
    """Loss class -> tokens, of those that this version knows first; `MAX_CLASSES` of them at most."""
    names = [name for name in contract.LOSS_CLASSES if name in loss]
    names += [name for name in loss if isinstance(name, str) and name not in names and len(name) <= MAX_CLASS_CHARS]
    return {name: tokens for name in names[:MAX_CLASSES] if (tokens := _count(loss[name]))}


def _faults(usage: Mapping[str, Any], receipt: Mapping[str, Any], announced: str | None) -> tuple[str, ...]:
    if not receipt:
        return (f"{announced}: the response head announced this receipt, and the usage has none",)
    identifier = receipt.get("id")
    try:
        found = contract.check(_as_chat(usage))
    except Exception as error:  # a receipt can be wrong in ways that the checks do not foresee
        found = [f"the receipt cannot be checked: {type(error).__name__}: {error}"]
    if announced is not None and identifier != announced:
        found = [*found, f"its id is not the {announced} of the response head"]
    return tuple(f"{identifier}: {fault}"[:MAX_FAULT_CHARS] for fault in found)


def _as_chat(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """The usage with the names of chat completions, in which receipts are checked."""
    if "prompt_tokens" in usage:
        return usage
    tokens = tokens_of(usage)
    return {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "prompt_tokens_details": {"cached_tokens": tokens.cached or 0},
        "cost": usage.get("cost"),
        "warmroute": usage.get("warmroute"),
    }


def _amounts(receipt: Mapping[str, Any]) -> Amounts | None:
    listed, cost = _count(receipt.get("list_nanousd")), _count(receipt.get("price_nanousd"))
    saved = receipt.get("saved_nanousd")
    if listed is None or cost is None or type(saved) is not int:
        return None
    return Amounts(listed, cost, saved)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None
