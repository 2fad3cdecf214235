"""The thread of ledger questions rests after each one, so the event loop keeps most of the time."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from warmroute_proxy.server.ledger.ladder_sums import LadderBy
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.ledger.queries import MOST_REST_S, REST, LedgerQueries
from warmroute_proxy.server.ledger.usage_sums import By, Turns

Question = Callable[[LedgerQueries], Awaitable[Any]]

TURNS = 200
"""Iterations of the event loop in which a question would begin if nothing held it back."""

OF_ACME = Turns("acme")


def questions() -> Iterator[Any]:
    """All kinds of questions, by their names."""
    yield pytest.param(lambda queries: queries.ask("acme", bool), id="ask")
    yield pytest.param(lambda queries: queries.newest(OF_ACME, 20), id="newest")
    for by in (None, *get_args(By)):
        yield pytest.param(lambda queries, by=by: queries.add_up(OF_ACME, by), id=f"sums by {by}")
    for way in (None, *get_args(LadderBy)):
        yield pytest.param(lambda queries, way=way: queries.climb(OF_ACME, way), id=f"ladder by {way}")
    yield pytest.param(lambda queries: queries.add_up(OF_ACME, None, operator=True), id="an operator's")


class Rests:
    """Holds the rests of a thread, in place of the clock of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *rest: self.begun.append(rest))

    def end(self) -> float:
        """End the one rest that has begun. Returns its length in seconds."""
        ((length_s, end),) = self.begun
        self.begun.clear()
        end()
        return length_s


@pytest.mark.parametrize("question", list(questions()))
async def test_no_question_begins_while_the_thread_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: Question
) -> None:
    ledger, rests = Ledger(tmp_path, "process", asyncio.get_running_loop()), Rests(monkeypatch)
    begun: list[str] = []
    try:
        await question(ledger.queries)
        second = asyncio.create_task(ledger.queries.ask("umbrella", lambda: begun.append("second")))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not begun
        rests.end()
        await second
        assert begun == ["second"]
    finally:
        ledger.close()


async def test_the_thread_rests_longer_than_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, rests = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite"), Rests(monkeypatch)

    def work(rows: int) -> float:
        began_s = time.thread_time()
        for row in range(rows):
            str(row)
        return time.thread_time() - began_s

    try:
        for rows in (10, 1_000, 10_000):
            used_s = await queries.ask("acme", lambda rows=rows: work(rows))  # type: ignore[misc]
            assert rests.end() >= min(REST * used_s, MOST_REST_S)
        with pytest.raises(ZeroDivisionError):
            await queries.ask("acme", lambda: 1 / 0)
        assert rests.end() > 0
    finally:
        queries.close()


async def test_the_longest_rest_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's question waits for it."""
    queries, rests = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite"), Rests(monkeypatch)
    spent = iter((0.0, 5.0))
    monkeypatch.setattr("warmroute_proxy.server.ledger.queries.time.thread_time", lambda: next(spent))
    try:
        await queries.ask("acme", bool)
        assert rests.end() == MOST_REST_S
    finally:
        queries.close()
