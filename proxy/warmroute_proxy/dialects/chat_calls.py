"""Assigns the pieces of tool calls in a chat answer to their calls, by index, id and name.

Servers differ. Most number their calls and send an id with the first piece. Some send no index, or one index for all
calls. Some send no ids, or one id for all calls. Some send a name in several pieces. Some interleave the pieces of
several calls, or send text between them. A piece begins a call if its index is new, or if it has a name and an id other
than that of the call with its index. A piece with a name also begins a call if the call with its index has arguments
already, and either another name or all of its arguments.

Ids must be unique in a conversation. So an id is replaced if it is missing, a mere number (`call_0`), or taken by
another call of the answer. The new id is made from the receipt's id.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.call_extras import carrying
from warmroute_proxy.dialects.chat_answers import ToolCall
from warmroute_proxy.dialects.raw_json import is_object
from warmroute_proxy.dialects.tool_arguments import object_text
from warmroute_proxy.dialects.work import MAX_CALLS

WENT_BACK: Final = "it continued a tool call that had ended"

_NUMBERED: Final = re.compile(r"(?:[ct]|tc|fc|id|call|tool|toolu|tool_call|func|function|function_call)?[_-]?\d{1,4}")
_STRUCTURE: Final = re.compile(r'["\\{}\[\]]')


def arguments_object(arguments: str) -> Raw:
    """The arguments as a JSON object, as `object_text` makes one."""
    return Raw(object_text(arguments).encode())


def _given(arguments: str) -> str:
    """Arguments of a call, or their beginning. Null means the same as an empty object."""
    return "{}" if arguments.strip() == "null" else arguments


def has_none(arguments: str) -> bool:
    """Whether arguments are blank, null or an empty object. A call with such arguments and no name is empty."""
    return "".join(arguments.split()) in {"", "null", "{}"}


class Piece(msgspec.Struct):
    """A piece of a call's arguments, with the call's id and name. `number` counts the calls as they begin."""

    number: int
    call_id: str
    name: str
    arguments: str


class CallIds:
    """The ids of the calls of one answer. `made`: the prefix of new ids, which replace unusable ones."""

    def __init__(self, made: str) -> None:
        self.made = made
        self._taken: set[str] = set()

    def of(self, number: int, given: str | None) -> str:
        if not given or given in self._taken or _NUMBERED.fullmatch(given):
            given = f"{self.made}_{number}"
        self._taken.add(given)
        return given


def whole_calls(calls: Iterable[ToolCall], made: str) -> list[Piece]:
    found, ids = [], CallIds(made)
    for number, call in enumerate(calls):
        name, arguments = call.called().name or "", _given(call.called().text())
        if name or not has_none(arguments):
            call_id = carrying(ids.of(number, call.id), call.extra_content)
            found.append(Piece(number, call_id, name, arguments))
    return found


def is_cut(arguments: str) -> bool:
    """Whether the arguments begin a JSON object and break off before its end."""
    begun = _Begun("")
    begun.add(arguments)
    return begun.is_cut()


class _Begun:
    """A call that has begun. Each character of its arguments is scanned once, to see whether they are complete."""

    __slots__ = (
        "_counted",
        "_counted_bytes",
        "_depth",
        "_escapes",
        "_given",
        "_in_text",
        "_looked",
        "arguments",
        "call_id",
        "extra",
        "given_id",
        "name",
    )

    def __init__(self, given_id: str) -> None:
        self.given_id = given_id
        self.call_id = ""
        self.extra = Raw()
        self.name = ""
        self.arguments: list[str] = []
        self._given = 0  # how many pieces were given out
        self._looked = 0  # how many pieces were scanned
        self._counted = self._counted_bytes = 0
        self._depth = 0
        self._in_text = self._escapes = False

    def add(self, arguments: str) -> None:
        more = arguments if self.arguments else _given(arguments)
        if more:
            self.arguments.append(more)

    @property
    def exists(self) -> bool:
        """Whether the model has made this call: some engines write an empty one beside text."""
        return bool(self.name or self._given or len(self.arguments) > 1) or not all(map(has_none, self.arguments))

    def has_more(self) -> bool:
        return self._given < len(self.arguments)

    def take(self) -> str:
        given, self._given = self._given, len(self.arguments)
        return "".join(self.arguments[given:])

    def pass_unread(self) -> None:
        """Forget the arguments: the next pieces pass unread, until another call begins."""
        self.arguments = ["{}"]
        self._given = self._looked = self._counted = self._counted_bytes = self._depth = 0
        self._in_text = self._escapes = False

    def size_bytes(self) -> int:
        """The memory that the call takes. Only new pieces are measured."""
        more = self.arguments[self._counted :]
        self._counted += len(more)
        self._counted_bytes += sum(map(sys.getsizeof, more))
        return self._counted_bytes + len(self.given_id) + len(self.name)

    def is_whole(self) -> bool:
        self._look()
        return bool(self.arguments) and not self._depth and not self._in_text

    def is_cut(self) -> bool:
        """Whether the arguments are an object that has not ended."""
        self._look()
        return (self._depth > 0 or self._in_text) and self.arguments[0].lstrip().startswith("{")

    def _look(self) -> None:
        for piece in self.arguments[self._looked :]:
            self._look_at(piece)
        self._looked = len(self.arguments)

    def _look_at(self, piece: str) -> None:
        at = 1 if self._escapes else 0
        self._escapes = False
        while found := _STRUCTURE.search(piece, at):
            sign, at = found[0], found.end()
            if sign == "\\":
                self._escapes = at == len(piece)
                at += 1
            elif sign == '"':
                self._in_text = not self._in_text
            elif not self._in_text:
                self._depth += 1 if sign in "{[" else -1


class CallPieces:
    """The calls of one stream, given out one after another even if their pieces came interleaved.

    A call is given out as it comes, from its first arguments on: until then, more of its name may come. Pieces of a
    later call wait until the call before is whole, or the stream has ended.
    """

    def __init__(self, made: str) -> None:
        """`made`: the prefix of new ids."""
        self._calls: list[_Begun] = []
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        self._ids = CallIds(made)
        self._open = 0  # the number of the call that is given out as it comes
        self._begun = -1  # the number of the last call that was given out

    def gather(self, call: ToolCall) -> int:
        function = call.called()
        name, arguments = function.name or "", function.text()
        number = self._number(call, name, arguments)
        begun = self._calls[number]
        if name and number > self._begun:
            begun.name = _longer_name(begun.name, name)
        if call.extra_content and is_object(call.extra_content):
            begun.extra = call.extra_content
        begun.add(arguments)
        return number

    def continues(self, call: ToolCall) -> bool:
        """Whether a call with the index of this piece has begun."""
        index = call.number()
        return bool(self._calls) if index is None else index in self._by_index

    def gather_unread(self, call: ToolCall) -> int:
        """Take a piece, and forget its call's arguments, so that later pieces may pass unread. Returns its number."""
        number = self.gather(call)
        self._calls[number].pass_unread()
        return number

    def made_id(self, number: int) -> str:
        return f"{self._ids.made}_{number}"

    def take(self, call: ToolCall) -> Iterator[Piece]:
        """Take a piece, and give out all pieces that are due. Raises: ValueError, if the piece's call has ended."""
        number = self.gather(call)
        if number < self._open:
            if self._calls[number].take().strip():
                raise ValueError(WENT_BACK)
            return
        while True:
            begun = self._calls[self._open]
            if begun.has_more() and begun.exists:
                yield self._given_out(self._open)
            if self._open == len(self._calls) - 1 or not begun.is_whole():
                return
            self._open += 1

    def rest(self) -> Iterator[Piece]:
        """Give out the calls that still wait at the end of the stream, each as one piece."""
        for number in range(self._open, len(self._calls)):
            if number > self._begun and self._calls[number].exists:
                yield self._given_out(number)
        self._open = max(len(self._calls) - 1, 0)

    def whole(self) -> list[Piece]:
        return [
            Piece(number, self._id_of(number), begun.name, "".join(begun.arguments))
            for number, begun in enumerate(self._calls)
            if begun.exists
        ]

    def size_bytes(self) -> int:
        return sum([call.size_bytes() for call in self._calls])

    @property
    def has_some(self) -> bool:
        return any(call.exists for call in self._calls)

    @property
    def interrupted(self) -> bool:
        """Whether text would now come between pieces of a call."""
        return self._begun >= 0 and self._begun == self._open and self._calls[self._open].is_cut()

    def are_cut(self) -> bool:
        """Whether the arguments of the last call are cut off."""
        return bool(self._calls) and self._calls[-1].is_cut()

    def _given_out(self, number: int) -> Piece:
        self._begun = number
        begun = self._calls[number]
        return Piece(number, self._id_of(number), begun.name, begun.take())

    def _id_of(self, number: int) -> str:
        begun = self._calls[number]
        if not begun.call_id:
            begun.call_id = carrying(self._ids.of(number, begun.given_id), begun.extra)
        return begun.call_id

    def _number(self, call: ToolCall, name: str, arguments: str) -> int:
        """The number of the call that a piece belongs to. A call that is new begins here."""
        call_id, index = call.id or "", call.number()
        newest = len(self._calls) - 1 if self._calls else None
        known = newest if index is None else self._by_index.get(index)
        other = self._by_id.get(call_id) if call_id else None
        if other is not None and self._is_of(other, known, call_id, name, has_index=index is not None):
            known = other
        if known is None or (name and self._begins(self._calls[known], call_id, name, arguments)):
            known = len(self._calls)
            if known >= MAX_CALLS:
                raise ValueError(f"it calls more than {MAX_CALLS} tools")
            self._calls.append(_Begun(call_id))
        begun = self._calls[known]
        begun.given_id = begun.given_id or call_id
        if index is not None:
            self._by_index[index] = known
        if call_id:
            self._by_id[call_id] = known
        return known

    def _is_of(self, other: int, known: int | None, call_id: str, name: str, *, has_index: bool) -> bool:
        """Whether a piece belongs to `other`, which has the same id, rather than to `known`, which has its index."""
        if name:
            return not has_index and name == self._calls[other].name
        return known is None or self._calls[known].given_id != call_id

    def _begins(self, before: _Begun, call_id: str, name: str, arguments: str) -> bool:
        """Whether a piece with a name begins a new call, or else continues `before`, the call with its index."""
        if call_id and before.given_id and call_id != before.given_id:
            return True
        if not before.arguments:
            return False
        if name != before.name:
            return True
        return _given(arguments).lstrip().startswith("{") and before.is_whole()


def _longer_name(name: str, more: str) -> str:
    """A name with its next piece `more`. If the piece repeats the name so far, it replaces the name."""
    return more if more.startswith(name) else name + more
