"""Builds the receipt of a turn and the usage object that carries it to the client.

`contract.receipt` says what a receipt holds and how a reader checks it; here it is made. The usage object keeps every
field that the engine wrote and changes only what was settled otherwise: the token counts, `cost`, `warmroute`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from warmroute.contract import money
from warmroute.contract.receipt import VERSION
from warmroute_proxy.core.usage import Usage


class ServedBy(NamedTuple):
    """A worker that took part in a turn: (engine, dp_rank) and the role it had."""

    id: str
    dp_rank: int
    role: str

    def as_json(self) -> dict[str, Any]:
        """The worker as receipts and rows show it."""
        return {"id": self.id, "dp_rank": self.dp_rank, "role": self.role}


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
) -> dict[str, Any]:
    """The `warmroute` object of a usage object."""
    full = money.list_nanousd(rates, usage.prompt_tokens, usage.completion_tokens)
    price = money.price_nanousd(rates, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    return {
        "v": VERSION,
        "id": receipt_id,
        "session": session,
        "turn": turn,
        "region": region,
        "workers": [worker.as_json() for worker in workers],
        "cached": {"device": usage.device, "host": usage.host, "storage": usage.storage},
        "predicted_cached": predicted_cached,
        "loss": dict(loss),
        "rates_usd_per_mtok": rates.as_usd_per_mtok(),
        "list_nanousd": full,
        "price_nanousd": price,
        "saved_nanousd": full - price,
        "estimated": list(usage.estimated),
    }


def usage_object(usage: Usage, receipt: Mapping[str, Any], reported: Mapping[str, Any] | None) -> bytes:
    """The usage object for the client, as JSON: the engine's own fields, the settled counts, `cost` and `warmroute`."""
    merged: dict[str, Any] = dict(reported) if isinstance(reported, Mapping) else {}
    details = merged.get("prompt_tokens_details")
    merged["prompt_tokens"] = usage.prompt_tokens
    merged["completion_tokens"] = usage.completion_tokens
    merged["total_tokens"] = usage.prompt_tokens + usage.completion_tokens
    merged["prompt_tokens_details"] = {
        **(details if isinstance(details, Mapping) else {}),
        "cached_tokens": usage.cached_tokens,
    }
    merged["cost"] = msgspec.Raw(money.usd(receipt["price_nanousd"]).encode())
    merged["warmroute"] = receipt
    return msgspec.json.encode(merged)
