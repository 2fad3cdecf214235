"""Mixins that observe the calls of a client, for clients that Stainless generated (openai's and anthropic's).

Every call runs through three methods: `request` (before the first attempt), `_process_response` (a successful answer
with its head) and `_process_response_data` (the parsed body, or each event of a stream). These methods are the same in
openai 2.x and 3.x, and in anthropic.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from warmroute._cache import AsyncCache, Cache
from warmroute._observer import Call, Observer, current_call
from warmroute._redirects import follow, keep, keep_async
from warmroute._watch import watch_of
from warmroute.ways.connections import observe

if TYPE_CHECKING:
    _Library: Any
else:
    _Library = object


class _Common(_Library):  # type: ignore[misc]
    """What both mixins have in common."""

    _observer: Observer

    if not TYPE_CHECKING:  # type checkers see openai's own

        @cached_property
        def responses(self) -> Any:
            """openai's `responses`, whose WebSocket connections are observed, too."""
            found = super().responses
            observe(found, self, self._observer)
            return found

    def copy(self, *, session: str | None = None, **options: Any) -> Self:
        """Return a copy, as the library's `copy` does, with the same `cache`. `session`: that of all its calls."""
        twin: Self = super().copy(**options)
        twin._observer = self._observer.pinned(session)
        return twin

    with_options = copy

    def _process_response_data(self, **parsed: Any) -> Any:
        if (watch := watch_of(parsed.get("response"))) is not None:
            watch.parsed(parsed.get("data"))
        return super()._process_response_data(**parsed)


class Calls(_Common):
    """The mixin of a synchronous client."""

    @property
    def cache(self) -> Cache:
        """The cached tokens, losses and costs that this client and its copies have observed."""
        return Cache(self._observer.books, *self._observer.callers(self))

    def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any) -> Any:
        """The library's `request`, with the session added and usage requested."""
        call = self._observer.begin(self, options, stream=stream, stream_cls=stream_cls, repeats=True)
        outer = current_call.get()
        current_call.set(call)
        try:
            try:
                return super().request(cast_to, call.sent, stream=stream, stream_cls=call.stream_cls, **more)
            except Exception as error:
                if not _may_repeat(call, error):
                    raise
            answer = super().request(cast_to, call.given, stream=stream, stream_cls=call.stream_cls, **more)
            call.field_refused()
            return answer
        finally:
            current_call.set(outer)
            call.ended()

    def _prepare_request(self, request: Any) -> None:
        with self._observer.books.shelter():
            follow(self._client, keep)
        super()._prepare_request(request)

    def _process_response(self, **answer: Any) -> Any:
        self._observer.answered(current_call.get(), answer.get("response"))
        return super()._process_response(**answer)


class AsyncCalls(_Common):
    """The mixin of an asynchronous client."""

    @property
    def cache(self) -> AsyncCache:
        """The cached tokens, losses and costs that this client and its copies have observed."""
        return AsyncCache(self._observer.books, *self._observer.callers(self))

    async def request(
        self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any
    ) -> Any:
        """The library's `request`, with the session added and usage requested."""
        call = self._observer.begin(self, options, stream=stream, stream_cls=stream_cls, repeats=True)
        outer = current_call.get()
        current_call.set(call)
        try:
            try:
                return await super().request(cast_to, call.sent, stream=stream, stream_cls=call.stream_cls, **more)
            except Exception as error:
                if not _may_repeat(call, error):
                    raise
            answer = await super().request(cast_to, call.given, stream=stream, stream_cls=call.stream_cls, **more)
            call.field_refused()
            return answer
        finally:
            current_call.set(outer)
            call.ended()

    async def _prepare_request(self, request: Any) -> None:
        with self._observer.books.shelter():
            follow(self._client, keep_async)
        await super()._prepare_request(request)

    async def _process_response(self, **answer: Any) -> Any:
        self._observer.answered(current_call.get(), answer.get("response"))
        return await super()._process_response(**answer)


def _may_repeat(call: Call, error: Exception) -> bool:
    """Whether to repeat a failed call as it was given: the server may have refused a field that the SDK added."""
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and call.retry_as_given(status, str(error))
