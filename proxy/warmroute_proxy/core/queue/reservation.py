"""Holds what one request has reserved from quotas, from budgets, and from limits over all proxies."""

from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.queue.budget import Amounts, SpendReservation
from warmroute_proxy.core.queue.quota import Quota, UsedTokens
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.core.queue.slots import SlotLease


class Reservation:
    __slots__ = ("began", "quotas", "sequences", "slots", "spend", "tokens", "window")

    def __init__(self, quotas: tuple[Quota, ...], tokens: int, sequences: int) -> None:
        """`quotas`: empty if another region, which forwarded the request, has counted it."""
        self.quotas = quotas
        self.tokens = tokens
        self.sequences = sequences
        self.began = False
        self.spend: SpendReservation | None = None
        """The reservation of budgets; None without budgets, or if another region pays."""

        self.window: SpendReservation | None = None
        """The reservation of limits per minute over all proxies; None without such limits, or if another region has
        counted the request.
        """

        self.slots: tuple[SlotLease, ...] = ()
        """The limits "at once" over all proxies that apply to the request."""

    def at_once_reached(self) -> tuple[Scope, str] | None:
        """The limit "at once" for which the request has to wait: its scope, and its words. None if the request may
        begin.
        """
        if self.began:
            return None
        for quota in self.quotas:
            if not quota.may_begin():
                return quota.of.scope, quota.at_once_words()
        for lease in self.slots:
            if not lease.may_begin():
                return lease.slots.scope, f"{lease.slots.limit} requests at once over all proxies"
        return None

    def begin(self) -> None:
        if not self.began:
            self.began = True
            for quota in self.quotas:
                quota.begin(self.tokens, self.sequences)
            for lease in self.slots:
                lease.begin(self.sequences)

    def end(self, used: UsedTokens | None, now_s: float) -> None:
        """Release the reservation. `used`: the tokens used; None if the request did not run."""
        if self.window is not None:
            if used is not None:
                self.window.keep(Amounts(requests=self.sequences, tokens=used))
            self.window.release()
        if self.spend is not None:
            self.spend.release()
        for quota in self.quotas:
            if self.began:
                quota.end(self.tokens, self.sequences)
            if used is None:
                quota.take(-self.sequences, -self.tokens, now_s)
            elif quota.tokens is not None:
                quota.tokens.take(used.weighed(quota.limits.cached_weight) - self.tokens, now_s)
        if self.began:
            for lease in self.slots:
                lease.end(self.sequences, now_s)

    def used(self, usage: Usage) -> UsedTokens:
        # If the tokens of an answer are estimated, some may be missing from the count. So at least the reserved tokens
        # count.
        at_least = self.tokens if "completion_tokens" in usage.estimated else 0
        return UsedTokens(usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens, at_least)

    def spent(self, price_nanousd: int, now_s: float) -> None:
        """Spend the price that the request's ledger row states. `now_s`: unix seconds."""
        if self.spend is not None:
            self.spend.spend(Amounts(price_nanousd), now_s)
