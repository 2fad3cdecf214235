"""Forks: prompts that share a head and come at once, as those of sub-agents."""

from collections import Counter

import pytest
from tests.subjects.routing import routing_of

from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.forks import LASTS_HEADS, Forks
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

BLOCK = 4000  # bytes, 1,000 tokens by the prior of 4 bytes a token
HEAD_BLOCKS = 40
HEAD_S = 2.0  # at 20,000 tokens a second
WORKERS = [Worker(f"w{number}", f"w{number}", 0, "aggregated") for number in range(8)]


def branch(number: int, own_blocks: int = 2) -> Chain:
    hashes = [*range(HEAD_BLOCKS), *(1000 * number + at for at in range(own_blocks))]
    return Chain(hashes, [BLOCK * (at + 1) for at in range(len(hashes))])


def parent() -> RoutingRequest:
    return routing_of(branch(0, 0))


def warm() -> Router:
    """A router whose fleet has computed the head, at one worker."""
    router = Router("east", WORKERS)
    decision = router.place(parent(), 0.0)
    router.settled(router.dispatched(parent(), decision, 0.0), parent(), 3.0, None, None, None)
    return router


def forked(router: Router, branches: int, now_s: float, *, same_session: bool = False) -> list[str]:
    """Where the branches go that come now, none of which has a first token yet."""
    found = []
    for number in range(1, branches + 1):
        name = 1 if same_session else 100 + number
        request = routing_of(branch(number), session=name, lineage=name, turn=2 if same_session else 1)
        decision = router.place(request, now_s)
        router.dispatched(request, decision, now_s)
        found.append(decision.cache_worker)
    return found


@pytest.mark.parametrize("same_session", [False, True])
def test_few_branches_join_the_worker_that_has_the_head(same_session: bool) -> None:
    assert len(set(forked(warm(), 8, 60.0, same_session=same_session))) == 1


@pytest.mark.parametrize("same_session", [False, True])
def test_many_branches_neither_queue_at_one_worker_nor_compute_the_head_everywhere(same_session: bool) -> None:
    placed = Counter(forked(warm(), 43, 60.0, same_session=same_session))
    assert len(placed) == 3
    assert max(placed.values()) <= 30


def test_a_head_that_is_under_way_is_joined_rather_than_computed_again() -> None:
    assert len(set(forked(Router("east", WORKERS), 8, 0.0))) == 1


def test_a_fetch_from_a_store_counts_as_what_later_branches_wait_for() -> None:
    """100,000 tokens are fetched in a second; joining a worker that fetches is no better than fetching oneself."""
    workers = [Worker(f"w{number}", f"w{number}", 0, "aggregated", host_cache=True, store="s") for number in range(2)]
    router = Router("east", workers)
    head = Chain(list(range(100)), [BLOCK * (at + 1) for at in range(100)])
    router.cache_stored("w0", head.hashes, "storage")
    request = routing_of(Chain([*head.hashes, 1000], [*head.ends, head.ends[-1] + BLOCK]))
    router.dispatched(request, router.place(request, 0.0), 0.0)
    queues = sorted(worker["queue_s"] for worker in router.snapshot(0.0)["workers"].values())
    assert queues == [0.0, pytest.approx(1.05)]
    assert router.snapshot(0.0)["workers"]["w0"]["prefill_tokens"] in {0, 1000}


def test_a_conversation_that_continues_its_own_prompt_is_no_fork() -> None:
    router = warm()
    for turn in range(2, 6):
        request = routing_of(branch(1, 2 * turn), turn=turn)
        decision = router.place(request, float(turn))
        assert decision.branches == 0
        router.settled(router.dispatched(request, decision, float(turn)), request, float(turn), None, None, None)


def test_one_question_asked_many_times_is_no_fork() -> None:
    router = warm()
    again = [router.place(parent(), 60.0) for _ in range(3)]
    for decision in again:
        router.dispatched(parent(), decision, 60.0)
    assert router.place(parent(), 60.0).branches == 0


def test_a_fork_ends_some_time_after_its_last_prompt_and_old_ones_make_room() -> None:
    forks = Forks(max_forks=2)
    forks.sent(1, 500, False, None, 0.0)
    forks.sent(1, 500, True, forks.of(1, HEAD_S, 0.4), 0.4)
    fork = forks.of(1, HEAD_S, 0.4 + LASTS_HEADS * HEAD_S)
    assert fork is not None
    assert (fork.branches, fork.own_tokens, fork.copies) == (2, 1000, 1)
    assert forks.of(1, HEAD_S, 0.5 + LASTS_HEADS * HEAD_S) is None
    for cut in range(2, 7):
        forks.sent(cut, 500, False, None, 0.4)
    assert forks.of(1, HEAD_S, 0.4) is None
    assert forks.of(6, HEAD_S, 0.4) is not None
