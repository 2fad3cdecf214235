"""Defines an engine's report of its load. Not compiled, because reports are also decoded from decision records."""

from warmroute_proxy.core.base.compiled import Frozen


class EngineLoads(Frozen, frozen=True):
    """What `/v1/loads` reports about one data-parallel rank; None for a missing value. Totals grow until a restart."""

    running: int | None = None
    waiting_uncached_tokens: int | None = None
    used_tokens: int | None = None
    prefill_uncached_tokens_total: int | None = None
    prefill_busy_us_total: int | None = None
    waiting: int | None = None
    total_tokens: int | None = None
    """Tokens in use, plus the tokens of waiting requests."""
    max_running: int | None = None
    max_tokens: int | None = None
    """The size of the KV pool."""
