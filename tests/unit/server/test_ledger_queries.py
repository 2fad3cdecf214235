"""Questions about many rows are answered beside the event loop, and only so many wait."""

import asyncio
import threading
from pathlib import Path

import pytest

from warmroute_proxy.server.ledger.queries import MAX_OF_TENANT, MAX_WAITING, Busy, LedgerQueries


async def test_the_loop_goes_on_while_a_question_is_answered(tmp_path: Path) -> None:
    queries, may_end = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite"), threading.Event()

    def question() -> str:
        assert may_end.wait(30)
        return "answered"

    try:
        asked = asyncio.create_task(queries.ask("acme", question))
        await asyncio.sleep(0)  # it is asked; the loop is free to do what ends it
        may_end.set()
        assert await asked == "answered"
    finally:
        queries.close()


async def test_too_many_questions_are_refused_and_those_that_wait_are_answered(tmp_path: Path) -> None:
    queries, may_end = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite"), threading.Event()
    try:
        tenants = [f"t{number // MAX_OF_TENANT}" for number in range(MAX_WAITING)]
        asked = [asyncio.create_task(queries.ask(tenant, lambda: may_end.wait(30))) for tenant in tenants]
        await asyncio.sleep(0)
        with pytest.raises(Busy) as own:
            await queries.ask("t0", bool)
        with pytest.raises(Busy) as others:
            await queries.ask("late", bool)
        assert (own.value.own, others.value.own) == (True, False)
        may_end.set()
        assert all(await asyncio.gather(*asked))
        assert await queries.ask("late", lambda: True)
    finally:
        may_end.set()
        queries.close()
