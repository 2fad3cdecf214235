"""Gives each tool call of a chat stream its own index and id, by which chat clients tell calls apart.

Clients of chat join the pieces of a call by its index, and some use the index as a position in a list. So the calls of
a choice are numbered from 0 as they begin. A call without an id, or with the id of another call, gets a new id. Only
the first piece of a call keeps an id, since some clients join the ids of all pieces. An empty piece that belongs to no
call is left out: clients would take it for a call without a name. Everything else stays as it came: clients join pieces
of names and arguments themselves.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_hexdigest

from warmroute_proxy.dialects.chat_answers import ToolCall, reason_of
from warmroute_proxy.dialects.chat_calls import CallPieces, has_none
from warmroute_proxy.dialects.work import MAX_CALLS

MAX_CHOICES: Final = 128  # OpenAI's bound of `n`
_calls: Final = msgspec.json.Decoder(list[ToolCall]).decode
_any: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, ValueError)


def made_ids(rid: str) -> str:
    """The prefix of new ids for calls. `rid`: the engine's request id, so that each answer has a different prefix."""
    return f"call_{xxh3_64_hexdigest(rid.encode())}"


class CallNumbers:
    """The calls of one choice. `made`: the prefix of new ids."""

    def __init__(self, made: str) -> None:
        self._pieces = CallPieces(made)
        self._ids: dict[int, str] = {}  # number of a call that has begun -> its id
        self._left_out = False  # whether an empty piece was left out, which may have had the type of a call

    def passes(self, raw: Raw) -> bool:
        """Whether all pieces continue calls under the right index.

        If so, later events that differ from this one only in their text may pass unread.
        """
        try:
            found = _calls(raw)
        except _UNREADABLE:
            return False
        for call in found:
            is_more = isinstance(call.index, int) and call.index in self._ids
            is_named = bool(call.id or call.called().name)
            if not is_more or is_named or self._pieces.gather_unread(call) != call.index:
                return False
        return True

    def put_right(self, raw: Raw) -> list[dict[str, Any]] | None:
        """The pieces with indexes and ids put right; None if nothing had to be changed. Raises: ValueError."""
        try:
            found = _calls(raw)
            given: list[dict[str, Any]] = _any(raw)
        except _UNREADABLE:
            return None
        if len(found) > MAX_CALLS:
            raise ValueError(f"it calls more than {MAX_CALLS} tools")
        changed = [self._right(call, piece) for call, piece in zip(found, given, strict=True)]
        return [piece for piece in given if piece] if any(changed) else None

    def _right(self, call: ToolCall, piece: dict[str, Any]) -> bool:
        """Correct one piece in place, or clear it if it is empty. Returns whether it was changed."""
        if not self._pieces.continues(call) and _is_empty(piece):
            piece.clear()
            self._left_out = True
            return True
        number = self._pieces.gather(call)
        wanted: dict[str, Any] = {"index": number}
        repeats_id = False
        if number not in self._ids:
            is_unique = call.id not in self._ids.values()
            wanted["id"] = self._ids[number] = call.id if call.id and is_unique else self._pieces.made_id(number)
            if self._left_out and call.function is not None and not piece.get("type"):
                wanted["type"] = "function"
        elif call.id:
            repeats_id = True
            del piece["id"]
        if not repeats_id and all(piece.get(name) == value for name, value in wanted.items()):
            return False
        piece.update(wanted)
        return True


def renumbered(payload: bytes, at: int, pieces: list[dict[str, Any]]) -> bytes:
    """The event of the chunk `payload`, with `pieces` as the tool calls of its choice number `at`."""
    chunk = _any(payload)
    chunk["choices"][at]["delta"]["tool_calls"] = pieces
    return b"data: %b\n\n" % _encode(chunk)


def with_ids(choices: bytes, rid: str) -> bytes | None:
    """The choices of a whole answer, with a unique id for each call; None if the ids are unique already."""
    made = made_ids(rid)
    try:
        found = _any(choices)
        missing = [each for each in found if _give_ids(each, made)]
    except (*_UNREADABLE, TypeError, AttributeError):
        return None
    return _encode(found) if missing else None


def _give_ids(choice: dict[str, Any], made: str) -> bool:
    """Give each call of a choice a unique id, and leave out empty calls, in place. Returns whether a call changed."""
    taken: set[str] = set()
    given = choice["message"].get("tool_calls") or []
    calls = [call for call in given if not _is_empty(call)]
    missing = len(calls) < len(given)
    if missing:
        choice["message"]["tool_calls"] = calls
    if missing and not calls:
        del choice["message"]["tool_calls"]
        choice["finish_reason"] = reason_of(choice.get("finish_reason"), calls=False, cut=False)
    for number, call in enumerate(calls):
        if not call.get("id") or call["id"] in taken:
            call["id"] = f"{made}_{number}"
            missing = True
        taken.add(call["id"])
    return missing


def _is_empty(call: dict[str, Any]) -> bool:
    """Whether a call, or a piece of one, has neither an id nor a name nor arguments, nor anything else of use."""
    function = call.get("function") or {}
    if any(call.get(name) or function.get(name) for name in ("id", "name", "custom", "extra_content")):
        return False
    return has_none(str(call.get("arguments") or function.get("arguments") or ""))
