"""What an engine says of its load. It is read back from a record, so it stands in a module that is not compiled."""

from warmroute_proxy.core.base.frozen import Frozen


class EngineLoads(Frozen, frozen=True):
    """What an engine says of one rank at `/v1/loads`; `None` where it does not say. Totals only ever grow."""

    running: int | None = None
    waiting_uncached_tokens: int | None = None
    used_tokens: int | None = None
    prefill_uncached_tokens_total: int | None = None
    prefill_busy_us_total: int | None = None
    waiting: int | None = None
    total_tokens: int | None = None
    """In use, and of what waits."""
    max_running: int | None = None
    max_tokens: int | None = None
    """What its KV pool holds."""
