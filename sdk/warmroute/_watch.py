"""Watches the answer of a turn while it is read: notes its usage, and tells which chunk the caller must not get."""

from collections.abc import Mapping
from typing import Any, Final, cast

from warmroute._books import Books
from warmroute._turns import Turn
from warmroute.contract.receipt_type import Receipt
from warmroute.contract.usage import usage_in

_EXTENSION: Final = "warmroute.watch"
_LAST_EVENTS: Final = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
"""Events that end a stream of Anthropic's messages or of Responses."""


class Watch:
    """Observes a turn's answer while it is read. The `extensions` of httpx's response hold this object."""

    __slots__ = ("_books", "turn", "usage")

    def __init__(self, books: Books, turn: Turn) -> None:
        self._books = books
        self.turn = turn
        self.usage: Mapping[str, Any] | None = None

    def attach(self, response: Any) -> None:
        response.extensions[_EXTENSION] = self

    def observe(self, data: object) -> None:
        """Note the usage in parsed data, which is a whole answer or an event of a stream. Later counts replace earlier
        ones: Anthropic sends the prompt's counts with the first event, and the other counts with the last event.
        """
        with self._books.shelter():
            if not isinstance(data, Mapping):
                return
            if usage := usage_in(data):
                known = {name: value for name, value in usage.items() if value is not None}
                self.usage = {**(self.usage or {}), **known}
            if not self.turn.streamed or data.get("type") in _LAST_EVENTS:
                self.finished()

    def withholds(self, chunk: object) -> bool:
        """Whether a chunk has usage that only the SDK requested, so that the caller must not get the chunk."""
        return self.turn.withhold and getattr(chunk, "usage", None) is not None and not getattr(chunk, "choices", True)

    def finished(self) -> None:
        """Settle the turn (count its usage): its answer was read to the end or dropped, or its call has failed."""
        with self._books.shelter():
            self._books.ended(self.turn, self.usage)


def watch_of(response: Any) -> Watch | None:
    extensions = getattr(response, "extensions", None)
    watch = extensions.get(_EXTENSION) if isinstance(extensions, dict) else None
    return watch if isinstance(watch, Watch) else None


def receipt_of(answer: object) -> Receipt | None:
    """The receipt (`usage.warmroute`) of an answer of any API, of a chunk, or of a stream that has been read to its
    end, including openai's `.stream()`. None if there is no receipt.
    """
    response = getattr(answer, "response", None) or getattr(answer, "_response", None)
    watch = watch_of(response)
    for each in (answer, watch, response):  # an event of Responses has its answer in `response`
        usage = getattr(each, "usage", None)
        receipt = usage.get("warmroute") if isinstance(usage, Mapping) else getattr(usage, "warmroute", None)
        if isinstance(receipt, Mapping):
            return cast("Receipt", receipt)
    return None
