"""What a request costs to read follows from its size, not from what its texts say or how its results are ordered."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.hostile.reading import GEMINI, MESSAGES, RESPONSES, cost_s
from warmroute_proxy.server.intake.parsed_request import CHAT

FLOOR_S = 0.002  # what is quicker than a clock's step is no ratio
MOST = 3.0

ONE_TEXT: dict[str, Callable[[str], dict[str, Any]]] = {
    CHAT: lambda text: {"model": "m", "messages": [{"role": "user", "content": text}]},
    MESSAGES: lambda text: {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text}]},
    RESPONSES: lambda text: {"model": "m", "input": text},
    GEMINI: lambda text: {"contents": [{"parts": [{"text": text}]}]},
}


def cheapest_s(path: str, body: Callable[[int], dict[str, Any]]) -> float:
    """Of three bodies that differ, since what was translated before costs less."""
    return min(cost_s(path, body(number)) for number in range(3))


@pytest.mark.parametrize("path", ONE_TEXT)
@pytest.mark.parametrize("begins", ["<current_date>", "Today's ", "<total_tokens>", "x-anthropic-billing-header:"])
@pytest.mark.parametrize("filler", [" ", "\n", " \n", "<current_date>", "Today's date is ", "1,"])
def test_a_text_that_looks_like_what_a_rule_takes_out_costs_no_more(path: str, begins: str, filler: str) -> None:
    """With `<current_date>` and spaces, 60 KB took 3.1 s, by a rule that was off."""
    size = 60_000
    text = (begins + filler * size)[:size]
    other = ("a sentence, " * size)[:size]
    ask = ONE_TEXT[path]
    hostile_s = cheapest_s(path, lambda number: ask(f"{text}{number}"))
    innocent_s = cheapest_s(path, lambda number: ask(f"{other}{number}"))
    assert hostile_s <= MOST * max(innocent_s, FLOOR_S)


@pytest.mark.parametrize("functions", [1, 10_000])
def test_the_order_of_results_costs_nothing(functions: int) -> None:
    """Results in the reverse order of 15,000 calls took 16.8 s."""
    count = 10_000

    def called(order: range, call: int) -> dict[str, Any]:
        def named(kind: str, number: int) -> dict[str, Any]:
            return {kind: {"name": f"f{number % functions}", "id": f"c{number}-{call}"}}

        calls = [named("functionCall", number) for number in range(count)]
        results = [named("functionResponse", number) for number in order]
        return {"contents": [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]}

    reverse_s = cheapest_s(GEMINI, lambda number: called(range(count - 1, -1, -1), number))
    assert reverse_s <= MOST * cheapest_s(GEMINI, lambda number: called(range(count), number))
