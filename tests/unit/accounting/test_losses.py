"""Why a turn was cold, for turns as agents have them."""

from typing import Any

import pytest

from warmroute_proxy.core.accounting.losses import NOTHING_SEEN, IndexEstimates, LastTurn, Seen, classify

PAGE = 64
EVICTED = Seen(evicted_here=True, evicted=True)


def why(
    prompt: int, cached: int, known: int, here: int, elsewhere: int, last: LastTurn | None, **more: Any
) -> dict[str, int]:
    losses = classify(
        prompt_tokens=prompt,
        cached_tokens=cached,
        page_size=more.pop("page", PAGE),
        estimates=IndexEstimates(known, here, elsewhere, seen=more.pop("seen", NOTHING_SEEN)),
        last_turn=last,
        disaggregated=more.pop("disaggregated", False),
        **more,
    )
    assert sum(losses.values()) == prompt - cached
    assert all(tokens > 0 for tokens in losses.values())
    return losses


def turn(prompt: int, answer: int = 300, *, same: bool = True, salt: bool = False) -> LastTurn:
    return LastTurn(prompt, answer, same_worker=same, salt_changed=salt)


def test_a_first_request_ever_is_cold() -> None:
    assert why(8000, 0, 0, 0, 0, None) == {"cold": 8000}


def test_a_new_session_finds_the_shared_system_prompt() -> None:
    # 7,800 tokens of tools and system are in the cache from another session; the index says 7,850.
    assert why(9000, 7744, 7850, 7850, 0, None) == {"cold": 1150, "page_rounding": 106}


def test_a_warm_turn_on_one_engine_loses_what_was_appended() -> None:
    assert why(10_900, 9984, 10_010, 10_010, 0, turn(10_000)) == {"new": 900, "page_rounding": 16}


def test_an_aggregated_engine_that_kept_the_answer_leaves_only_the_new_text() -> None:
    assert why(10_900, 10_240, 10_010, 10_010, 0, turn(10_000)) == {"new": 660}


def test_a_warm_turn_through_pd_loses_the_answer_too() -> None:
    losses = why(10_900, 9984, 9_900, 9_900, 0, turn(10_000), disaggregated=True)
    assert losses == {"not_kept": 300, "new": 600, "page_rounding": 16}


def test_not_kept_never_exceeds_what_was_appended() -> None:
    losses = why(10_200, 9984, 10_000, 10_000, 0, turn(10_000, 5_000), disaggregated=True)
    assert losses == {"not_kept": 200, "page_rounding": 16}


def test_the_same_prompt_again_is_whole_pages_without_its_last_token() -> None:
    assert why(1024, 960, 1024, 1024, 0, turn(1024)) == {"page_rounding": 64}
    assert why(1000, 999, 1000, 1000, 0, turn(1000), page=1) == {"page_rounding": 1}


def test_a_session_that_went_to_another_worker_is_moved() -> None:
    losses = why(10_900, 0, 10_000, 0, 10_000, turn(10_000, same=False))
    assert losses == {"new": 900, "page_rounding": 16, "moved": 9984}


def test_a_move_to_a_worker_with_the_shared_prefix_loses_the_rest() -> None:
    losses = why(10_900, 4992, 10_000, 5_100, 10_000, turn(10_000, same=False))
    assert losses == {"new": 900, "page_rounding": 16, "moved": 4992}


def test_a_move_is_seen_though_the_index_forgot_the_old_worker() -> None:
    assert why(10_900, 0, 10_000, 0, 0, turn(10_000, same=False))["moved"] == 9984


def test_an_unknown_lineage_whose_prefix_is_on_another_worker_is_moved_and_cold() -> None:
    losses = why(9000, 0, 7800, 0, 7800, None)
    assert losses == {"cold": 1200, "page_rounding": 7800 - 7744, "moved": 7744}


def test_a_worker_that_lost_its_cache_has_evicted() -> None:
    losses = why(10_900, 0, 10_000, 10_000, 0, turn(10_000), seen=EVICTED)
    assert losses == {"new": 900, "page_rounding": 16, "evicted": 9984}


def test_an_eviction_is_seen_though_the_index_forgot_too() -> None:
    assert why(10_900, 0, 10_000, 0, 0, turn(10_000), seen=EVICTED)["evicted"] == 9984


def test_part_of_the_prefix_evicted_here_and_more_of_it_elsewhere() -> None:
    losses = why(20_000, 0, 20_000, 8_000, 20_000, turn(20_000, same=False), seen=EVICTED)
    assert losses == {"evicted": 8000, "moved": 20_000 - 8000 - 32, "page_rounding": 32}


def test_a_second_copy_that_is_longer_only_by_the_error_is_no_move() -> None:
    losses = why(11_000, 0, 10_000, 9_800, 10_000, None, seen=EVICTED)
    assert losses == {"cold": 1000, "page_rounding": 16, "evicted": 9800, "unknown": 184}


def test_a_rewritten_history_is_the_clients_doing() -> None:
    # Pruned tool output: the text is the same up to 7,872 tokens of 20,000, and shorter afterwards.
    losses = why(12_000, 7_872, 7_900, 7_900, 0, turn(20_000))
    assert losses == {"prefix_changed": 12_000 - 7_900, "page_rounding": 28}


def test_a_rewritten_prefix_and_new_text_behind_it() -> None:
    losses = why(12_000, 2_944, 3_000, 3_000, 0, turn(10_000))
    assert losses == {"prefix_changed": 7_000, "new": 2_000, "page_rounding": 56}


def test_a_small_change_within_the_error_blames_nobody() -> None:
    # aider rewrites its last message: 200 tokens of 10,000, less than the index can tell.
    losses = why(10_900, 9_792, 9_800, 9_800, 0, turn(10_000))
    assert losses == {"new": 900, "page_rounding": 16, "unknown": 192}


def test_a_turn_that_another_worker_served_is_moved_within_the_error_too() -> None:
    last = LastTurn(10_000, 300, same_worker=False, salt_changed=False, repeated=True)
    assert why(10_900, 9_792, 9_800, 9_800, 0, last) == {"new": 900, "page_rounding": 16, "moved": 192}


def test_a_new_salt_epoch_explains_everything_known() -> None:
    losses = why(10_900, 0, 0, 0, 0, turn(10_000, salt=True))
    assert losses == {"new": 900, "page_rounding": 16, "salt_changed": 9984}


def test_text_known_from_elsewhere_is_not_new() -> None:
    # A retry of a request that settled no turn: the index knows all of it, the worker has lost it.
    losses = why(20_000, 0, 20_000, 20_000, 0, turn(10_000), seen=EVICTED)
    assert losses == {"page_rounding": 32, "evicted": 19_968}


def test_one_page_of_shortfall_is_rounding() -> None:
    assert why(10_900, 9_920, 10_000, 10_000, 0, turn(10_000)) == {"new": 900, "page_rounding": 80}


@pytest.mark.parametrize("noise", [-0.03, -0.015, 0.0, 0.015, 0.03])
@pytest.mark.parametrize("pd", [False, True])
def test_a_fully_warm_turn_is_never_blamed_on_anybody_by_estimate_noise(noise: float, pd: bool) -> None:
    for size in (300, 1_000, 20_000, 150_000):
        estimate = int(size * (1 + noise))
        losses = why(size + 500, size // PAGE * PAGE, estimate, estimate, estimate, turn(size), disaggregated=pd)
        assert not {"evicted", "moved", "prefix_changed", "cold", "unknown"} & set(losses)


@pytest.mark.parametrize("noise", [-0.03, 0.03])
def test_a_cold_worker_is_moved_within_the_error_of_the_estimate(noise: float) -> None:
    estimate = int(20_000 * (1 + noise))
    losses = why(21_000, 0, estimate, 0, estimate, None)
    assert losses["moved"] >= 0.96 * 20_000
    assert "evicted" not in losses


def test_a_wrong_count_explains_only_itself() -> None:
    assert why(5000, 0, 4000, 4000, 0, turn(4000), misreported=True) == {"engine_misreport": 5000}
    assert why(5000, 5000, 4000, 4000, 0, turn(4000), misreported=True) == {}


def test_an_engine_that_does_not_count_has_evicted_nothing() -> None:
    losses = why(10_900, 0, 10_000, 10_000, 0, turn(10_000), cached_reported=False)
    assert losses == {"new": 900, "page_rounding": 16, "unknown": 9984}


def test_an_empty_prompt_has_no_losses() -> None:
    assert why(0, 0, 0, 0, 0, turn(10)) == {}


def test_what_an_engine_lost_with_its_restart_is_evicted_though_the_turn_runs_elsewhere() -> None:
    index = IndexEstimates(10_000, 0, 0, restarted=10_000)
    losses = classify(
        prompt_tokens=10_900,
        cached_tokens=0,
        page_size=PAGE,
        estimates=index,
        last_turn=turn(10_000, same=False),
        disaggregated=False,
    )
    assert losses == {"new": 900, "page_rounding": 16, "evicted": 9984}


def test_text_that_was_sent_before_and_that_nobody_holds_is_evicted_and_not_cold() -> None:
    # An edited conversation, which is another session: the index knows its beginning.
    losses = why(10_900, 0, 10_000, 0, 0, None, seen=EVICTED)
    assert losses == {"cold": 900, "page_rounding": 16, "evicted": 9984}


def test_what_is_left_over_without_an_eviction_is_unknown() -> None:
    assert why(10_900, 0, 10_000, 10_000, 0, turn(10_000)) == {"new": 900, "page_rounding": 16, "unknown": 9984}
    assert why(10_900, 0, 10_000, 10_000, 0, None) == {"cold": 900, "page_rounding": 16, "unknown": 9984}


def test_an_eviction_elsewhere_does_not_blame_the_worker_that_has_evicted_nothing() -> None:
    losses = why(10_900, 0, 10_000, 10_000, 0, turn(10_000), seen=Seen(evicted=True))
    assert losses == {"new": 900, "page_rounding": 16, "unknown": 9984}


def test_what_a_provider_forgets_has_a_class_of_its_own() -> None:
    losses = why(10_900, 0, 10_000, 10_000, 0, turn(10_000), seen=Seen(forgets=True))
    assert losses == {"new": 900, "page_rounding": 16, "forgotten": 9984}


@pytest.mark.parametrize(("here", "moved"), [(3000, 0), (0, 3000)])
def test_what_another_prompt_was_still_computing_is_not_computed_yet(here: int, moved: int) -> None:
    losses = why(3100, 0, 3000, here, moved, None, seen=Seen(evicted_here=True, evicted=True, waiting=3000))
    assert losses == {"cold": 100, "page_rounding": 56, "not_computed_yet": 2944}


@pytest.mark.parametrize("cached", [18_624, 19_008])
def test_tools_that_have_more_tokens_than_their_share_of_bytes_are_cold_and_not_evicted(cached: int) -> None:
    # The index expects all of the 20,000 tokens that sessions share; the engine counts fewer for the same text.
    for seen in (Seen(), EVICTED):
        losses = why(26_000, cached, 20_000, 20_000, 0, None, seen=seen)
        assert set(losses) == {"cold", "page_rounding"}


def test_a_shared_beginning_of_which_the_index_saw_a_part_go_is_evicted() -> None:
    losses = why(26_000, 15_936, 20_000, 16_000, 0, None, seen=EVICTED)
    assert losses == {"cold": 6000, "page_rounding": 32, "evicted": 20_000 - 32 - 15_936}
