"""`OpenAI` and `AsyncOpenAI`: openai's clients, observed by warmroute, with openai's own parameters and five more."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import openai

from warmroute._cache import AsyncCache, Cache
from warmroute._calls import AsyncCalls, Calls
from warmroute._guard import Guard
from warmroute._observer import Observer
from warmroute._options import AsyncOptions, Options
from warmroute.ways.connections import observe

if TYPE_CHECKING:
    from openai.resources.responses import AsyncResponses, Responses

GuardMode = Literal["off", "warn", "raise"]
Repair = str | Iterable[str] | None


class OpenAI(Calls, openai.OpenAI):
    """`openai.OpenAI` with the same parameters, and:

    `session`: the session of calls outside of any `session()` block. `guard`: what is done about a call that breaks the
    cached prefix of its session: nothing, a warning, or `PrefixBroken`. `repair`: rules by name, or `"safe"`.
    `backend`: the kind of server, where its address does not tell. `telemetry`: a span of OpenTelemetry for each turn.
    `ValueError` for a name that is not known.
    """

    def __init__(
        self,
        *,
        session: str | None = None,
        guard: GuardMode = "warn",
        repair: Repair = None,
        backend: str | None = None,
        telemetry: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._observer = Observer(session, Guard(guard, repair), backend, telemetry=telemetry)
        super().__init__(**options)

    @cached_property
    def responses(self) -> "Responses":
        """openai's, whose connections are observed, too."""
        found = super().responses
        observe(found, self, self._observer)
        return found

    @property
    def cache(self) -> Cache:
        """What this client and its copies have observed of the cache."""
        return Cache(self._observer.books, *self._observer.callers(self))

    def copy(self, *, session: str | None = None, **options: Any) -> Self:
        """openai's `copy`; `session` is the session of all calls of the copy. Both share one `cache`."""
        twin = super().copy(**options)
        twin._observer = self._observer.pinned(session)
        return twin

    with_options = copy


class AsyncOpenAI(AsyncCalls, openai.AsyncOpenAI):
    """`openai.AsyncOpenAI`, with the same additions as `OpenAI`."""

    def __init__(
        self,
        *,
        session: str | None = None,
        guard: GuardMode = "warn",
        repair: Repair = None,
        backend: str | None = None,
        telemetry: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> None:
        self._observer = Observer(session, Guard(guard, repair), backend, telemetry=telemetry)
        super().__init__(**options)

    @cached_property
    def responses(self) -> "AsyncResponses":
        """openai's, whose connections are observed, too."""
        found = super().responses
        observe(found, self, self._observer)
        return found

    @property
    def cache(self) -> AsyncCache:
        """What this client and its copies have observed of the cache."""
        return AsyncCache(self._observer.books, *self._observer.callers(self))

    def copy(self, *, session: str | None = None, **options: Any) -> Self:
        """openai's `copy`; `session` is the session of all calls of the copy. Both share one `cache`."""
        twin = super().copy(**options)
        twin._observer = self._observer.pinned(session)
        return twin

    with_options = copy
