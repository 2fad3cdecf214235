"""What a settled request counts of its tenant's limits of tokens."""

import pytest

from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.queue.quota import Quota, ScopeLimits, TenantLimits, reserve
from warmroute_proxy.core.queue.reservation import Reservation
from warmroute_proxy.core.queue.scope import Scope

USED = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 65}}


@pytest.mark.parametrize(("weight", "counted"), [(1.0, 110), (0.5, 77), (0.0, 45)])
def test_cached_tokens_count_by_their_weight(weight: float, counted: int) -> None:
    limits = TenantLimits(tokens_per_minute=1_000, cached_weight=weight)
    quota = Quota(ScopeLimits(Scope("b", ("acme",)), limits), 0.0)
    reservation = Reservation((quota,), 200, 1)
    reserve((quota,), 200, 0.0)
    reservation.end(reservation.used(merge_usage(USED, None, None, 0)), 0.0)
    assert quota.tokens is not None
    assert quota.tokens.remaining(0.0) == 1_000 - counted
