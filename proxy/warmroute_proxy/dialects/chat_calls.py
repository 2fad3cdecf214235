"""The tool calls of a chat stream, told apart: each piece of one belongs to the call that its index or its id says.

Engines differ. Most number their calls and send an id with the first piece. Some send no index, or one index for all,
with another id for each call; some send pieces of several calls by turns. A piece with a name and an id that is new
begins a call; without a name it goes on with the newest call of its index.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.chat_answers import Function, ToolCall
from warmroute_proxy.dialects.raw_json import encode

WENT_BACK: Final = "it continued a tool call that had ended"

NO_ARGUMENTS: Final = Raw(b"{}")
_decode_object: Final = msgspec.json.Decoder(dict[str, Raw]).decode


def arguments_object(arguments: str) -> Raw:
    """The arguments as an object. A model may write some that are none: they are shown as they are."""
    if not arguments:
        return NO_ARGUMENTS
    try:
        _decode_object(arguments)
    except (msgspec.DecodeError, RecursionError):
        return Raw(encode({"arguments": arguments}))
    return Raw(arguments.encode())


class Piece(msgspec.Struct):
    """Some of a call. `number`: of the call, in the order in which they began; `call_id` and `name`: of the call."""

    number: int
    call_id: str | None
    name: str
    arguments: str


def whole_calls(calls: Iterable[ToolCall]) -> list[Piece]:
    """The calls of a whole answer."""
    found = []
    for number, call in enumerate(calls):
        function = call.function or Function()
        found.append(Piece(number, call.id, function.name or "", function.text()))
    return found


class _Begun:
    """A call that has begun."""

    __slots__ = ("arguments", "call_id", "name")

    def __init__(self, call_id: str | None, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.arguments: list[str] = []


class CallPieces:
    """The calls of one stream, in order: the pieces of a call are given out together, whatever is between them.

    The newest call is given out as it comes. Where pieces of a later one come while the arguments of the one before are
    no whole object yet, they wait for the end of the stream.
    """

    def __init__(self) -> None:
        self._calls: list[_Begun] = []
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        self._open = -1  # the call that is given out as it comes
        self._waits = False  # the calls behind it wait

    def take(self, call: ToolCall) -> Piece | None:
        """A piece that came; None where it has to wait. Raises: ValueError, where it is of a call that has ended."""
        function = call.function or Function()
        number = self._number(call, function.name or "")
        begun = self._calls[number]
        begun.name = begun.name or function.name or ""
        begun.call_id = begun.call_id or call.id
        text = function.text()
        if number > self._open and not self._waits:
            if self._open >= 0 and not self._is_whole(self._open):
                self._waits = True
            else:
                self._open = number
        begun.arguments.append(text)
        if number < self._open:
            raise ValueError(WENT_BACK)
        return Piece(number, begun.call_id, begun.name, text) if number == self._open else None

    def rest(self) -> Iterator[Piece]:
        """The calls that wait, each whole. The stream has ended."""
        for number in range(self._open + 1, len(self._calls)):
            begun = self._calls[number]
            yield Piece(number, begun.call_id, begun.name, "".join(begun.arguments))
        self._open = len(self._calls) - 1

    def whole(self) -> list[Piece]:
        """All calls, each whole."""
        return [
            Piece(number, begun.call_id, begun.name, "".join(begun.arguments))
            for number, begun in enumerate(self._calls)
        ]

    def _number(self, call: ToolCall, name: str) -> int:
        call_id, index = call.id, call.index
        if call_id and call_id in self._by_id:
            return self._by_id[call_id]
        if index is None:
            known = len(self._calls) - 1 if self._calls and not name else None
        else:
            known = self._by_index.get(index)
        if known is None or (call_id and name and self._calls[known].call_id not in (None, call_id)):
            known = len(self._calls)
            self._calls.append(_Begun(call_id, name))
        if index is not None:
            self._by_index[index] = known
        if call_id:
            self._by_id[call_id] = known
        return known

    def _is_whole(self, number: int) -> bool:
        try:
            _decode_object("".join(self._calls[number].arguments))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True
