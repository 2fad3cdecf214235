"""Questions about many rows are answered beside the event loop, and only so many wait."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from warmroute_proxy.server.ledger.all_rows import Closed
from warmroute_proxy.server.ledger.queries import MAX_OF_OPERATORS, MAX_OF_TENANT, MAX_WAITING, Busy, LedgerQueries


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


async def test_operators_come_first_and_tenants_take_turns(tmp_path: Path) -> None:
    queries, may_end = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite"), threading.Event()
    answered: list[str] = []

    def question(name: str) -> Callable[[], None]:
        return lambda: answered.append(name)

    try:
        first = asyncio.create_task(queries.ask("busy", lambda: may_end.wait(30)))
        await asyncio.sleep(0)
        names = [("busy", "busy 1"), ("busy", "busy 2"), ("late", "late 1"), ("late", "late 2"), (None, "operator")]
        asked = [asyncio.create_task(queries.ask(tenant, question(name))) for tenant, name in names]
        await asyncio.sleep(0)
        asked.pop(1).cancel()
        may_end.set()
        await asyncio.gather(first, *asked)
        assert answered == ["operator", "busy 1", "late 1", "late 2"]
    finally:
        may_end.set()
        queries.close()


async def test_tenants_leave_room_for_operators(tmp_path: Path) -> None:
    queries, may_end = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite"), threading.Event()
    try:
        tenants = [f"t{number // MAX_OF_TENANT}" for number in range(MAX_WAITING)]
        asked = [asyncio.create_task(queries.ask(tenant, lambda: may_end.wait(30))) for tenant in tenants]
        asked += [asyncio.create_task(queries.ask(None, lambda: True)) for _ in range(MAX_OF_OPERATORS)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await queries.ask(None, bool)
        may_end.set()
        assert all(await asyncio.gather(*asked))
    finally:
        may_end.set()
        queries.close()


async def test_what_waits_when_the_ledger_closes_is_not_answered(tmp_path: Path) -> None:
    queries, may_end = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite"), threading.Event()
    asked = [asyncio.create_task(queries.ask("acme", lambda: may_end.wait(30))) for _ in range(2)]
    await asyncio.sleep(0)
    may_end.set()
    queries.close()
    assert [type(found) for found in await asyncio.gather(*asked, return_exceptions=True)][1] is asyncio.CancelledError
    with pytest.raises(Closed):
        await queries.ask("acme", bool)
