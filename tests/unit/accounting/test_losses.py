"""Why a turn was cold, for turns as agents have them."""

from typing import Any

import pytest

from warmroute_proxy.core.accounting.losses import NOTHING_SEEN, IndexEstimates, LastTurn, Seen, classify

PAGE = 64
EVICTED = Seen(evicted_here=True, evicted=True)


def why(
    prompt: int, cached: int, known: int, here: int, elsewhere: int, last: LastTurn | None, **more: Any
) -> dict[str, int]:
    index = IndexEstimates(
        known, here, elsewhere, restarted=more.pop("restarted", 0), seen=more.pop("seen", NOTHING_SEEN)
    )
    losses = classify(
        prompt_tokens=prompt,
        cached_tokens=cached,
        page_size=more.pop("page", PAGE),
        estimates=index,
        last_turn=last,
        disaggregated=more.pop("disaggregated", False),
        **more,
    )
    assert sum(losses.values()) == prompt - cached
    assert all(tokens > 0 for tokens in losses.values())
    return losses


def turn(prompt: int, answer: int = 300, *, same: bool = True, salt: bool = False, again: bool = False) -> LastTurn:
    return LastTurn(prompt, answer, same_worker=same, salt_changed=salt, repeated=again)


def asked(*counts: int, last: LastTurn | None = None, **more: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tokens of the prompt, those cached, and those that the index knows: anywhere, at this worker, elsewhere."""
    return (*counts, *[0] * (5 - len(counts)), last), more


WARM, MOVED = turn(10_000), turn(10_000, same=False)
NEW = {"new": 900, "page_rounding": 16}
CASES: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], dict[str, int]]] = {
    "a first request ever": (asked(8000), {"cold": 8000}),
    # 7,800 tokens of tools and system are in the cache from another session; the index says 7,850.
    "a new session finds the shared system prompt": (
        asked(9000, 7744, 7850, 7850), {"cold": 1150, "page_rounding": 106},
    ),
    "a warm turn on one engine loses what was appended": (asked(10_900, 9984, 10_010, 10_010, last=WARM), NEW),
    "an aggregated engine kept the answer": (asked(10_900, 10_240, 10_010, 10_010, last=WARM), {"new": 660}),
    "a warm turn through a pair loses the answer too": (
        asked(10_900, 9984, 9_900, 9_900, last=WARM, disaggregated=True),
        {"not_kept": 300, "new": 600, "page_rounding": 16},
    ),
    "not kept is no more than was appended": (
        asked(10_200, 9984, 10_000, 10_000, last=turn(10_000, 5_000), disaggregated=True),
        {"not_kept": 200, "page_rounding": 16},
    ),
    "the same prompt is whole pages without its last token": (
        asked(1024, 960, 1024, 1024, last=turn(1024)), {"page_rounding": 64},
    ),
    "a page of one token": (asked(1000, 999, 1000, 1000, last=turn(1000), page=1), {"page_rounding": 1}),
    "a session went to another worker": (asked(10_900, 0, 10_000, 0, 10_000, last=MOVED), {**NEW, "moved": 9984}),
    "a move to a worker with the shared prefix loses the rest": (
        asked(10_900, 4992, 10_000, 5_100, 10_000, last=MOVED), {**NEW, "moved": 4992},
    ),
    "a move is seen though the index forgot the old worker": (
        asked(10_900, 0, 10_000, last=MOVED), {**NEW, "moved": 9984},
    ),
    "the prefix of an unknown lineage is on another worker": (
        asked(9000, 0, 7800, 0, 7800), {"cold": 1200, "page_rounding": 7800 - 7744, "moved": 7744},
    ),
    "a worker lost its cache": (
        asked(10_900, 0, 10_000, 10_000, last=WARM, seen=EVICTED), {**NEW, "evicted": 9984},
    ),
    "an eviction is seen though the index forgot too": (
        asked(10_900, 0, 10_000, last=WARM, seen=EVICTED), {**NEW, "evicted": 9984},
    ),
    "part of the prefix is evicted here, and more of it is elsewhere": (
        asked(20_000, 0, 20_000, 8_000, 20_000, last=turn(20_000, same=False), seen=EVICTED),
        {"evicted": 8000, "moved": 20_000 - 8000 - 32, "page_rounding": 32},
    ),
    "a second copy that is longer only by the error is no move": (
        asked(11_000, 0, 10_000, 9_800, 10_000, seen=EVICTED),
        {"cold": 1000, "page_rounding": 16, "evicted": 9800, "unknown": 184},
    ),
    # Pruned tool output: the text is the same up to 7,872 tokens of 20,000, and shorter afterwards.
    "a rewritten history is the client's doing": (
        asked(12_000, 7_872, 7_900, 7_900, last=turn(20_000)),
        {"prefix_changed": 12_000 - 7_900, "page_rounding": 28},
    ),
    "a rewritten prefix, and new text behind it": (
        asked(12_000, 2_944, 3_000, 3_000, last=WARM), {"prefix_changed": 7_000, "new": 2_000, "page_rounding": 56},
    ),
    # aider rewrites its last message: 200 tokens of 10,000, less than the index can tell.
    "a small change within the error blames nobody": (
        asked(10_900, 9_792, 9_800, 9_800, last=WARM), {**NEW, "unknown": 192},
    ),
    "a turn that another worker served is moved within the error too": (
        asked(10_900, 9_792, 9_800, 9_800, last=turn(10_000, same=False, again=True)), {**NEW, "moved": 192},
    ),
    "a new salt epoch explains all that was known": (
        asked(10_900, last=turn(10_000, salt=True)), {**NEW, "salt_changed": 9984},
    ),
    # A retry of a request that settled no turn: the index knows all of it, the worker has lost it.
    "text known from elsewhere is not new": (
        asked(20_000, 0, 20_000, 20_000, last=WARM, seen=EVICTED), {"page_rounding": 32, "evicted": 19_968},
    ),
    "one page of shortfall is rounding": (
        asked(10_900, 9_920, 10_000, 10_000, last=WARM), {"new": 900, "page_rounding": 80},
    ),
    "a wrong count explains only itself": (
        asked(5000, 0, 4000, 4000, last=turn(4000), misreported=True), {"engine_misreport": 5000},
    ),
    "a wrong count of a whole prompt": (asked(5000, 5000, 4000, 4000, last=turn(4000), misreported=True), {}),
    "an engine that does not count has evicted nothing": (
        asked(10_900, 0, 10_000, 10_000, last=WARM, cached_reported=False), {**NEW, "unknown": 9984},
    ),
    "an empty prompt": (asked(0, last=turn(10)), {}),
    "a restart evicts though the turn runs elsewhere": (
        asked(10_900, 0, 10_000, last=MOVED, restarted=10_000), {**NEW, "evicted": 9984},
    ),
    # An edited conversation, which is another session: the index knows its beginning.
    "text that was sent before and that nobody holds is evicted and not cold": (
        asked(10_900, 0, 10_000, seen=EVICTED), {"cold": 900, "page_rounding": 16, "evicted": 9984},
    ),
    "what is left over without an eviction": (asked(10_900, 0, 10_000, 10_000, last=WARM), {**NEW, "unknown": 9984}),
    "what is left over of a first turn": (
        asked(10_900, 0, 10_000, 10_000), {"cold": 900, "page_rounding": 16, "unknown": 9984},
    ),
    "an eviction elsewhere does not blame this worker": (
        asked(10_900, 0, 10_000, 10_000, last=WARM, seen=Seen(evicted=True)), {**NEW, "unknown": 9984},
    ),
    "a provider forgets": (
        asked(10_900, 0, 10_000, 10_000, last=WARM, seen=Seen(forgets=True)), {**NEW, "forgotten": 9984},
    ),
    "the index saw a part of a shared beginning go": (
        asked(26_000, 15_936, 20_000, 16_000, seen=EVICTED),
        {"cold": 6000, "page_rounding": 32, "evicted": 20_000 - 32 - 15_936},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "losses"), CASES.values(), ids=CASES)
def test_a_turn_has_its_losses(case: tuple[tuple[Any, ...], dict[str, Any]], losses: dict[str, int]) -> None:
    given, more = case
    assert why(*given, **more) == losses


@pytest.mark.parametrize("noise", [-0.03, 0.03])
def test_a_cold_worker_is_moved_within_the_error_of_the_estimate(noise: float) -> None:
    estimate = int(20_000 * (1 + noise))
    losses = why(21_000, 0, estimate, 0, estimate, None)
    assert losses["moved"] >= 0.96 * 20_000
    assert "evicted" not in losses


@pytest.mark.parametrize(("here", "moved"), [(3000, 0), (0, 3000)])
def test_what_another_prompt_was_still_computing_is_not_computed_yet(here: int, moved: int) -> None:
    losses = why(3100, 0, 3000, here, moved, None, seen=Seen(evicted_here=True, evicted=True, waiting=3000))
    assert losses == {"cold": 100, "page_rounding": 56, "not_computed_yet": 2944}


def test_what_the_last_turn_has_computed_elsewhere_is_moved_while_another_prompt_of_it_is_under_way() -> None:
    last = LastTurn(3010, 9, same_worker=False, salt_changed=False, repeated=True)
    losses = why(3041, 0, 3010, 0, 3010, last, seen=Seen(waiting=2987))
    assert losses == {"new": 31, "page_rounding": 2, "moved": 3008}


@pytest.mark.parametrize("cached", [18_624, 19_008])
def test_tools_that_have_more_tokens_than_their_share_of_bytes_are_cold_and_not_evicted(cached: int) -> None:
    # The index expects all of the 20,000 tokens that sessions share; the engine counts fewer for the same text.
    for seen in (Seen(), EVICTED):
        losses = why(26_000, cached, 20_000, 20_000, 0, None, seen=seen)
        assert set(losses) == {"cold", "page_rounding"}
