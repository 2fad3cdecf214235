"""openai's streams, with the usage chunk withheld from callers who did not request it.

openai's own code makes these streams from `stream_cls`. The classes are subclasses of openai's `Stream` and
`AsyncStream`, and override only the generator `__stream__`, as openai's own subclasses do.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from typing import Any, TypeVar, cast, get_args, get_origin

import openai

from warmroute._watch import watch_of

T = TypeVar("T")


class TurnStream(openai.Stream[T]):
    """A stream of one turn. `usage` is known once the stream has been read to its end."""

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The `usage` object of the turn; None until it has arrived."""
        watch = watch_of(self.response)
        return watch.usage if watch else None

    def __stream__(self) -> Iterator[T]:
        chunks = cast("Generator[T]", super().__stream__())
        watch = watch_of(self.response)
        try:
            for chunk in chunks:
                if watch is None or not watch.withholds(chunk):
                    yield chunk
        finally:
            chunks.close()


class AsyncTurnStream(openai.AsyncStream[T]):
    """A stream of one turn. `usage` is known once the stream has been read to its end."""

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The `usage` object of the turn; None until it has arrived."""
        watch = watch_of(self.response)
        return watch.usage if watch else None

    async def __stream__(self) -> AsyncIterator[T]:
        chunks = cast("AsyncGenerator[T]", super().__stream__())
        watch = watch_of(self.response)
        try:
            async for chunk in chunks:
                if watch is None or not watch.withholds(chunk):
                    yield chunk
        finally:
            await chunks.aclose()


def observed(stream_cls: Any) -> Any:
    """The class of this module that replaces openai's `Stream[X]` or `AsyncStream[X]`; None for any other class."""
    origin, arguments = get_origin(stream_cls), get_args(stream_cls)
    if origin is openai.Stream:
        return TurnStream[arguments[0]]  # type: ignore[valid-type]
    if origin is openai.AsyncStream:
        return AsyncTurnStream[arguments[0]]  # type: ignore[valid-type]
    return None
