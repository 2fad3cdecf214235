"""Losses explain every uncached token exactly once, whatever the estimates say."""

from hypothesis import assume, example, given
from hypothesis import strategies as st

from warmroute.contract.receipt import LOSS_CLASSES
from warmroute_proxy.core.accounting.losses import IndexEstimates, LastTurn, Seen, classify

tokens = st.integers(-50, 300_000) | st.integers(0, 400)
sights = st.builds(Seen, st.booleans(), st.booleans(), st.booleans(), tokens)
lasts = st.none() | st.builds(LastTurn, tokens, tokens, st.booleans(), st.booleans(), st.booleans())


@given(
    st.integers(0, 300_000) | st.integers(0, 400),
    tokens,
    st.integers(-1, 256),
    tokens,
    tokens,
    tokens,
    tokens,
    lasts,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    sights,
)
def test_losses_sum_and_are_of_known_classes(
    prompt: int,
    cached: int,
    page: int,
    known: int,
    here: int,
    elsewhere: int,
    region: int,
    last: LastTurn | None,
    pd: bool,
    misreported: bool,
    counted: bool,
    seen: Seen,
) -> None:
    cached = min(max(cached, 0), prompt)
    losses = classify(
        prompt_tokens=prompt,
        cached_tokens=cached,
        page_size=page,
        estimates=IndexEstimates(known, here, elsewhere, region, seen=seen),
        last_turn=last,
        disaggregated=pd,
        misreported=misreported,
        cached_reported=counted,
    )
    assert sum(losses.values()) == prompt - cached
    assert all(count > 0 for count in losses.values())
    assert set(losses) <= set(LOSS_CLASSES)
    assert "evicted" not in losses or seen.evicted_here or seen.evicted
    assert "forgotten" not in losses or seen.forgets
    assert "not_computed_yet" not in losses or seen.waiting > 0


@given(
    previous=st.integers(1, 200_000),
    appended=st.integers(1, 50_000),
    answer=st.integers(0, 5_000),
    page=st.sampled_from([1, 16, 32, 64, 128]),
    noise=st.floats(-0.03, 0.03),
    elsewhere=st.booleans(),
    pd=st.booleans(),
    same_worker=st.booleans(),
)
@example(previous=64, appended=1, answer=0, page=64, noise=0.0, elsewhere=True, pd=True, same_worker=True)
def test_estimate_noise_never_blames_a_warm_turn(
    previous: int,
    appended: int,
    answer: int,
    page: int,
    noise: float,
    elsewhere: bool,
    pd: bool,
    same_worker: bool,
) -> None:
    estimate = int(previous * (1 + noise))
    losses = classify(
        prompt_tokens=previous + appended,
        cached_tokens=previous // page * page,
        page_size=page,
        estimates=IndexEstimates(estimate, estimate, estimate if elsewhere else 0),
        last_turn=LastTurn(previous, answer, same_worker, False),
        disaggregated=pd,
    )
    assert set(losses) <= {"new", "not_kept", "page_rounding"}
    assert losses.get("page_rounding", 0) < page


@given(
    shared=st.integers(1, 100_000),
    own=st.integers(0, 50_000),
    page=st.sampled_from([1, 16, 64]),
    noise=st.floats(-0.03, 0.03),
)
def test_a_new_session_on_a_warm_worker_is_cold_only_beyond_what_is_shared(
    shared: int, own: int, page: int, noise: float
) -> None:
    prompt = shared + own
    cached = min(shared // page, (prompt - 1) // page) * page
    estimate = int(shared * (1 + noise))
    losses = classify(
        prompt_tokens=prompt,
        cached_tokens=cached,
        page_size=page,
        estimates=IndexEstimates(estimate, estimate, 0),
        last_turn=None,
        disaggregated=False,
    )
    assert set(losses) <= {"cold", "page_rounding"}
    assert losses.get("cold", 0) >= own - 0.03 * shared - 1


@given(
    kept=st.integers(1_000, 200_000),
    lost=st.integers(0, 20_000),
    appended=st.integers(0, 20_000),
    page=st.sampled_from([1, 16, 64]),
    noise=st.floats(-0.03, 0.03),
)
def test_a_change_that_both_prompts_show_is_the_clients_however_small_it_is(
    kept: int, lost: int, appended: int, page: int, noise: float
) -> None:
    estimate = int(kept * (1 + noise))
    assume(estimate < kept + lost + appended)  # else the whole prompt is known: it is one of before, sent again
    losses = classify(
        prompt_tokens=kept + lost + appended,
        cached_tokens=kept // page * page,
        page_size=page,
        estimates=IndexEstimates(estimate, estimate, 0),
        last_turn=LastTurn(kept + lost, 0, True, False, rewritten=True),
        disaggregated=False,
    )
    assert {"evicted", "moved", "unknown"}.isdisjoint(losses)
    assert abs(losses.get("prefix_changed", 0) - lost) <= page


@given(st.integers(2_000, 200_000), st.integers(0, 20_000), st.sampled_from([1, 64]))
def test_a_wiped_cache_is_an_eviction_and_a_strange_worker_a_move(previous: int, appended: int, page: int) -> None:
    assume(previous > 10 * page)
    for same, name in ((True, "evicted"), (False, "moved")):
        losses = classify(
            prompt_tokens=previous + appended,
            cached_tokens=0,
            page_size=page,
            estimates=IndexEstimates(
                previous, previous if same else 0, 0 if same else previous, seen=Seen(evicted_here=True, evicted=True)
            ),
            last_turn=LastTurn(previous, 0, same, False),
            disaggregated=False,
        )
        assert losses[name] >= previous - page


def test_what_another_region_holds_is_elsewhere_and_not_cold() -> None:
    last_turn = LastTurn(8000, 100, same_worker=False, salt_changed=False, same_region=False)
    losses = classify(
        prompt_tokens=9000,
        cached_tokens=1024,
        page_size=64,
        estimates=IndexEstimates(8000, 1024, 0, 8000),
        last_turn=last_turn,
        disaggregated=False,
    )
    assert losses == {"elsewhere": 8000 - 1024, "new": 1000}
