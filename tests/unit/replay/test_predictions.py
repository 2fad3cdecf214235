"""How far predictions of cached tokens are off where caches hold a third of what their sessions use."""

import pytest

from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.setup import Setup, run

WORKERS = 4
POOL_SHARE = 0.3
MOST = {"warmroute": 0.05, "warmroute+events": 0.01}
"""The 95th percentile of the error, as a share of the prompt."""


@pytest.mark.parametrize("policy", list(MOST))
def test_evictions_are_foreseen_without_events_and_known_with_them(policy: str) -> None:
    agents = Agents(
        sessions=100, starts_within_s=600.0, shared_tokens=4096, own_mean=8000.0, least_turns=8, most_turns=24,
        limit_tokens=120_000,
    )  # fmt: skip
    trace = agents_trace(agents, "tight")
    longest: dict[int, int] = {}
    for request in trace.requests:
        tokens = request.input_tokens + request.output_tokens
        longest[request.session] = max(longest.get(request.session, 0), tokens)
    pool_tokens = int(sum(longest.values()) * POOL_SHARE / WORKERS)
    result = run(trace, Setup(WORKERS, kv_tokens=pool_tokens), policy)
    assert result.hit < trace.ceiling() - 0.03  # histories are evicted
    assert result.prediction_error_p95 is not None
    assert result.prediction_error_p95 <= MOST[policy]
