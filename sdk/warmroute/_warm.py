"""Prompts that are computed ahead: `client.cache.warm` before the user has asked, `keep_warm` between turns.

Both methods ask for the shortest answer that the server allows. Their turns and receipts are counted separately
(`CacheReport.warmed`). A *ping* of `keep_warm` repeats the last prompt of a session, so that the whole prompt stays
cached. A ping is sent only if the budget covers its highest cost, with no token cached and all written to the cache.
Without known rates, no ping is sent.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

from warmroute._turns import Turn
from warmroute.contract.money import NANO_PER_USD
from warmroute.contract.providers import Provider
from warmroute.guard.prompt import Prompt

DEFAULT_INTERVAL_S: Final = 240.0
"""The interval if it is not known how long the server keeps an idle prompt: many servers keep it five minutes."""

MARGIN: Final = 0.8
"""A ping comes after this share of the time that a server keeps an idle prompt."""

MAX_ANSWER_TOKENS: Final = 16
"""The limit of the answer of a call made ahead through the Responses API, which accepts no smaller
`max_output_tokens`."""

_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})

turns_ahead: ContextVar[list[Turn] | None] = ContextVar("warmroute_turns_ahead", default=None)
"""The turns of the `warming` block, if calls made now compute a prompt ahead."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often, until when and for how much a session is pinged."""

    session: str
    max_nanousd: int
    interval_s: float
    until_s: float | None


@dataclass(frozen=True, slots=True)
class Ping:
    """The arguments of the next ping, and its highest cost."""

    arguments: Mapping[str, Any]
    """Empty while a call of the session runs: that call keeps the prompt warm."""
    worst_nanousd: int | None


class Ahead(NamedTuple):
    """A client's method that computes a prompt."""

    client: Any
    method: str
    limit: Mapping[str, int]
    """The argument that makes the answer as short as the server allows."""

    def call(self, arguments: Mapping[str, Any], *, once: bool) -> Any:
        """Call the method, without retries if `once`. The result of an asynchronous client has to be awaited."""
        limit = {} if _LIMITS & arguments.keys() else self.limit
        client = self.client.with_options(max_retries=0) if once else self.client
        return attrgetter(self.method)(client)(**{**limit, **arguments})


def ahead_of(client: Any, backend: Provider) -> dict[str, Ahead]:
    """Argument that takes a prompt -> the method with this argument, for a client of `openai` or `anthropic`."""
    kind = type(client)
    if hasattr(kind, "chat"):
        return {
            "messages": Ahead(client, "chat.completions.create", {backend.limit: 1}),
            "input": Ahead(client, "responses.create", {"max_output_tokens": MAX_ANSWER_TOKENS}),
        }
    return {"messages": Ahead(client, "messages.create", {"max_tokens": 1})} if hasattr(kind, "messages") else {}


def arguments_of(prompt: Prompt) -> dict[str, Any] | None:
    """A prompt as the arguments of a call; None if its text is gone, or if no method of `ahead_of` can send it."""
    system, messages = prompt.system, prompt.messages
    thinking = (prompt.set_to or {}).get("thinking")
    thinks = isinstance(thinking, Mapping) and "budget_tokens" in thinking  # thinking needs a longer answer
    if messages.name not in ("messages", "input") or messages.raw is None or system.raw is None or thinks:
        return None
    found: dict[str, Any] = {"model": prompt.model, messages.name: _given(messages.raw)}
    if system.name == messages.name:
        found[messages.name] = [*system.raw, *messages.raw] if system.raw else found[messages.name]
    elif system.raw:
        found[system.name] = _given(system.raw)
    if prompt.tools.raw:
        found["tools"] = list(prompt.tools.raw)
    if prompt.set_to:
        found["extra_body"] = dict(prompt.set_to)  # since no client has an argument for each setting
    return found


def _given(raw: list[Any]) -> Any:
    """The value of a field as it was given: one text, or a list of parts."""
    return raw[0] if len(raw) == 1 and isinstance(raw[0], str) else list(raw)


def plan_of(
    session: str, max_usd: float, until: float | datetime | None, interval_s: float | None, ttl_s: float
) -> Plan:
    """The plan of `keep_warm`; `ValueError` for a budget or an interval that is not above 0."""
    if max_usd <= 0 or (interval_s is not None and interval_s <= 0):
        raise ValueError("keep_warm() needs max_usd above 0, and an interval_s above 0 if one is given")
    every_s = interval_s or (ttl_s * MARGIN if ttl_s else DEFAULT_INTERVAL_S)
    until_s = until.timestamp() if isinstance(until, datetime) else until
    return Plan(session, round(max_usd * NANO_PER_USD), every_s, until_s)


def reason_to_stop(plan: Plan, spent_nanousd: int, ping: Ping | None, now_s: float) -> str | None:
    """Why no further ping is sent, or None."""
    if plan.until_s is not None and now_s >= plan.until_s:
        return "its time is over"
    if ping is None:
        return "no ping can be made of the session's last prompt"
    if ping.worst_nanousd is None:
        return "no rates are known for its model"
    if spent_nanousd + ping.worst_nanousd > plan.max_nanousd:
        return "the next ping could exceed its budget"
    return None


@contextmanager
def warming() -> Iterator[list[Turn]]:
    """Count calls inside the block as computed ahead. Yields the list of their turns."""
    outer, turns = turns_ahead.get(), list[Turn]()
    turns_ahead.set(turns)
    try:
        yield turns
    finally:
        turns_ahead.set(outer)


class KeptWarm:
    """A session that is pinged until its block is left, or until `stop`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pings = 0
        self.spent_nanousd = 0
        self.stopped_because: str | None = None
        """Why the pings ended; None while they continue."""

    @property
    def goes_on(self) -> bool:
        return self.stopped_because is None

    def next(self, ping: Ping | None) -> Mapping[str, Any]:
        """The arguments of the next ping; empty if nothing is sent now."""
        self.stopped_because = self.stopped_because or reason_to_stop(self.plan, self.spent_nanousd, ping, time.time())
        return {} if self.stopped_because or ping is None else ping.arguments

    def settled(self, nanousd: int, worst_nanousd: int | None) -> None:
        """Add the cost of a ping, or its upper bound if the answer shows no cost."""
        self.pings += 1
        self.spent_nanousd += nanousd or worst_nanousd or 0

    def failed(self, error: Exception) -> None:
        """End the pings, because one has failed."""
        self.stopped_because = f"a ping failed: {type(error).__name__}"


class KeptWarmByThread(KeptWarm):
    """Pings from a separate thread."""

    def __init__(self, plan: Plan, ping: Callable[[KeptWarm], bool]) -> None:
        super().__init__(plan)
        self._ping = ping
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warmroute-keep-warm", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no further ping; return when no ping is running."""
        self.stopped_because = self.stopped_because or "it was stopped"
        self._end.set()
        self._thread.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the pings. Return whether they have ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._end.wait(self.plan.interval_s):
            if not self._ping(self):
                return

    def __enter__(self) -> "KeptWarmByThread":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class KeptWarmByTask(KeptWarm):
    """Pings from a task of the running loop."""

    def __init__(self, plan: Plan, ping: Callable[[KeptWarm], Awaitable[bool]]) -> None:
        super().__init__(plan)
        self._ping = ping
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send no further ping; return when no ping is running."""
        self.stopped_because = self.stopped_because or "it was stopped"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Wait for the end of the pings."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.plan.interval_s)
            if not await self._ping(self):
                return

    async def __aenter__(self) -> "KeptWarmByTask":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
