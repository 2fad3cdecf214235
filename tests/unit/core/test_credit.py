"""Who gets a credit for tokens that were cached at home, and how much."""

from typing import Any

import msgspec
import pytest

from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.placement.credit import Credits, MovedTurn
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

HASHES, ENDS = list(range(1, 11)), [4_000 * n for n in range(1, 11)]
BEFORE = SettledTurn(("a",), "east", 32_000, 8_000, 10, 0, 1, 0, 8)
REPORTED = {"prompt_tokens": 10_000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}


def routing(**changed: Any) -> RoutingRequest:
    made = RoutingRequest("m", 1, 1, False, None, Chain(HASHES, ENDS), 32_000, 2, 100, None, None, False)
    return msgspec.structs.replace(made, **changed)


def decision(busy: bool = False, gone: bool = False) -> Decision:
    """One that went to b, beside which a was idle, busy or could not be used."""
    router = Router("east", [Worker("a", "a", 0, "aggregated"), Worker("b", "b", 0, "aggregated")])
    if busy:
        other = routing(chain=Chain([99], [4_000_000]), lineage=2, session=2, turn=1)
        router.dispatched(other, router.place(other, 0.0, frozenset({"b"})), 0.0)
    chosen = router.place(routing(), 1.0, frozenset({"a"}) if gone else frozenset())
    if chosen.cache_worker == "a":  # as if its own terms had said so
        chosen = msgspec.structs.replace(chosen, cache_worker="b")
    return chosen


def turn(**changed: Any) -> MovedTurn:
    usage = merge_usage(changed.pop("reported", REPORTED), None, None, 0)
    fields = {
        "routing": routing(),
        "decision": decision(),
        "usage": usage,
        "tokens": 7_000,
        "attempts": 1,
        "answers": 1,
    }
    return MovedTurn(**{**fields, **changed})


def test_a_moved_turn_gets_what_was_moved_at_most_the_prompt_before() -> None:
    assert Credits().grant(turn(), BEFORE) == 7_000
    assert Credits().grant(turn(tokens=9_000), BEFORE) == 8_000


def test_a_turn_is_followed_by_one_credit() -> None:
    granted = Credits()
    assert [granted.grant(turn(), BEFORE) for _ in range(3)] == [7_000, 0, 0]


@pytest.mark.parametrize(
    "changed",
    [
        {"routing": routing(derived=True)},
        {"routing": routing(turn=3)},
        {"routing": routing(turn=1)},
        {"routing": routing(salt_epoch=1)},
        {"routing": routing(chain=Chain([*HASHES[:7], 88, 9, 10], ENDS))},
        {"decision": decision(busy=True)},
        {"decision": decision(gone=True)},
        {"decision": msgspec.structs.replace(decision(), cache_worker="a")},
        {"reported": {"prompt_tokens": 10_000, "completion_tokens": 1}},
        {"attempts": 2},
        {"answers": 2},
    ],
    ids=["derived", "later", "begins", "salt", "edited", "busy", "gone", "at home", "uncounted", "retried", "several"],
)
def test_whatever_is_not_certain_gets_none(changed: dict[str, Any]) -> None:
    assert Credits().grant(turn(**changed), BEFORE) == 0
