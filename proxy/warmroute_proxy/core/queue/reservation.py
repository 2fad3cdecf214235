"""What one request has reserved of all that its tenant may use: its quota, budgets, and limits over all proxies."""

import math
from typing import Final

from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.queue.budget import Amounts, SpendReservation
from warmroute_proxy.core.queue.quota import Quota, TenantLimits

NO_QUOTA: Final = Quota(TenantLimits(), 0.0)
"""Of requests that another region has counted."""


class Reservation:
    """What one request has reserved of its tenant's quota."""

    __slots__ = ("began", "quota", "sequences", "spend", "tokens", "window")

    def __init__(self, quota: Quota, tokens: int, sequences: int) -> None:
        self.quota = quota
        self.tokens = tokens
        self.sequences = sequences
        self.began = False
        self.spend: SpendReservation | None = None
        """Of its budgets; None where it has none, or another region pays."""

        self.window: SpendReservation | None = None
        """Of limits by the minute over all proxies; None where there are none, or another region has counted it."""

    def begin(self) -> None:
        """The request is under way."""
        if not self.began:
            self.began = True
            self.quota.begin(self.tokens, self.sequences)

    def end(self, tokens_used: int | None, now_s: float) -> None:
        """Release it; so many tokens were used, None where the request did not run."""
        if self.window is not None:
            if tokens_used is not None:
                self.window.keep(Amounts(requests=self.sequences, tokens=tokens_used))
            self.window.release()
        if self.spend is not None:
            self.spend.release()
        if self.began:
            self.quota.end(self.tokens, self.sequences)
        if tokens_used is None:
            self.quota.give_back(self.sequences, self.tokens, now_s)
        else:
            self.quota.give_back(0, self.tokens - tokens_used, now_s)

    def counted(self, usage: Usage) -> int:
        """How many tokens of the tenant's limits a request has used."""
        weight = self.quota.limits.cached_weight
        cached = usage.cached_tokens if weight == 1.0 else math.floor(usage.cached_tokens * weight)
        used = usage.prompt_tokens - usage.cached_tokens + cached + usage.completion_tokens
        # Of an answer whose tokens are estimated, only some may have been counted.
        return max(used, self.tokens) if "completion_tokens" in usage.estimated else used

    def spent(self, price_nanousd: int, now_s: float) -> None:
        """The row of the request is made: it has cost so much. `now_s`: unix seconds."""
        if self.spend is not None:
            self.spend.spend(Amounts(price_nanousd), now_s)
