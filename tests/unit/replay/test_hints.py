"""What it is worth where KV is short that clients say that their sessions are over."""

from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.production import Hints
from warmroute_lab.replay.setup import WITH_WORKING_SET, Setup, run

TRACE = agents_trace(
    Agents(
        sessions=120, starts_within_s=600.0, shared_tokens=1024, own_mean=8000.0, least_turns=2, most_turns=10,
        limit_tokens=120_000,
    ),
    "tight",
)  # fmt: skip


def test_sessions_that_say_that_they_are_over_leave_more_memory_to_the_others() -> None:
    without, with_ends = (
        run(TRACE, Setup(2, kv_tokens=160_000, ending_share=share), WITH_WORKING_SET) for share in (0.0, 1.0)
    )
    assert with_ends.hit > without.hit
    assert with_ends.ttft_mean_s < without.ttft_mean_s


def test_so_many_sessions_say_it_after_their_last_turn() -> None:
    followed = {request.after for request in TRACE.requests}
    last_turns = Hints(TRACE, 0.0, 1.0).last_turns
    assert len(last_turns) == TRACE.sessions
    assert not last_turns & followed
    some = Hints(TRACE, 0.0, 0.5).last_turns
    assert 0 < len(some) < len(last_turns)
    assert some < last_turns
    assert not Hints(TRACE, 0.0, 0.0).last_turns
