"""Questions about many rows are answered beside the event loop, and only so many wait."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from warmroute_proxy.server.ledger.all_rows import Closed
from warmroute_proxy.server.ledger.queries import MAX_OF_OPERATORS, MAX_OF_TENANT, MAX_WAITING, Busy, LedgerQueries


@pytest.fixture
def may_end() -> threading.Event:
    """Until it is set, a question that waits for it is not answered."""
    return threading.Event()


@pytest.fixture
async def queries(tmp_path: Path, may_end: threading.Event) -> AsyncIterator[LedgerQueries]:
    made = LedgerQueries(tmp_path, tmp_path / "ledger.sqlite")
    yield made
    may_end.set()
    made.close()


def of_tenants(queries: LedgerQueries, may_end: threading.Event) -> "list[asyncio.Task[bool]]":
    """As many questions as tenants may ask at once."""
    tenants = [f"t{number // MAX_OF_TENANT}" for number in range(MAX_WAITING)]
    return [asyncio.create_task(queries.ask(tenant, lambda: may_end.wait(30))) for tenant in tenants]


async def test_the_loop_goes_on_while_a_question_is_answered(queries: LedgerQueries, may_end: threading.Event) -> None:
    def question() -> str:
        assert may_end.wait(30)
        return "answered"

    asked = asyncio.create_task(queries.ask("acme", question))
    await asyncio.sleep(0)  # it is asked; the loop is free to do what ends it
    may_end.set()
    assert await asked == "answered"


async def test_too_many_questions_are_refused_and_those_that_wait_are_answered(
    queries: LedgerQueries, may_end: threading.Event
) -> None:
    asked = of_tenants(queries, may_end)
    await asyncio.sleep(0)
    with pytest.raises(Busy) as own:
        await queries.ask("t0", bool)
    with pytest.raises(Busy) as others:
        await queries.ask("late", bool)
    assert (own.value.own, others.value.own) == (True, False)
    may_end.set()
    assert all(await asyncio.gather(*asked))
    assert await queries.ask("late", lambda: True)


async def test_operators_come_first_and_tenants_take_turns(queries: LedgerQueries, may_end: threading.Event) -> None:
    answered: list[str] = []

    def question(name: str) -> Callable[[], None]:
        return lambda: answered.append(name)

    first = asyncio.create_task(queries.ask("busy", lambda: may_end.wait(30)))
    await asyncio.sleep(0)
    names = [("busy", "busy 1"), ("busy", "busy 2"), ("late", "late 1"), ("late", "late 2"), (None, "operator")]
    asked = [asyncio.create_task(queries.ask(tenant, question(name))) for tenant, name in names]
    await asyncio.sleep(0)
    asked.pop(1).cancel()
    may_end.set()
    await asyncio.gather(first, *asked)
    assert answered == ["operator", "busy 1", "late 1", "late 2"]


async def test_tenants_leave_room_for_operators(queries: LedgerQueries, may_end: threading.Event) -> None:
    asked = of_tenants(queries, may_end)
    asked += [asyncio.create_task(queries.ask(None, lambda: True)) for _ in range(MAX_OF_OPERATORS)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await queries.ask(None, bool)
    may_end.set()
    assert all(await asyncio.gather(*asked))


async def test_what_waits_when_the_ledger_closes_is_not_answered(
    queries: LedgerQueries, may_end: threading.Event
) -> None:
    asked = [asyncio.create_task(queries.ask("acme", lambda: may_end.wait(30))) for _ in range(2)]
    await asyncio.sleep(0)
    may_end.set()
    queries.close()
    assert [type(found) for found in await asyncio.gather(*asked, return_exceptions=True)][1] is asyncio.CancelledError
    with pytest.raises(Closed):
        await queries.ask("acme", bool)
