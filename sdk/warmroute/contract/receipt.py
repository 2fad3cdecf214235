"""The receipt of a turn: `usage.warmroute`, and the checks that any reader can run on it.

A receipt states which prompt tokens were cached, why the others were not, and what the turn costs. It is a member of
the `usage` object of a response, beside the token counts that it explains:

    {"v": 1, "id": "wr-...", "session": "16 hex" | null, "turn": 3, "region": "east",
     "workers": [{"id": "east-p0", "dp_rank": 0, "role": "prefill"}, ...],
     "cached": {"device": 8000, "host": 0, "storage": 0}, "predicted_cached": 8064,
     "loss": {"new": 117, "page_rounding": 12}, "rates_usd_per_mtok": {"input": "0.6", "cached": "0.1", "output": "3"},
     "list_nanousd": ..., "price_nanousd": ..., "saved_nanousd": ..., "estimated": [], "price_book": "2026-12"}

`price_book` names the list of prices that was in effect when the turn began; the receipt of a free turn lacks it. If
the price book has separate prices for tiers or cache writes, `rates_usd_per_mtok` also has `cached_host`,
`cached_storage`, `cache_write_5m` and `cache_write_1h`. If the server reports prompt tokens that it wrote to a cache,
`"cache_write": {"5m": 2000, "1h": 0}` counts them by the lifetime of that cache.

Other members are present only if they apply. `"continued": {"after_tokens": 412, "by": "text"}`: another engine
continued the answer after this number of tokens, from the text so far. `"provider_cost_nanousd"` is the charge that an
outside provider reported. `"key": "k-0123456789"` is the id of the API key. `"dropped_fields": ["beam_width"]` names
the request's fields that no engine got, 32 at most. `"agent": "explore"` (the name, else 16 hex digits of the agent's
id), `"parent": "16 hex"` and `"kind": "sub"` come from the request's head. `"elsewhere_region": "west"` names the
region that holds the tokens of the loss `elsewhere`. `"evicted_by": "engine_restart"`: tokens are `evicted` because the
engine that held them has restarted or left. `"max_tokens_lowered_to": 60638`: the prompt and the requested answer
together exceed the engine's context, so the proxy asked the engine for only this number of tokens. Further members name
other changes that the proxy made to the request:

    "dropped_blocks": {"redacted_thinking": 2}   parts of messages that no engine got, by type
    "cache_control": 4                           `cache_control` marks that were removed
    "normalised": ["billing_line"]               normalising rules that removed text from the prompt
    "prefix_changed_by": ["date_line"]           only with the loss `prefix_changed`: normalising rules that would have
                                                 removed text, but are switched off

If the proxy knows which part broke the prefix, and why:

    "prefix_break": {"where": "system, line 1", "cause": "date", "tokens": 2587, "nanousd": 1293500}

`tokens` is the count of the loss `prefix_changed`, and `nanousd` is its extra cost over cached tokens. If the cause is
a compaction, `compacted_tokens` is the number of tokens by which the prompt became shorter, and `saved_nanousd_a_turn`
is what those tokens would cost each turn if cached.

If tokens are `moved`, a proxy may give a credit. The credit is not part of the price: a separate ledger row has it.

    "credit": {"tokens": 9280, "nanousd": 4640000}

A proxy may add members without a new version: a reader ignores members that it does not know.

`check` tests all that follows from the `usage` object alone: tiers sum to the cached tokens, losses sum to
prompt - cached, and the price follows from the rates. Each fault is a sentence that can be shown unchanged.
"""

from collections.abc import Mapping
from typing import Any, Final

from warmroute.contract.money import CacheRates, Rates, list_and_price, nano_from_pico
from warmroute.contract.usage import counts_of

VERSION: Final = 1

TIERS: Final = ("device", "host", "storage")
"""Where cached tokens were found: GPU memory, host memory, the shared store."""

RATES: Final = ("input", "cached", "output", *CacheRates._fields)
"""The members of `rates_usd_per_mtok`; the first three are always present."""

LOSS_CLASSES: Final = (
    "new",  # appended this turn
    "cold",  # never seen before in this tenant
    "prefix_changed",  # the client rewrote its history
    "moved",  # cached on another worker of the region than the one chosen
    "elsewhere",  # cached in another region, named by `elsewhere_region`
    "not_computed_yet",  # part of another prompt that was still being computed when this one came
    "evicted",  # cached on the chosen worker before but no longer, or on another worker and now on none
    "forgotten",  # cached before by a server that reports no evictions and decides alone how long it keeps a cache
    "salt_changed",  # the cache salt, which separates tenants' caches, was renewed for the tenant
    "page_rounding",  # the engine reuses whole pages, and never the last token
    "not_kept",  # tokens of the last answer, whose KV is on the decode engine only
    "engine_misreport",  # the engine's count was outside [0, prompt]
    "unknown",
)
"""Why prompt tokens were not cached. All classes sum to prompt - cached. A newer proxy may name others."""

ESTIMATED_FIELDS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "cached_tiers")
"""Numbers that `estimated` may name: the engine did not report them, or reported only a lower bound."""

_DOUBLE_ERROR: Final = 2.0**-50
"""Relative error of an amount that was read as a double: `cost` is exact as JSON text, but parsers round it."""


def cached_tokens(usage: Mapping[str, Any]) -> int:
    """The cached tokens of a `usage` object of any API, 0 if they are absent."""
    return counts_of(usage).cached or 0


def check(usage: Mapping[str, Any]) -> list[str]:
    """Return the faults of the receipt in a `usage` object of any API, a sentence each; an empty list if the receipt
    is sound.
    """
    receipt = usage.get("warmroute")
    if not isinstance(receipt, Mapping):
        return ["usage.warmroute is missing"]
    problems: list[str] = []
    try:
        for checks in (_check_tokens, _check_money):
            problems += checks(usage, receipt)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problems.append(f"the receipt is malformed: {type(error).__name__}: {error}")
    return problems


def _counts(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    counts = counts_of(usage, signed=True)
    if counts.prompt is None or counts.completion is None:
        raise ValueError("the usage lacks a count of tokens")
    return counts.prompt, counts.cached or 0, counts.completion


def _check_tokens(usage: Mapping[str, Any], receipt: Mapping[str, Any]) -> list[str]:
    prompt, cached, completion = _counts(usage)
    tiers, loss = receipt["cached"], receipt["loss"]
    problems = []
    if receipt["v"] != VERSION:
        problems.append(f"receipt version {receipt['v']} is not {VERSION}")
    if not 0 <= cached <= prompt:
        problems.append(f"cached tokens {cached} are outside [0, {prompt}]")
    if set(tiers) != set(TIERS) or min(tiers.values()) < 0 or sum(tiers.values()) != cached:
        problems.append(f"tiers {dict(tiers)} do not sum to {cached} cached tokens")
    if any(tokens < 0 for tokens in loss.values()) or sum(loss.values()) != prompt - cached:
        problems.append(f"losses {dict(loss)} do not sum to {prompt - cached} uncached tokens")
    if unknown := set(receipt["estimated"]) - set(ESTIMATED_FIELDS):
        problems.append(f"unknown estimated fields {sorted(unknown)}")
    if receipt.get("price_book", "unnamed") == "":
        problems.append("price_book names no book")
    written = receipt.get("cache_write", {})
    if any(tokens < 0 for tokens in written.values()) or sum(written.values()) > prompt - cached:
        problems.append(f"cache writes {dict(written)} are not within {prompt - cached} uncached tokens")
    problems += _check_changes(receipt)
    if "continued" in receipt and not 0 <= receipt["continued"]["after_tokens"] <= completion:
        problems.append(f"continued after {receipt['continued']['after_tokens']} tokens, which is more than the answer")
    return problems


def _check_amounts(receipt: Mapping[str, Any], rates: Rates) -> list[str]:
    """Check the credit, which is for `moved` tokens, and `prefix_break`, which is for `prefix_changed` tokens. In
    either, a token counts the difference of the rates `input` and `cached`.
    """
    problems = []
    credit = receipt.get("credit")
    if credit is not None and "voids" not in receipt:
        moved, amount = receipt["loss"].get("moved", 0), nano_from_pico(credit["tokens"] * (rates.input - rates.cached))
        if not 0 < credit["tokens"] <= moved:
            problems.append(f"the credit is for {credit['tokens']} tokens, but {moved} are moved")
        if credit["nanousd"] != amount:
            problems.append(f"the credit is {credit['nanousd']}, recomputed {amount}")
    found = receipt.get("prefix_break")
    if found is None:
        return problems
    lost = receipt["loss"].get("prefix_changed", 0)
    if found["tokens"] != lost:
        problems.append(f"prefix_break has {found['tokens']} tokens, but {lost} are prefix_changed")
    amount = nano_from_pico(found["tokens"] * (rates.input - rates.cached))
    if found["nanousd"] != amount:
        problems.append(f"prefix_break costs {found['nanousd']}, recomputed {amount}")
    saved = nano_from_pico(found.get("compacted_tokens", 0) * rates.cached)
    if found.get("saved_nanousd_a_turn", 0) != saved:
        problems.append(f"a compaction saves {found.get('saved_nanousd_a_turn')}, recomputed {saved}")
    return problems


def _check_changes(receipt: Mapping[str, Any]) -> list[str]:
    problems = []
    if any(count < 1 for count in (*receipt.get("dropped_blocks", {}).values(), receipt.get("cache_control", 1))):
        problems.append("dropped_blocks or cache_control count less than one")
    if "prefix_changed_by" in receipt and "prefix_changed" not in receipt["loss"]:
        problems.append(f"prefix_changed_by {receipt['prefix_changed_by']}, but no token is prefix_changed")
    return problems


def _check_money(usage: Mapping[str, Any], receipt: Mapping[str, Any]) -> list[str]:
    rates = Rates.from_texts({name: str(rate) for name, rate in receipt["rates_usd_per_mtok"].items() if name in RATES})
    prompt, cached, completion = _counts(usage)
    tiers, written = receipt["cached"], receipt.get("cache_write", {"5m": 0, "1h": 0})
    full, price = list_and_price(
        rates, prompt, cached, completion, tiers["host"], tiers["storage"], written["5m"], written["1h"]
    )
    expected = {"list_nanousd": full, "price_nanousd": price}
    expected["saved_nanousd"] = expected["list_nanousd"] - expected["price_nanousd"]
    problems = _check_amounts(receipt, rates)
    problems += [
        f"{name} is {receipt[name]}, recomputed {amount}"
        for name, amount in expected.items()
        if receipt[name] != amount
    ]
    cost_nanousd = float(usage["cost"]) * 1e9
    if not abs(cost_nanousd - receipt["price_nanousd"]) <= 0.5 + abs(cost_nanousd) * _DOUBLE_ERROR:
        problems.append(f"cost {usage['cost']} USD is not {receipt['price_nanousd']} nanodollars")
    return problems
