"""A turn's answer while it is read: its usage is taken from the data, and its usage chunk kept from the caller."""

from collections.abc import Mapping
from typing import Any, Final

from warmroute._books import Books, Turn

_EXTENSION: Final = "warmroute.watch"


class Watch:
    """Looks on while a turn's answer is read. It travels in the response's `extensions`, httpx's place for such."""

    __slots__ = ("_books", "_turn", "usage")

    def __init__(self, books: Books, turn: Turn) -> None:
        self._books = books
        self._turn = turn
        self.usage: Mapping[str, Any] | None = None

    @property
    def turn(self) -> Turn:
        """The turn that is watched."""
        return self._turn

    def attach(self, response: Any) -> None:
        """Sends the watch along with a response."""
        response.extensions[_EXTENSION] = self

    def saw(self, data: object) -> None:
        """Data of the answer, parsed: all of it, or a chunk of a stream. In a stream the last usage counts."""
        with self._books.guard():
            usage = data.get("usage") if isinstance(data, Mapping) else None
            if isinstance(usage, Mapping):
                self.usage = usage
                if not self._turn.streamed:
                    self.finished()

    def withholds(self, chunk: object) -> bool:
        """Whether a chunk is the usage that only the SDK asked for."""
        return self._turn.withhold and getattr(chunk, "usage", None) is not None and not getattr(chunk, "choices", True)

    def finished(self) -> None:
        """The answer has been read, or given up."""
        with self._books.guard():
            if self.usage is not None:
                self._books.settle(self._turn, self.usage)


def watch_of(response: Any) -> Watch | None:
    """The watch over the turn that a response answers."""
    extensions = getattr(response, "extensions", None)
    watch = extensions.get(_EXTENSION) if isinstance(extensions, dict) else None
    return watch if isinstance(watch, Watch) else None
