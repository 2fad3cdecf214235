"""`client.cache`: reports of what the client has observed, and calls that it makes on request, such as `warm`."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from warmroute._books import Books
from warmroute._guard import GuardEvent
from warmroute._report import CacheReport, explain
from warmroute._session import session as named_session
from warmroute._warm import Ahead, KeptWarm, KeptWarmByTask, KeptWarmByThread, Plan, plan_of, warming
from warmroute.guard.upkeep import CACHED_SHARE, compacted, pruned

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


class GuardView:
    """`client.cache.guard`: what the prefix guard has found."""

    def __init__(self, books: Books) -> None:
        self._books = books

    @property
    def events(self) -> tuple[GuardEvent, ...]:
        """The last thousand events: broken prefixes, repairs and cache misses of the server, newest last."""
        return self._books.guard_events()

    @property
    def counts(self) -> dict[str, int]:
        """How often each cause was found and not repaired."""
        return self._books.guard_counts()

    @property
    def repairs(self) -> dict[str, int]:
        """How often each repair rule was used."""
        return self._books.guard_repairs()

    def __str__(self) -> str:
        return "\n".join(f"session {event.session}: {event}" for event in self.events) or "No prefix was broken."


class CacheView:
    """The methods of `client.cache` that make no calls."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def report(self) -> CacheReport:
        """Sums over all turns of the client and its `with_options()` copies."""
        return self._books.report()

    def explain(self, session: str | None = None) -> str:
        """Say why no more tokens of the last turn were cached. Without `session`: the client's last turn."""
        return explain(self._books.last_turn(session), session)

    @property
    def books(self) -> Books:
        """The books that this view reads."""
        return self._books

    @property
    def guard(self) -> GuardView:
        """Events of the prefix guard."""
        return GuardView(self._books)

    def compact(self, messages: Sequence[Any], instruction: str, session: str | None = None) -> dict[str, Any]:
        """Return the arguments of a call that summarises the conversation and finds its prompt in the cache.

        The arguments are the messages with the instruction as the last user message, and the model and tools of the
        session's last turn:
        `client.chat.completions.create(**client.cache.compact(messages, "Summarise this conversation."))`.
        """
        return {**self._books.last_arguments(session), "messages": compacted(messages, instruction)}

    def prune(
        self, messages: Sequence[Any], keep: int = 4, turns_ahead: int = 10, session: str | None = None
    ) -> Sequence[Any]:
        """Return the messages with all tool results cleared except the last `keep`; unchanged if clearing does not pay.

        Clearing pays if the savings of later turns exceed the cost of computing the changed part now. Costs follow from
        the rates of the last turn; if those are unknown, a cached token counts a tenth of an uncached one.
        `turns_ahead`: expected number of later turns. Unchanged messages are returned as the object that was passed.
        """
        share = self._books.cached_share(session)
        found = pruned(messages, keep, turns_ahead, CACHED_SHARE if share is None else share)
        return messages if found is None else found

    def save(self, session: str) -> dict[str, Any]:
        """Return a session as JSON for `load`: digests of its prompts, and no text except dates. Raises: LookupError,
        if this client has seen no turn of the session.
        """
        return self._books.save(session)

    def load(self, saved: Mapping[str, Any]) -> str:
        """Restore a session from the value of `save`, and return its key. Raises: ValueError for any other value."""
        return self._books.load(saved)

    def fork(self, session: str, key: str | None = None) -> str:
        """Begin a session that shares the history of `session`, and return the new session's key. Raises: LookupError,
        if this client has seen no turn of `session`.
        """
        return self._books.fork(session, key)

    def samples(self, session: str, count: int, *, spread: bool = False) -> list[str]:
        """Return session keys for several samples of one prompt, which share the history of `session`.

        If `spread`, each sample has a separate key, so that a server may compute the samples on several engines.
        Otherwise all samples have the key of `session` and run where its prompt is cached.
        """
        return self._books.samples(session, count, spread=spread)

    def pending(self) -> list[str]:
        """Ids of the newest thousand receipts that response heads announced and no answer brought, oldest first."""
        return self._books.pending()


class _Caller(CacheView):
    """The code that `Cache` and `AsyncCache` share."""

    def __init__(
        self,
        books: Books,
        get: Callable[[str], Any],
        ahead: Mapping[str, Ahead],
        expect: Callable[[str | None, str], Callable[[], Any] | None],
    ) -> None:
        super().__init__(books)
        self._get = get
        self._ahead = ahead
        self._expect = expect

    def _settled(self, receipt_id: str, answer: object) -> Mapping[str, Any] | None:
        usage = answer.get("usage") if isinstance(answer, Mapping) else None
        if not isinstance(usage, Mapping):
            return None
        self._books.settle_fetched(receipt_id, usage)
        return usage

    def _called_ahead(self, arguments: Mapping[str, Any], *, once: bool = False) -> Any:
        """Call the client's method for these arguments. `once`: without retries, each of which may cost as much."""
        field = "input" if "input" in arguments else "messages"
        if field not in self._ahead:
            raise TypeError(f"this client has no method that takes {field}=, so it computes no such prompt ahead")
        return self._ahead[field].call(arguments, once=once)

    def _arguments(
        self, messages: Sequence[Any] | None, tools: Sequence[Any] | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments of a call that computes a prompt ahead."""
        found = dict(options)
        if messages is not None:
            found["messages"] = list(messages)
        if tools:
            found["tools"] = list(tools)
        if not found.get("messages") and not found.get("input"):
            raise ValueError("warm() needs messages, or input= for Responses")
        if "model" not in found:
            known = self._books.last_arguments(None).get("model")
            if known is None:
                raise ValueError("warm() needs a model, since no turn was seen yet")
            found["model"] = known
        return found

    def _plan(self, session: str, max_usd: float, until: float | datetime | None, interval_s: float | None) -> Plan:
        if not self._ahead:
            raise TypeError("this client has no method that computes prompts")
        return plan_of(session, max_usd, until, interval_s, self._books.keeping_of(session).ttl_s)

    @contextmanager
    def _ping(self, keeper: KeptWarm) -> Iterator[Mapping[str, Any]]:
        """Yield the arguments of a ping, empty if it is not due, and count the call that the block makes."""
        ping = self._books.ping_of(keeper.plan.session)
        arguments = keeper.next(ping)
        try:
            with named_session(keeper.plan.session), warming() as turns:
                yield arguments
        except Exception as error:  # a failed ping must not end the program, which runs beside the pings
            keeper.failed(error)
        else:
            if arguments and ping is not None:
                amounts = [turn.measured.amounts_nanousd for turn in turns if turn.measured is not None]
                keeper.settled(sum(each.cost for each in amounts if each is not None), ping.worst_nanousd)


class Cache(_Caller):
    """`client.cache` of a synchronous client."""

    def fetch(self, receipt_id: str) -> Mapping[str, Any] | None:
        """Return the `usage` of a turn by its receipt's id, by one call to the server; None while the turn still runs.

        The usage of a pending receipt is checked and added to the report. Errors are those of the client (404: the
        server has no such receipt).
        """
        return self._settled(receipt_id, self._get(_path(receipt_id)))

    def warm(self, messages: Sequence[Any] | None = None, tools: Sequence[Any] | None = None, **options: Any) -> object:
        """Compute a prompt ahead of time, by a call that asks for the shortest possible answer. Return that answer.

        An openai client sends a chat completion, or a Responses call if `input=` replaces `messages`; an anthropic
        client sends a message. `options`: further arguments of that call, such as `system` or `instructions`. `model`
        defaults to the model of the last turn. Reports count the call separately. Errors are those of the client.
        """
        with warming():
            return self._called_ahead(self._arguments(messages, tools, options))

    def keep_warm(
        self, session: str, *, max_usd: float, until: float | datetime | None = None, interval_s: float | None = None
    ) -> KeptWarmByThread:
        """Repeat the last prompt of a session in the background, until `max_usd` or `until` is reached.

        `until`: a `datetime`, or seconds since the epoch. `interval_s`: by default, it follows from the kind of server.
        A ping that could exceed `max_usd` is not sent. Pings end with the `with` block, or with `stop()`. Reports count
        pings separately.
        """
        return KeptWarmByThread(self._plan(session, max_usd, until, interval_s), self._pinged)

    def end(self, session: str | None = None) -> bool:
        """Tell the server that a session is over, so that its KV can be evicted first. Return whether that worked.

        `session`: by default the session of the `session()` block, or of the client; `ValueError` if neither names one.
        No other error is raised: False means that the server is unreachable, or is not warmroute. The session may
        still continue later.
        """
        return self._expected(session, "end")

    def waits_for_person(self, session: str | None = None) -> bool:
        """Tell the server that a session waits for a person, such as for permission to run a tool.

        Arguments and result are those of `end`.
        """
        return self._expected(session, "human")

    def _expected(self, session: str | None, word: str) -> bool:
        call = self._expect(session, word)
        if call is None:
            return False
        try:
            call()
        except Exception:  # only a hint was lost: the program must go on
            return False
        return True

    def _pinged(self, keeper: KeptWarm) -> bool:
        with self._ping(keeper) as arguments:
            if arguments:
                self._called_ahead(arguments, once=True)
        return keeper.goes_on


class AsyncCache(_Caller):
    """`client.cache` of an asynchronous client."""

    async def fetch(self, receipt_id: str) -> Mapping[str, Any] | None:
        """`Cache.fetch`, awaited."""
        return self._settled(receipt_id, await self._get(_path(receipt_id)))

    async def warm(
        self, messages: Sequence[Any] | None = None, tools: Sequence[Any] | None = None, **options: Any
    ) -> object:
        """`Cache.warm`, awaited."""
        with warming():
            return await self._called_ahead(self._arguments(messages, tools, options))

    def keep_warm(
        self, session: str, *, max_usd: float, until: float | datetime | None = None, interval_s: float | None = None
    ) -> KeptWarmByTask:
        """`Cache.keep_warm`, by a task of the running loop. Use `async with`, or await its `stop()`."""
        return KeptWarmByTask(self._plan(session, max_usd, until, interval_s), self._pinged)

    async def end(self, session: str | None = None) -> bool:
        """`Cache.end`, awaited."""
        return await self._expected(session, "end")

    async def waits_for_person(self, session: str | None = None) -> bool:
        """`Cache.waits_for_person`, awaited."""
        return await self._expected(session, "human")

    async def _expected(self, session: str | None, word: str) -> bool:
        call = self._expect(session, word)
        if call is None:
            return False
        try:
            await call()
        except Exception:  # only a hint was lost: the program must go on
            return False
        return True

    async def _pinged(self, keeper: KeptWarm) -> bool:
        with self._ping(keeper) as arguments:
            if arguments:
                await self._called_ahead(arguments, once=True)
        return keeper.goes_on


def _path(receipt_id: str) -> str:
    if not _ID.fullmatch(receipt_id):
        raise ValueError(f"{receipt_id!r} is not a receipt id")
    return f"/usage/receipts/{receipt_id}"
