"""Answers questions about many rows in a thread, one at a time, while the event loop goes on.

Operators' questions come first, then tenants take turns.

Python runs one thread at a time, and the event loop gives up the interpreter lock at each event of a socket. So beside
a thread that is always busy, the loop would get only a small part of the time. Therefore the thread *rests* after each
question: `REST` times as long as the question used a processor, but at most `MOST_REST_S`.

Limits: `MAX_WAITING` questions of all tenants, `MAX_OF_TENANT` of one tenant, and `MAX_OF_OPERATORS` of operators.
Further questions are refused (`Busy`).
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from warmroute_proxy.server.ledger.all_rows import Closed
from warmroute_proxy.server.ledger.ladder_sums import Climbed, LadderBy, climb
from warmroute_proxy.server.ledger.usage_sums import By, Listed, Sums, Turns, add_up, newest

MAX_WAITING: Final = 16
MAX_OF_TENANT: Final = 4
MAX_OF_OPERATORS: Final = 8
REST: Final = 4
MOST_REST_S: Final = 0.1
"""The longest rest. A question that uses more processor time is mostly work of SQLite, which needs no Python lock."""

T = TypeVar("T")
_OPERATORS: Final = ""
"""Stands for operators in the place of a tenant's name, which is never empty."""


class _Waiting(NamedTuple):
    """A question, and the future that gets its answer."""

    question: Callable[[], Any]
    answer: "asyncio.Future[Any]"


class Busy(Exception):
    """Too many questions wait. `own`: whether the asker itself has asked too many."""

    def __init__(self, own: bool) -> None:
        super().__init__(own)
        self.own = own


class LedgerQueries:
    """Questions about the ledger of a proxy. Called in the event loop."""

    def __init__(self, state_dir: Path, database: Path) -> None:
        self._state_dir = state_dir
        self._database = database
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger-query")
        self._counts: Counter[str] = Counter()  # questions that wait or are being answered, by asker
        self._waiting: dict[str, deque[_Waiting]] = {}  # by asker; the tenant whose turn it is comes first
        self._busy = False  # whether the thread is answering or resting
        self._rest_s = 0.0  # how long to rest after the last question

    def close(self) -> None:
        """Stop the question that is being answered, and cancel those that wait."""
        self._closing.set()
        for questions in self._waiting.values():
            for waiting in questions:
                waiting.answer.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def add_up(self, turns: Turns, by: By | None, above: int = 0, *, operator: bool = False) -> Sums:
        """Add up the rows that `turns` selects and whose number is larger than `above`. `operator`: an operator asks,
        not the tenant. Raises: Busy, Closed, sqlite3.Error.
        """
        stopped, where = self._closing.is_set, (self._state_dir, self._database)
        return await self.ask(None if operator else turns.tenant, lambda: add_up(*where, turns, by, stopped, above))

    async def newest(self, turns: Turns, limit: int, above: int = 0, *, operator: bool = False) -> Listed:
        """List the newest turns that `turns` selects, otherwise as `add_up`."""
        stopped, where = self._closing.is_set, (self._state_dir, self._database)
        return await self.ask(None if operator else turns.tenant, lambda: newest(*where, turns, limit, stopped, above))

    async def climb(self, turns: Turns, by: LadderBy | None, *, operator: bool = False) -> Climbed:
        """Compute the ladder (the steps at which cached tokens were lost) of the newest turns that `turns` selects."""
        stopped, where = self._closing.is_set, (self._state_dir, self._database)
        return await self.ask(None if operator else turns.tenant, lambda: climb(*where, turns, by, stopped))

    async def ask(self, tenant: str | None, question: Callable[[], T]) -> T:
        """Answer a question of a tenant or (None) an operator. Raises: Busy, Closed, and what the question raises."""
        asker = tenant or _OPERATORS
        if self._closing.is_set():
            raise Closed
        if self._counts[asker] >= (MAX_OF_TENANT if tenant else MAX_OF_OPERATORS):
            raise Busy(own=True)
        if tenant and self._counts.total() - self._counts[_OPERATORS] >= MAX_WAITING:
            raise Busy(own=False)
        self._counts[asker] += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(_Waiting(question, answer))
        self._answer_next()
        try:
            found: T = await answer
            return found
        finally:
            self._counts[asker] -= 1
            if not self._counts[asker]:
                del self._counts[asker]

    def _answer_next(self) -> None:
        """Have the thread answer the next question, if it is idle and there is one."""
        while self._waiting and not self._busy and not self._closing.is_set():
            asker = _OPERATORS if _OPERATORS in self._waiting else next(iter(self._waiting))
            questions = self._waiting.pop(asker)
            question, answer = questions.popleft()
            if questions:
                self._waiting[asker] = questions  # the asker's next question comes after those of all other askers
            if answer.done():  # the asker no longer waits for the answer
                continue
            self._busy = True
            done = asyncio.get_running_loop().run_in_executor(self._thread, self._run, question)
            done.add_done_callback(partial(self._answered, answer))

    def _run(self, question: Callable[[], Any]) -> Any:
        """Answer a question; runs in the thread."""
        began_s = time.thread_time()
        try:
            return question()
        finally:
            self._rest_s = min(REST * (time.thread_time() - began_s), MOST_REST_S)

    def _rested(self) -> None:
        self._busy = False
        self._answer_next()

    def _answered(self, answer: "asyncio.Future[Any]", done: "asyncio.Future[Any]") -> None:
        error = None if done.cancelled() else done.exception()
        if answer.done():
            pass
        elif done.cancelled():
            answer.cancel()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())
        asyncio.get_running_loop().call_later(self._rest_s, self._rested)
