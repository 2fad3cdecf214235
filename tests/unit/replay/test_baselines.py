"""Each baseline's rule, on workers whose state is written by hand."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from warmroute_lab.engine.model.work import Work
from warmroute_lab.replay.baselines.dualmap import DualMap, HotPrefixes
from warmroute_lab.replay.baselines.dynamo import DynamoKv
from warmroute_lab.replay.baselines.hashing import BoundedRing, PrefixHash, Ring, SmgPrefixHash
from warmroute_lab.replay.baselines.load import LeastRequests, LeastTokens, LMetric, PowerOfTwo, SessionSticky
from warmroute_lab.replay.baselines.preble import REBALANCE_FROM, WINDOW_S, PrebleE2
from warmroute_lab.replay.baselines.skylb import SkyLb
from warmroute_lab.replay.baselines.smg import CLI, FIRST, RoutedTree, SmgApprox
from warmroute_lab.replay.baselines.thunderagent import ThunderAgent
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_lab.replay.policy import Policy
from warmroute_lab.replay.simulation import make_scheduler
from warmroute_lab.replay.trace import Request

pytestmark = pytest.mark.full

BLOCK = 512
RATE = 20_000
"""Tokens/s that a worker of the reference model prefills."""


class View(Worker):
    """A worker that says what the test wants it to say."""

    __slots__ = ("cached", "pending")

    def __init__(self, index: int, region: str = "") -> None:
        super().__init__(index, region, "aggregated", make_scheduler("aggregated", 3_000_000, BLOCK))
        self.cached = 0
        self.pending = 0

    def cached_tokens(self, request: Request, *, in_flight: bool = False) -> int:
        return self.cached

    def pending_tokens(self) -> int:
        return self.pending


def views(count: int, **values: Sequence[int]) -> list[View]:
    """So many workers, with values of theirs by name."""
    found = [View(index) for index in range(count)]
    for name, each in values.items():
        for view, value in zip(found, each, strict=True):
            setattr(view, name, value)
    return found


def fleet(found: Sequence[View]) -> ReplayFleet:
    return ReplayFleet(list(found))


def turn(
    blocks: Sequence[int] = (1, 2, 3, 4),
    *,
    session: int = 0,
    tail: int | None = None,
    tail_tokens: int = 0,
    output: int = 10,
) -> ReplayTurn:
    tokens = BLOCK * len(blocks) + tail_tokens
    return ReplayTurn(Request(0, 0.0, None, session, 1, tokens, output, list(blocks), tail), 0.0, "")


def chosen(policy: Policy, made: ReplayTurn, now_s: float = 0.0) -> int:
    worker = policy.choose(made, now_s)
    assert worker is not None
    return worker.index


# --- load alone


def test_least_tokens_and_least_requests_look_at_what_their_names_say() -> None:
    found = views(3, tokens=[50, 10, 30], requests=[1, 9, 4])
    assert chosen(LeastTokens(fleet(found)), turn()) == 1
    assert chosen(LeastRequests(fleet(found)), turn()) == 0


@pytest.mark.parametrize("policy", [LeastTokens, LeastRequests, LMetric, DynamoKv])
def test_ties_go_to_any_of_the_best(policy: Any) -> None:
    made = policy(fleet(views(3, tokens=[0, 0, 9], requests=[0, 0, 9], pending=[0, 0, 9])))
    seen = Counter(_ended(made, chosen(made, one), one) for one in (turn() for _ in range(50)))
    assert set(seen) >= {0, 1}


def _ended(policy: Policy, index: int, made: ReplayTurn) -> int:
    """Ends a turn at once, so that the policy's own counts stay as they were."""
    policy.ended(made, 0.0)
    return index


def test_power_of_two_never_takes_the_busiest() -> None:
    policy = PowerOfTwo(fleet(views(4, tokens=[10, 20, 30, 99])))
    seen = Counter(chosen(policy, turn()) for _ in range(200))
    assert set(seen) == {0, 1, 2}
    assert seen[0] > seen[1] > seen[2]
    assert chosen(PowerOfTwo(fleet(views(1))), turn()) == 0


def test_a_session_stays_where_its_first_turn_went_while_that_worker_is_there() -> None:
    found = views(3, tokens=[5, 1, 9])
    of = fleet(found)
    policy = SessionSticky(of)
    assert chosen(policy, turn(session=7)) == 1
    found[1].tokens = 1_000_000
    assert chosen(policy, turn(session=7)) == 1
    assert chosen(policy, turn(session=8)) == 0
    of.set_up([0, 2])
    assert chosen(policy, turn(session=7)) == 0


# --- hashes


def test_prompts_that_share_two_blocks_share_a_worker() -> None:
    policy = PrefixHash(fleet(views(8)))
    assert len({chosen(policy, turn([1, 2, last])) for last in range(20)}) == 1
    assert len({chosen(policy, turn([1, second])) for second in range(100)}) == 8
    assert chosen(policy, turn([], tail=5, tail_tokens=9)) == chosen(policy, turn([], tail=5, tail_tokens=9))


def test_a_worker_that_goes_moves_only_its_own_keys_on_a_ring() -> None:
    found = views(8)
    whole, without = Ring(list(found), 3), Ring(list(found[:5] + found[6:]), 3)
    owners = {key: next(whole.walk(key)).index for key in range(2000)}
    moved = [key for key, owner in owners.items() if next(without.walk(key)).index != owner]
    assert {owners[key] for key in moved} == {5}
    assert len(moved) == list(owners.values()).count(5)
    assert max(Counter(owners.values()).values()) < 2 * 2000 / 8
    assert sorted(each.index for each in whole.walk(1)) == list(range(8))


def test_a_bounded_ring_passes_workers_that_have_their_share() -> None:
    found = views(4)
    policy = BoundedRing(fleet(found))
    order = [each.index for each in Ring(list(found), 0).walk(42)]
    assert chosen(policy, turn(session=42)) == order[0]
    for view in found:
        view.requests = 4
    found[order[0]].requests = 5  # of 17, with this one 18: a share of 4.5, times 1.25 is 5.6, so up to 6
    assert chosen(policy, turn(session=42)) == order[0]
    found[order[0]].requests = 6  # of 18, with this one 19: up to 6
    assert chosen(policy, turn(session=42)) == order[1]


def test_a_bounded_ring_goes_by_session_or_by_prefix() -> None:
    by_session, by_prefix = BoundedRing(fleet(views(8))), BoundedRing(fleet(views(8)), by_prefix=True)
    assert len({chosen(by_session, turn([1, 2], session=session)) for session in range(50)}) > 4
    assert len({chosen(by_prefix, turn([1, 2, session], session=session)) for session in range(50)}) == 1


def test_smg_prefix_hash_leaves_a_full_worker_for_the_idlest() -> None:
    found = views(4)
    policy = SmgPrefixHash(fleet(found))
    home = chosen(policy, turn([9, 1]))
    assert chosen(policy, turn([9, 77])) == home
    for view in found:
        view.requests = 4
    found[home].requests = 6
    idlest = (home + 1) % 4
    found[idlest].requests = 2
    assert chosen(policy, turn([9, 1])) == idlest


# --- SMG's tree


def test_smg_follows_the_worker_that_was_last_sent_more_than_half() -> None:
    found = views(3)
    policy = SmgApprox(fleet(found))
    assert chosen(policy, turn([1, 2, 3])) == 0
    found[0].requests = 5
    assert chosen(policy, turn([1, 2, 3, 4, 5])) == 0  # three of five blocks are known
    assert chosen(policy, turn([1, 2, 3, 6, 7, 8, 9])) == 1  # three of seven are not enough: the fewest requests
    assert chosen(policy, turn([1, 2, 3, 10])) == 1  # both have it, the other was last sent it


def test_smg_goes_by_requests_while_they_are_uneven() -> None:
    found = views(2)
    policy = SmgApprox(fleet(found))
    assert chosen(policy, turn([1, 2])) == 0
    found[0].requests = 32
    assert chosen(policy, turn([1, 2])) == 0
    found[0].requests = 33
    assert chosen(policy, turn([1, 2])) == 1


def test_the_command_line_thresholds_keep_affinity_for_longer() -> None:
    found = views(2)
    policy = SmgApprox(fleet(found), CLI)
    assert chosen(policy, turn([1, 2])) == 0
    found[0].requests = 64
    assert chosen(policy, turn([1, 2, 3, 4, 5])) == 0  # 0.4 of the prompt, 64 more requests
    found[0].requests = 65
    assert chosen(policy, turn([1, 2])) == 1
    assert (FIRST.cache, CLI.cache) == (0.5, 0.3)


def test_the_tree_forgets_leaves_that_were_used_least_recently() -> None:
    tree = RoutedTree(BLOCK)
    tree.insert(turn([1, 2, 3]).request, 0)
    tree.insert(turn([1, 9], tail=8, tail_tokens=100).request, 1)
    assert tree.tokens == 5 * BLOCK + 100
    tree.cut(4 * BLOCK + 100)
    assert tree.match(turn([1, 2, 3]).request, {0, 1}) == (2 * BLOCK, 0)
    assert tree.match(turn([1, 9], tail=8, tail_tokens=100).request, {0, 1}) == (2 * BLOCK + 100, 1)
    assert tree.match(turn([1, 2, 3]).request, {1}) == (BLOCK, 1)
    tree.cut(0)
    assert (tree.tokens, tree.match(turn([1]).request, {0, 1})) == (0, (0, None))


# --- costs


def test_dynamo_adds_prefill_and_decode_blocks() -> None:
    found = views(2, cached=[3 * BLOCK, 0])
    policy = DynamoKv(fleet(found))
    assert chosen(policy, turn([1, 2, 3, 4])) == 0  # 4 - 3 + 4 blocks against 4 + 4
    other = turn([1, 2, 3, 5])
    assert chosen(policy, other) == 0  # (1 + 4 - 3) + 5 = 7 against 4 + 4
    assert chosen(policy, turn([1, 2, 3, 6])) == 1  # (2 + 4 - 3) + 6 = 9 against 8


def test_dynamo_with_a_prefill_scale_keeps_to_the_cache() -> None:
    for scale, expected in ((1.0, 1), (16.0, 0)):
        found = views(2, cached=[3 * BLOCK, 0])
        policy = DynamoKv(fleet(found), prefill_load_scale=scale)
        for at in range(3):
            made = turn([100 * at + 10, 100 * at + 11, 100 * at + 12, 100 * at + 13])
            policy.active[0].blocks.update(made.request.blocks)
        assert chosen(policy, turn([1, 2, 3, 4])) == expected


def test_dynamo_counts_prefill_until_the_first_token_and_blocks_until_the_end() -> None:
    policy = DynamoKv(fleet(views(1, cached=[BLOCK])))
    made, lost = turn([1, 2, 3], tail=9, tail_tokens=10), turn([1, 7])
    policy.choose(made, 0.0)
    policy.choose(lost, 0.0)
    active = policy.active[0]
    assert active.prefill_tokens == (2 * BLOCK + 10) + BLOCK
    assert sorted(active.blocks) == [1, 2, 3, 7]
    policy.started(made, 1.0)
    assert active.prefill_tokens == BLOCK
    policy.ended(made, 2.0)
    assert sorted(active.blocks) == [1, 7]
    policy.lost(lost, 3.0)
    assert (active.prefill_tokens, dict(active.blocks)) == (0, {})


def test_lmetric_multiplies_prefill_tokens_and_batch_size() -> None:
    found = views(3, cached=[1536, 0, 0], pending=[600, 0, 100], requests=[3, 2, 1])
    assert chosen(LMetric(fleet(found)), turn([1, 2, 3, 4])) == 2  # 2148 * 2, against 1112 * 4 and 2048 * 3
    found[2].pending = 200
    assert chosen(LMetric(fleet(found)), turn([1, 2, 3, 4])) == 0  # 4448 against 2248 * 2 = 4496


def test_preble_exploits_what_is_mostly_cached_and_explores_else() -> None:
    found = views(3, cached=[0, 1536, 1536])
    policy = PrebleE2(fleet(found))
    assert chosen(policy, turn([1, 2, 3, 4])) == 1
    assert chosen(policy, turn([1, 2, 3, 4])) == 2  # as long a prefix, and less load
    found[1].cached = found[2].cached = 1024  # half is not most: explore
    assert chosen(policy, turn([1, 2, 3, 4])) == 0


def test_preble_sends_what_the_heaviest_would_get_to_the_lightest() -> None:
    found = views(2, cached=[1536, 0])
    policy = PrebleE2(fleet(found))
    for _ in range(2 * REBALANCE_FROM):
        assert chosen(policy, turn([1, 2, 3, 4])) == 0
    assert chosen(policy, turn([1, 2, 3, 4])) == 1


def test_preble_forgets_load_after_its_window() -> None:
    found = views(2)
    policy = PrebleE2(fleet(found))
    assert chosen(policy, turn(), now_s=0.0) == 0
    assert chosen(policy, turn(), now_s=1.0) == 1
    assert chosen(policy, turn(), now_s=WINDOW_S + 0.5) == 0
    made = turn(output=101)
    made.first_token_s = 10.0
    policy.ended(made, 20.0)
    assert policy.load_s(found[0]) == pytest.approx(4 * BLOCK / RATE + 101 * (0.15 + 0.1) / 2)


def test_dualmap_takes_the_warmer_of_two_until_the_slo_is_in_danger() -> None:
    found = views(8)
    policy = DualMap(fleet(found))
    pair = {chosen(DualMap(fleet(views(8, cached=[index == warm for index in range(8)]))), turn()) for warm in range(8)}
    assert len(pair) == 2
    first, second = sorted(pair)
    found[first].cached = 3 * BLOCK
    assert chosen(policy, turn()) == first
    found[first].pending = 5 * RATE - BLOCK
    assert chosen(policy, turn()) == first
    found[first].pending += 1
    assert chosen(policy, turn()) == second
    found[second].pending = 6 * RATE
    assert chosen(policy, turn()) == first
    found[first].cached = found[first].pending = 0
    assert chosen(policy, turn()) == first  # as warm, and less loaded


def test_dualmap_hashes_more_of_a_prefix_that_many_share() -> None:
    hot = HotPrefixes()
    keys = [hot.key(turn([1, 2, 3, number]).request, BLOCK, 8) for number in range(60)]
    assert keys[0] == 2
    assert 3 in keys
    assert len(set(keys[-20:])) == 20
    for number in range(400):
        hot.key(turn([1000 + number, 2000 + number]).request, BLOCK, 8)
    assert hot.key(turn([1, 2, 3, 99]).request, BLOCK, 8) in {3, 99}
    assert hot.key(turn([1, 2, 3, 100]).request, BLOCK, 8) in {2, 3}
    assert hot.key(turn([1, 2, 3, 101]).request, BLOCK, 8) == 2
    assert hot.key(turn([], session=5).request, BLOCK, 8) == 5


# --- regions


def regions() -> list[View]:
    return [View(0, "east"), View(1, "east"), View(2, "west"), View(3, "north")]


def queue(view: View) -> None:
    view.scheduler.waiting.append(Work(100, 1, []))


def from_east(blocks: Sequence[int]) -> ReplayTurn:
    made = turn(blocks)
    made.origin = "east"
    return made


def test_skylb_pushes_only_where_nothing_waits_its_own_region_first() -> None:
    found = regions()
    policy = SkyLb(fleet(found))
    assert chosen(policy, from_east([1, 2])) == 0
    found[0].requests = 5
    assert chosen(policy, from_east([1, 2, 3])) == 0  # the tree knows two of three blocks
    assert chosen(policy, from_east([9])) == 1
    queue(found[0])
    assert chosen(policy, from_east([1, 2, 3])) == 1
    queue(found[1])
    assert chosen(policy, from_east([5, 6])) == 3  # of two free regions the first
    queue(found[3])
    assert chosen(policy, from_east([5, 6, 7])) == 2
    queue(found[2])
    queue(found[0])
    assert chosen(policy, from_east([5, 6, 7])) == 1  # nobody is free: the shortest queue at home


def test_skylb_prefers_the_region_that_has_the_prefix() -> None:
    found = regions()
    policy = SkyLb(fleet(found))
    queue(found[0])
    queue(found[1])
    queue(found[3])
    assert chosen(policy, from_east([5, 6])) == 2
    found[3].scheduler.waiting.clear()
    assert chosen(policy, from_east([5, 6, 7])) == 2
    assert chosen(policy, from_east([8])) == 3


# --- programs


def test_thunderagent_pauses_the_smallest_idle_program_and_resumes_it_where_it_fits() -> None:
    """A worker has 3,000 blocks of 512 tokens: two programs of 1,400 fit, a third waits, and so do all after it."""
    tokens = 3_000 * BLOCK
    found = Worker(0, "", "aggregated", make_scheduler("aggregated", tokens, BLOCK))
    policy = ThunderAgent(ReplayFleet([found]))
    sent: list[tuple[int, float]] = []
    calls: list[Callable[[float], None]] = []
    policy.later = lambda _when_s, call: calls.append(call)
    policy.send = lambda made, _worker, now_s: sent.append((made.request.session, now_s))
    policy.is_last = lambda made: made.request.output_tokens == 99

    def check(now_s: float) -> list[int]:
        """The sessions that the next check sends."""
        before = len(sent)
        calls.pop()(now_s)
        return [session for session, _ in sent[before:]]

    first, second, third = (turn([0] * 1_400, session=session) for session in range(3))
    assert policy.choose(first, 0.0) is found
    assert policy.choose(second, 0.0) is found
    assert policy.choose(third, 0.0) is None
    assert policy.choose(turn([0], session=3), 0.0) is None, "behind the one that is paused"
    assert check(5.0) == [3]
    policy.ended(first, 6.0)
    policy.ended(second, 6.0)
    grown = turn([0] * 1_700, session=0)
    assert policy.choose(grown, 7.0) is found
    assert check(10.0) == []
    assert policy.choose(turn([0] * 1_601, session=1), 11.0) is None, "paused as the only one that was idle"
    policy.ended(turn([0] * 1_700, session=0, output=99), 12.0)
    assert not sent[1:]
    assert check(15.0) == [1], "the one that ran before comes before the new one, which does not fit any more"
    assert check(1_816.0) == [2], "after half an hour in any case"
