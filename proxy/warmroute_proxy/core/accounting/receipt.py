"""Builds the receipt of a turn and the usage object that carries it to the client.

A receipt states why tokens were not cached, and the price; `contract.receipt` defines its fields, and how a reader
checks them. The usage object keeps every field that the engine wrote, except those that the proxy determines: the token
counts, `cost` and `warmroute` (the receipt).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from warmroute.contract import money
from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute.contract.receipt import VERSION
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.base.compiled import Frozen

_MAX_COST_USD: Final = 1e6
"""A larger number is not a valid cost of a turn. In nanodollars this maximum fits 64 bits."""

_encode: Final = msgspec.json.Encoder().encode


class ServedBy(Frozen, frozen=True):
    """A worker that took part in a turn, with its role. Receipts and ledger rows show it as JSON."""

    id: str
    dp_rank: int
    role: str


class _Tiers(Frozen, frozen=True):
    device: int
    host: int
    storage: int


class _Receipt(Frozen, frozen=True):
    """A receipt, with its fields in the order of the JSON."""

    v: int
    id: str
    session: str | None
    turn: int
    region: str
    workers: msgspec.Raw
    cached: _Tiers
    predicted_cached: int
    loss: Mapping[str, int]
    rates_usd_per_mtok: msgspec.Raw
    list_nanousd: int
    price_nanousd: int
    saved_nanousd: int
    estimated: tuple[str, ...]


def usage_object(
    entry: Entry,
    usage: Usage,
    loss: Mapping[str, int],
    reported: Mapping[str, Any] | bytes | None,
    changes: Changes = NO_CHANGES,
    receipt_fields: bytes = b"",
) -> tuple[bytes, int, int]:
    """The usage object for the client, as JSON: the engine's own fields, the settled counts, `cost` and `warmroute`.
    `changes`: what the proxy changed in the request. `receipt_fields`: further members of the receipt, as JSON.

    `reported`: the engine's usage object; JSON (bytes) if its counts are exactly the settled counts (`plain_usage`).
    Also returns, in nanodollars, what the turn would have cost with nothing cached, and what it costs.
    """
    rates = entry.rates
    full, price = money.list_and_price(
        rates, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
        usage.host, usage.storage, usage.write_5m, usage.write_1h,
    )  # fmt: skip
    tiers = _Tiers(usage.device, usage.host, usage.storage)
    receipt = _encode(
        _Receipt(
            VERSION, entry.id, entry.session, entry.turn, entry.region, entry.workers, tiers, entry.predicted_cached,
            loss, _rates_json(rates), full, price, full - price, usage.estimated,
        )
    )  # fmt: skip
    if rates.price_book:
        receipt = b"%b%b" % (receipt[:-1], _book_json(rates.price_book))
    if usage.write_5m or usage.write_1h:
        receipt = b'%b,"cache_write":{"5m":%d,"1h":%d}}' % (receipt[:-1], usage.write_5m, usage.write_1h)
    if receipt_fields:
        receipt = b"%b,%b}" % (receipt[:-1], receipt_fields)
    if changes is not NO_CHANGES:
        more = _encode(changes.members(loss))
        receipt = b"%b%b%b" % (receipt[:-1], b"," if len(more) > 2 else b"", more[1:])
    cost = money.usd(price).encode()
    if type(reported) is bytes:
        return b'%b,"cost":%b,"warmroute":%b}' % (reported[:-1], cost, receipt), full, price
    if (charged := _provider_cost(reported)) is not None:
        receipt = b'%b,"provider_cost_nanousd":%d}' % (receipt[:-1], charged)
    if usage.continued_after is not None:
        receipt = b'%b,"continued":{"after_tokens":%d,"by":"text"}}' % (receipt[:-1], usage.continued_after)
    return _merged(usage, reported, cost, receipt), full, price


def _provider_cost(reported: object) -> int | None:
    """What the server states as its charge for the turn, in nanodollars; None if it states no valid amount. The member
    `cost` is in USD, as OpenRouter and other warmroute proxies send it.
    """
    cost = reported.get("cost") if isinstance(reported, dict) else None
    if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < _MAX_COST_USD:
        return round(cost * 1e9)
    return None


def _merged(usage: Usage, reported: Mapping[str, Any] | bytes | None, cost: bytes, receipt: bytes) -> bytes:
    """The engine's usage object with the settled counts. Cached tokens are left out if they were neither stated nor
    counted.
    """
    merged: dict[str, Any] = dict(reported) if isinstance(reported, Mapping) else {}
    merged["prompt_tokens"] = usage.prompt_tokens
    merged["completion_tokens"] = usage.completion_tokens
    merged["total_tokens"] = usage.prompt_tokens + usage.completion_tokens
    details, cached = merged.get("prompt_tokens_details"), {"cached_tokens": usage.cached_tokens}
    details = details if isinstance(details, dict) else {}
    is_stated = details.get("cached_tokens") is not None
    if is_stated or usage.cached_tokens or "cached_tokens" not in usage.estimated:
        merged["prompt_tokens_details"] = {**details, **cached}
    merged["cost"] = msgspec.Raw(cost)
    merged["warmroute"] = msgspec.Raw(receipt)
    return _encode(merged)


def as_warm(receipt_fields: bytes) -> bytes:
    """The receipt members of a turn that only keeps a prompt in the cache: `kind` is "warm"."""
    members = msgspec.json.decode(b"{%b}" % receipt_fields)
    return _encode({**members, "kind": "warm"})[1:-1]


@lru_cache(maxsize=1_024)
def workers_json(workers: tuple[ServedBy, ...]) -> msgspec.Raw:
    """The workers of an attempt, as receipts and ledger rows show them."""
    return msgspec.Raw(_encode(workers))


@lru_cache(maxsize=1_024)
def _book_json(name: str) -> bytes:
    """The end of a receipt that names its price book. Cached, since there are few books."""
    return b',"price_book":%b}' % _encode(name)


@lru_cache(maxsize=1_024)
def _rates_json(rates: money.Rates) -> msgspec.Raw:
    """Rates as the receipt shows them. Cached, since there are few rates."""
    return msgspec.Raw(_encode(rates.as_usd_per_mtok()))
