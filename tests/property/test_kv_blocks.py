"""Blocks of engines and cuts of prompts, against a model that keeps whole sets; and tiers that are always in bounds."""

from hypothesis import example, given
from hypothesis import strategies as st

from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.engines.kv_blocks import KvBlocks

BLOCK = 16
TIERS = st.sampled_from(["device", "host"])
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=4)
OPERATIONS = st.lists(st.tuples(st.sampled_from(["stored", "removed"]), TIERS, PATHS), max_size=40)


def name(path: list[int]) -> int:
    return hash(tuple(path)) & 0xFFFFFFFF


def prefixes(path: list[int]) -> list[list[int]]:
    return [path[: n + 1] for n in range(len(path))]


@given(OPERATIONS)
def test_a_cut_is_said_to_be_gone_with_its_last_block_and_not_before(
    operations: list[tuple[str, Tier, list[int]]],
) -> None:
    """Whole paths of a tree of blocks come and single ones go; the cuts of a path end with its blocks, exactly."""
    blocks, told = KvBlocks(), {"device": set[int](), "host": set[int]()}
    present: dict[str, set[int]] = {"device": set(), "host": set()}
    for number, (what, tier, path) in enumerate(operations):
        names = [name(prefix) for prefix in prefixes(path)]
        if what == "stored":
            chain = Chain([-key for key in names], [4 * BLOCK * (n + 1) for n in range(len(names))])
            blocks.expect(str(number), chain)
            blocks.settled(str(number), BLOCK * len(names))
            told[tier] |= set(blocks.stored(names, None, str(number), BLOCK, tier, pairs=False).keys)
            present[tier] |= set(names)
        else:
            told[tier] -= set(blocks.removed(names[-1:], tier).keys)
            present[tier].discard(names[-1])
        assert told == {tier: {-key for key in there} for tier, there in present.items()}
        assert blocks.blocks == len(present["device"] | present["host"])


@example([("stored", "device", [0]), ("removed", "device", [0])], [])
@example([("stored", "device", [0]), ("removed", "device", [0]), ("stored", "device", [0])], [])
@given(OPERATIONS, st.lists(st.integers(-2, 2), max_size=40))
def test_prompts_that_are_heard_of_late_hold_what_they_would_have_held(
    operations: list[tuple[str, Tier, list[int]]], told: list[int]
) -> None:
    """Another process says which prompt a tag is, and how many tokens it has, before events of its blocks or later; of
    several prompts in their order (`told` > 0), or the newest first.
    """
    early, late = KvBlocks(), KvBlocks()
    untold: list[tuple[str, Chain]] = []

    def tell(tag: str, chain: Chain) -> None:
        late.expect(tag, chain)
        late.settled(tag, BLOCK * len(chain.hashes))

    for number, (what, tier, path) in enumerate(operations):
        names = [name(prefix) for prefix in prefixes(path)]
        if what == "stored":
            chain = Chain([-key for key in names], [4 * BLOCK * (n + 1) for n in range(len(names))])
            early.expect(str(number), chain)
            early.settled(str(number), BLOCK * len(names))
            untold.append((str(number), chain))
        now = told[number] if number < len(told) else 0
        for _ in range(min(abs(now), len(untold))):
            tell(*untold.pop(0 if now > 0 else -1))
        for blocks in (early, late):
            if what == "stored":
                blocks.stored(names, None, str(number), BLOCK, tier, pairs=False)
            else:
                blocks.removed(names[-1:], tier)
    for each in untold:
        tell(*each)
    leaves = [name(path) for _, _, path in operations]
    assert late.blocks == early.blocks
    for block in leaves:
        for tier in ("device", "host"):
            assert set(late.removed([block], tier).keys) == set(early.removed([block], tier).keys)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["place", "stored", "removed", "cleared", "restarted"]),
            st.sampled_from(["a", "b"]),
            st.sampled_from(["device", "host", "storage"]),
            st.integers(0, 12),
            st.integers(0, 12),
        ),
        max_size=40,
    ),
    st.integers(1, 12),
)
def test_predicted_tiers_are_parts_of_the_prompt(
    operations: list[tuple[str, str, Tier, int, int]], blocks: int
) -> None:
    router = Router("east", [Worker(id_, id_, 0, "aggregated", host_cache=True, store="s") for id_ in "ab"])
    keys = list(range(100, 112))

    def routing(length: int) -> RoutingRequest:
        ends = [4000 * (n + 1) for n in range(length)]
        return RoutingRequest("m", 1, 1, False, None, Chain(keys[:length], ends), 0, 1, 300, None, None, False)

    for what, worker, tier, start, stop in operations:
        if what == "place":
            request = routing(max(stop, 1))
            decision = router.place(request, 0.0)
            router.settled(router.dispatched(request, decision, 0.0), request, 0.0, None, None, None)
        elif what == "stored":
            router.cache_stored(worker, keys[start:stop], tier)
        elif what == "removed":
            router.cache_removed(worker, keys[start:stop], tier)
        elif what == "cleared":
            router.cache_cleared(worker)
        else:
            router.worker_restarted(worker)
    for exclude in ("", "a", "b"):
        decision = router.place(routing(blocks), 0.0, frozenset({exclude}))
        assert min(decision.predicted) >= 0
        assert sum(decision.predicted) == decision.predicted_cached_tokens < decision.prompt_tokens_est
        assert decision.predicted_cached_tokens <= decision.known_tokens
        for reason in decision.reasons:
            cached = decision.prompt_tokens_est - reason.uncached_tokens
            assert 0 <= reason.host_tokens + reason.storage_tokens <= cached
            assert (reason.load_s > 0) == (reason.host_tokens + reason.storage_tokens > 0)
