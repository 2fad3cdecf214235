"""Entries of the ledger, made and settled as the proxy does both."""

from collections.abc import Mapping
from typing import Any, Final

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting import entry_steps
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.accounting.usage_fields import Usage

RATES: Final = Rates(600_000, 100_000, 3_000_000)
ENGINE: Final = ServedBy("east-a0", 0, "aggregated")
REPORTED: Final = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 64}}


def opened_entry(number: int = 1, **changed: Any) -> Entry:
    """The entry of a chat that no engine has yet; `changed`: fields that are others."""
    fields: dict[str, Any] = {
        "id": f"wr-{number:024x}",
        "tenant": "acme",
        "session": None,
        "lineage": "00000000000000aa",
        "turn": 1,
        "region": "east",
        "model": "m",
        "route": "chat",
        "stream": False,
        "rates": RATES,
        "opened_at": 1.0,
    }
    return Entry(**{**fields, **changed})


def dispatched_entry(number: int = 1, predicted: int = 64, **changed: Any) -> Entry:
    """An entry whose request an engine has."""
    entry = opened_entry(number, **changed)
    entry_steps.dispatch(entry, f"rid-{number}", (ENGINE,), predicted)
    return entry


def settle(
    entry: Entry,
    reported: Mapping[str, Any] = REPORTED,
    loss: Mapping[str, int] | None = None,
    usage: Usage | None = None,
    **ending: Any,
) -> Entry:
    """Settle an entry by an engine's report. `loss`: if not 36 cold tokens; `ending`: fields of it that are others."""
    fields = {"outcome": "completed", "status": 200, "settled_at": 2.0, "proxy_ms": 0.1, "ttft_ms": None, **ending}
    usage = merge_usage(dict(reported), None, None, 0) if usage is None else usage
    loss = {"cold": 36} if loss is None else loss
    entry_steps.settle(entry, usage, loss, dict(reported), entry_steps.Ending(**fields))
    return entry
