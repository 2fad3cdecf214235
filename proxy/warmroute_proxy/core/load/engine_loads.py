"""What an engine reports of its load. The report is decoded from records, so this module is not compiled."""

from warmroute_proxy.core.base.compiled import Frozen


class EngineLoads(Frozen, frozen=True):
    """What an engine reports of one rank at `/v1/loads`; None for what it does not report. Totals only grow."""

    running: int | None = None
    waiting_uncached_tokens: int | None = None
    used_tokens: int | None = None
    prefill_uncached_tokens_total: int | None = None
    prefill_busy_us_total: int | None = None
    waiting: int | None = None
    total_tokens: int | None = None
    """Tokens in use, plus those of waiting requests."""
    max_running: int | None = None
    max_tokens: int | None = None
    """The size of the KV pool."""
