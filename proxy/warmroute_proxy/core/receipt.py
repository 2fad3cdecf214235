"""Builds the receipt of a turn and the usage object that carries it to the client.

`contract.receipt` says what a receipt holds and how a reader checks it; here it is made. The usage object keeps every
field that the engine wrote and changes only what was settled otherwise: the token counts, `cost`, `warmroute`.
"""

from collections.abc import Mapping
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


def usage_object(
    receipt_id: str,
    session: str | None,
    turn: int,
    region: str,
    workers: msgspec.Raw,
    usage: Usage,
    predicted_cached: int,
    loss: Mapping[str, int],
    rates: money.Rates,
    reported: Mapping[str, Any] | None,
) -> tuple[bytes, int, int]:
    """The usage object for the client, as JSON: the engine's own fields, the settled counts, `cost` and `warmroute`.

    `workers` is JSON. Returned with what the turn would have cost with nothing cached, and what it costs, nanodollars.
    """
    prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    full = money.list_nanousd(rates, prompt, completion)
    price = money.price_nanousd(rates, prompt, cached, completion)
    receipt = _RECEIPT % (
        VERSION,
        _encode(receipt_id),
        _encode(session),
        turn,
        _encode(region),
        workers,
        usage.device,
        usage.host,
        usage.storage,
        predicted_cached,
        _encode(loss),
        _rates_json(rates),
        full,
        price,
        full - price,
        _encode(usage.estimated) if usage.estimated else b"[]",
    )
    if usage.continued_after is not None:
        receipt = b'%b,"continued":{"after_tokens":%d,"by":"text"}}' % (receipt[:-1], usage.continued_after)
    merged: dict[str, Any] = dict(reported) if reported is not None else {}
    details = merged.get("prompt_tokens_details")
    merged["prompt_tokens"] = prompt
    merged["completion_tokens"] = completion
    merged["total_tokens"] = prompt + completion
    merged["prompt_tokens_details"] = (
        {**details, "cached_tokens": cached} if isinstance(details, dict) else {"cached_tokens": cached}
    )
    merged["cost"] = msgspec.Raw(money.usd(price).encode())
    merged["warmroute"] = msgspec.Raw(receipt)
    return _encode(merged), full, price


_RECEIPT: Final = (
    b'{"v":%d,"id":%b,"session":%b,"turn":%d,"region":%b,"workers":%b,"cached":{"device":%d,"host":%d,"storage":%d},'
    b'"predicted_cached":%d,"loss":%b,"rates_usd_per_mtok":%b,"list_nanousd":%d,"price_nanousd":%d,'
    b'"saved_nanousd":%d,"estimated":%b}'
)


@lru_cache(maxsize=1_024)
def workers_json(workers: tuple[ServedBy, ...]) -> msgspec.Raw:
    """The workers of an attempt as receipts and rows show them: a fleet has few, so they are written once."""
    return msgspec.Raw(_encode(workers))


@lru_cache(maxsize=1_024)
def _rates_json(rates: money.Rates) -> bytes:
    """Rates as the receipt shows them; few as well."""
    return msgspec.json.encode(rates.as_usd_per_mtok())
