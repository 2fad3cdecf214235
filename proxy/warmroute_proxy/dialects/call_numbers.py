"""The calls of a chat stream as chat's own clients tell them apart: by index, with an id for each.

Clients of chat put the pieces of a call together by its index, and some take it for a place in a list. So the calls of
a choice are numbered from 0 as they begin, and a call whose id is missing, or is that of another call, gets another id.
All else stays as it came: names in pieces and arguments in pieces are put together by clients.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_hexdigest

from warmroute_proxy.dialects.chat_answers import ToolCall
from warmroute_proxy.dialects.chat_calls import CallPieces
from warmroute_proxy.dialects.work import MAX_CALLS

MAX_CHOICES: Final = 128  # OpenAI's bound of `n`
_calls: Final = msgspec.json.Decoder(list[ToolCall]).decode
_any: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, ValueError)


def made_ids(rid: str) -> str:
    """How the ids of calls begin that an engine has given none: other ones for each answer."""
    return f"call_{xxh3_64_hexdigest(rid.encode())}"


class CallNumbers:
    """The calls of one choice. `made`: how the ids of calls begin that have none."""

    def __init__(self, made: str) -> None:
        self._pieces = CallPieces(made)
        self._begun = 0  # calls
        self._ids: set[str] = set()

    def passes(self, raw: Raw) -> bool:
        """Whether pieces go on with calls under their index, so that they and all alike may pass unread."""
        try:
            found = _calls(raw)
        except _UNREADABLE:
            return False
        for call in found:
            is_more = isinstance(call.index, int) and 0 <= call.index < self._begun
            is_named = bool(call.id or call.called().name)
            if not is_more or is_named or self._pieces.gather_unread(call) != call.index:
                return False
        return True

    def put_right(self, raw: Raw) -> list[dict[str, Any]] | None:
        """The pieces with the indexes and ids that they should have; None if they have them."""
        try:
            found = _calls(raw)
            given: list[dict[str, Any]] = _any(raw)
        except _UNREADABLE:
            return None
        if len(found) > MAX_CALLS:
            raise ValueError(f"it calls more than {MAX_CALLS} tools")
        changed = [self._right(call, piece) for call, piece in zip(found, given, strict=True)]
        return given if any(changed) else None

    def _right(self, call: ToolCall, piece: dict[str, Any]) -> bool:
        """Put one piece right. Returns whether it was changed."""
        number = self._pieces.gather(call)
        begins = number == self._begun
        wanted: dict[str, Any] = {"index": number}
        if begins and (not call.id or call.id in self._ids):
            wanted["id"] = self._pieces.made_id(number)
        if begins:
            self._begun += 1
            self._ids.add(wanted.get("id") or call.id or "")
        if all(piece.get(name) == value for name, value in wanted.items()):
            return False
        piece.update(wanted)
        return True


def renumbered(payload: bytes, at: int, pieces: list[dict[str, Any]]) -> bytes:
    """A chunk with other pieces of calls in its choice `at`."""
    chunk = _any(payload)
    chunk["choices"][at]["delta"]["tool_calls"] = pieces
    return b"data: %b\n\n" % _encode(chunk)


def with_ids(choices: bytes, rid: str) -> bytes | None:
    """The choices of a whole answer in which each call has an id of its own; None if each has."""
    made = made_ids(rid)
    try:
        found = _any(choices)
        missing = [each for each in found if _give_ids(each, made)]
    except (*_UNREADABLE, TypeError, AttributeError):
        return None
    return _encode(found) if missing else None


def _give_ids(choice: dict[str, Any], made: str) -> bool:
    """Whether a choice had calls without ids of their own, which they have now."""
    taken: set[str] = set()
    missing = False
    for number, call in enumerate(choice["message"].get("tool_calls") or ()):
        if not call.get("id") or call["id"] in taken:
            call["id"] = f"{made}_{number}"
            missing = True
        taken.add(call["id"])
    return missing
