"""`OpenAI` and `AsyncOpenAI`: openai's clients, observed by warmroute.

Three methods of openai's base client are overridden, the same in 2.x and 3.x. Every call runs through them: `request`
(each call of each resource, before the first attempt), `_process_response` (a successful answer with its head) and
`_process_response_data` (its parsed body, or each chunk of it).
"""

from typing import Any, Self

import openai

from warmroute._cache import AsyncCache, Cache
from warmroute._observer import Observer, current_call
from warmroute._watch import watch_of


class OpenAI(openai.OpenAI):
    """`openai.OpenAI` with the same arguments, and `session`: the session of calls outside of any `session()` block."""

    _observer: Observer

    def __init__(self, *, session: str | None = None, **options: Any) -> None:
        self._observer = Observer(session)
        super().__init__(**options)

    @property
    def cache(self) -> Cache:
        """What this client and its copies have observed of the cache."""
        return Cache(self._observer.books, lambda path: self.get(path, cast_to=object))

    def copy(self, *, session: str | None = None, **options: Any) -> Self:
        """openai's `copy`; `session` is the session of all calls of the copy. Both share one `cache`."""
        twin = super().copy(**options)
        twin._observer = self._observer.pinned(session)
        return twin

    with_options = copy

    def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any) -> Any:
        """openai's own, with the session added and usage requested."""
        call = self._observer.begin(self, options, stream=stream, stream_cls=stream_cls)
        outer = current_call.get()
        current_call.set(call)
        try:
            try:
                return super().request(cast_to, call.sent, stream=stream, stream_cls=call.stream_cls, **more)
            except openai.APIStatusError as error:
                if not call.retry_as_given(error.status_code):
                    raise
            answer = super().request(cast_to, call.given, stream=stream, stream_cls=call.stream_cls, **more)
            call.field_refused()
            return answer
        finally:
            current_call.set(outer)
            call.ended()

    def _process_response(self, **answer: Any) -> Any:
        self._observer.answered(current_call.get(), answer.get("response"))
        return super()._process_response(**answer)

    def _process_response_data(self, **parsed: Any) -> Any:
        if (watch := watch_of(parsed.get("response"))) is not None:
            watch.observe(parsed.get("data"))
        return super()._process_response_data(**parsed)


class AsyncOpenAI(openai.AsyncOpenAI):
    """`openai.AsyncOpenAI`, with the same additions as `OpenAI`."""

    _observer: Observer

    def __init__(self, *, session: str | None = None, **options: Any) -> None:
        self._observer = Observer(session)
        super().__init__(**options)

    @property
    def cache(self) -> AsyncCache:
        """What this client and its copies have observed of the cache."""
        return AsyncCache(self._observer.books, lambda path: self.get(path, cast_to=object))

    def copy(self, *, session: str | None = None, **options: Any) -> Self:
        """openai's `copy`; `session` is the session of all calls of the copy. Both share one `cache`."""
        twin = super().copy(**options)
        twin._observer = self._observer.pinned(session)
        return twin

    with_options = copy

    async def request(
        self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any
    ) -> Any:
        """openai's own, with the session added and usage requested."""
        call = self._observer.begin(self, options, stream=stream, stream_cls=stream_cls)
        outer = current_call.get()
        current_call.set(call)
        try:
            try:
                return await super().request(cast_to, call.sent, stream=stream, stream_cls=call.stream_cls, **more)
            except openai.APIStatusError as error:
                if not call.retry_as_given(error.status_code):
                    raise
            answer = await super().request(cast_to, call.given, stream=stream, stream_cls=call.stream_cls, **more)
            call.field_refused()
            return answer
        finally:
            current_call.set(outer)
            call.ended()

    async def _process_response(self, **answer: Any) -> Any:
        self._observer.answered(current_call.get(), answer.get("response"))
        return await super()._process_response(**answer)

    def _process_response_data(self, **parsed: Any) -> Any:
        if (watch := watch_of(parsed.get("response"))) is not None:
            watch.observe(parsed.get("data"))
        return super()._process_response_data(**parsed)
