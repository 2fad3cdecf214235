"""Builds the receipt of a turn and the usage object that carries it to the client.

`contract.receipt` says what a receipt holds and how a reader checks it; here it is made. The usage object keeps every
field that the engine wrote and changes only what was settled otherwise: the token counts, `cost`, `warmroute`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from warmroute.contract import money
from warmroute.contract.receipt import VERSION
from warmroute_proxy.core.usage import Usage

_encode: Final = msgspec.json.Encoder().encode


class ServedBy(msgspec.Struct, frozen=True, gc=False):
    """A worker that took part in a turn: (engine, dp_rank) and the role it had. JSON as receipts and rows show it."""

    id: str
    dp_rank: int
    role: str


class Tiers(msgspec.Struct, frozen=True, gc=False):
    """Cached tokens by where they were found."""

    device: int
    host: int
    storage: int


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The `warmroute` object of a usage object, its members in order."""

    v: int
    id: str
    session: str | None
    turn: int
    region: str
    workers: Sequence[ServedBy]
    cached: Tiers
    predicted_cached: int
    loss: Mapping[str, int]
    rates_usd_per_mtok: msgspec.Raw
    list_nanousd: int
    price_nanousd: int
    saved_nanousd: int
    estimated: Sequence[str]


def build_receipt(
    *,
    receipt_id: str,
    session: str | None,
    turn: int,
    region: str,
    workers: Sequence[ServedBy],
    usage: Usage,
    predicted_cached: int,
    loss: Mapping[str, int],
    rates: money.Rates,
) -> Receipt:
    """The receipt of a turn: what it cost, and why."""
    full = money.list_nanousd(rates, usage.prompt_tokens, usage.completion_tokens)
    price = money.price_nanousd(rates, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    return Receipt(
        VERSION,
        receipt_id,
        session,
        turn,
        region,
        workers,
        Tiers(usage.device, usage.host, usage.storage),
        predicted_cached,
        loss,
        _rates_json(rates),
        full,
        price,
        full - price,
        usage.estimated,
    )


@lru_cache(maxsize=1_024)
def _rates_json(rates: money.Rates) -> msgspec.Raw:
    """Rates as the receipt shows them: a fleet has few, so they are written once."""
    return msgspec.Raw(msgspec.json.encode(rates.as_usd_per_mtok()))


def usage_object(usage: Usage, receipt: Receipt, reported: Mapping[str, Any] | None) -> bytes:
    """The usage object for the client, as JSON: the engine's own fields, the settled counts, `cost` and `warmroute`."""
    merged: dict[str, Any] = dict(reported) if reported is not None else {}
    details = merged.get("prompt_tokens_details")
    merged["prompt_tokens"] = usage.prompt_tokens
    merged["completion_tokens"] = usage.completion_tokens
    merged["total_tokens"] = usage.prompt_tokens + usage.completion_tokens
    merged["prompt_tokens_details"] = {
        **(details if isinstance(details, dict) else {}),
        "cached_tokens": usage.cached_tokens,
    }
    merged["cost"] = msgspec.Raw(money.usd(receipt.price_nanousd).encode())
    merged["warmroute"] = receipt
    return _encode(merged)
