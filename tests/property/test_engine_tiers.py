"""Cache tiers under arbitrary traffic: every bound holds, and every cached token comes from exactly one tier."""

from collections.abc import Sequence
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched

from warmroute_lab.engine.model.model import Scheduler, Work
from warmroute_lab.engine.model.tiers import HostTier

PAGE = 64
DEVICE_PAGES = 40

requests = st.lists(
    st.tuples(
        st.floats(0, 3),  # seconds after the one before
        st.integers(1, 30 * PAGE),  # prompt tokens
        st.integers(1, 4 * PAGE),  # output tokens
        st.integers(0, 5),  # tree
        st.integers(0, 30),  # pages shared with the tree
        st.booleans(),  # aborted when the next one comes
    ),
    min_size=1,
    max_size=30,
)


class Ledger:
    """What is resident by tier, from what is told alone."""

    def __init__(self) -> None:
        self.pages: dict[str, set[int]] = {"device": set(), "host": set()}
        self.parents: dict[int, int | None] = {}

    def stored(self, work: Work, start: int, stop: int, tier: str, *, computed: bool) -> None:
        pages = self.pages[tier]
        assert start < stop
        assert not computed or start >= work.cached_tokens // PAGE
        for at in range(start, stop):
            self.parents[work.keys[at]] = work.keys[at - 1] if at else None
            assert work.keys[at] not in pages
            assert at == 0 or work.keys[at - 1] in pages
            pages.add(work.keys[at])

    def removed(self, keys: Sequence[int], tier: str) -> None:
        pages = self.pages[tier]
        assert pages.issuperset(keys)
        pages.difference_update(keys)
        assert not any(self.parents[key] in keys for key in pages)  # leaves go first

    def cleared(self) -> None:
        for pages in self.pages.values():
            pages.clear()


@given(requests, st.integers(0, 90), st.booleans(), st.booleans())
@searched(80)
def test_tiers_keep_their_bounds_and_their_counts(
    traffic: list[tuple[float, int, int, int, int, bool]], host_pages: int, stored: bool, pin: bool
) -> None:
    ledger = Ledger()
    storage: set[int] = set()
    model = Scheduler(
        role="aggregated",
        kv_tokens=DEVICE_PAGES * PAGE,
        page_size=PAGE,
        max_running=4,
        pin_waiting=pin,
        host=HostTier(host_pages * PAGE, storage if stored else None),
        listener=ledger,
    )
    now_s = 0.0
    works: list[Work] = []
    doomed: list[Work] = []
    for number, (gap_s, prompt_tokens, output_tokens, tree, shared, aborted) in enumerate(traffic):
        now_s += gap_s
        model.advance(now_s)
        while doomed:
            model.abort(doomed.pop())
        path = [tree * 100 + page for page in range(shared)] + [(number + 1) * 10_000 + page for page in range(40)]
        work = Work(prompt_tokens, output_tokens, path[: (prompt_tokens + output_tokens) // PAGE])
        model.add(work, now_s)
        works.append(work)
        if aborted:
            doomed.append(work)
        check(model, ledger, host_pages)
    model.advance(inf)
    check(model, ledger, host_pages)
    assert model.idle()
    for work in works:
        assert min(work.cached_host_tokens, work.cached_storage_tokens) >= 0
        assert work.cached_host_tokens + work.cached_storage_tokens <= work.cached_tokens < work.prompt_tokens
        assert work.cached_storage_tokens == 0 or (stored and work.cached_storage_tokens >= 256)
    totals = model.totals
    assert totals.cached_tokens == sum(work.cached_tokens for work in works)
    assert totals.load_back_tokens == sum(work.cached_host_tokens + work.cached_storage_tokens for work in works)
    assert not stored or storage.issuperset(ledger.pages["host"])
    model.flush()
    assert len(model.cache) == 0
    assert not any(ledger.pages.values())


def check(model: Scheduler, ledger: Ledger, host_pages: int) -> None:
    assert len(ledger.pages["device"]) == len(model.cache)
    assert len(model.cache) + model.reserved_pages <= DEVICE_PAGES
    if model.pool.tiers is not None:
        assert len(ledger.pages["host"]) == len(model.pool.tiers.host) <= host_pages
