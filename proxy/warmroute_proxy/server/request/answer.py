"""A whole answer of an engine: what it reports of tokens, and itself with the settled usage in place of the engine's.

The answer is decoded once into raw members, and written again from them. A name that is given twice would be lost on
the way, so an answer that does not keep its length when it is written again is searched for one, member by member. Only
spaces and escapes in names make that necessary in a sound answer, and engines write neither.

What has another type than in OpenAI's own answers is dropped (`dialects/openai_answers.py`).
"""

from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs
from warmroute_proxy.dialects.generated_texts import generated_bytes
from warmroute_proxy.dialects.openai_answers import CHECKED, drop_other_types
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.sse import ended_in_tools
from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.intake.body import Body

_OWN: Final = ("usage",)
_OWN_ACCOUNTS: Final = ("usage", "sglext")
_EMPTY: Final = msgspec.Raw(b"")


_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class AnswerBound(NamedTuple):
    """What an answer that is gathered may take."""

    max_bytes: int
    memory: BodyReservation | None


def _members(raw: bytes) -> dict[str, Any]:
    """The members of an answer. Half of a surrogate pair, which some models write, is no fault of all the rest."""
    try:
        return _decode(raw)
    except msgspec.DecodeError:
        if not has_surrogate(raw):
            raise
    return _decode(whole_pairs(raw))


class Answer:
    """One answer. `usage` and `sglext` are JSON, empty where the engine wrote none."""

    __slots__ = ("_members", "sglext", "usage")

    def __init__(self, raw: bytes) -> None:
        """Read an answer. Raises: Refusal, if it is not one JSON object with distinct names."""
        try:
            members = _members(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise Refusal(400, "the answer is not a JSON object", code="invalid_json") from None
        self._members = members
        if len(_encode(members)) != len(raw):
            Body(raw if not has_surrogate(raw) else whole_pairs(raw))
        self.usage = bytes(members.get("usage", _EMPTY))
        self.sglext = bytes(members.get("sglext", _EMPTY))

    @property
    def called_tools(self) -> bool:
        """Whether the model has called tools."""
        return ended_in_tools(bytes(self._members.get("choices", b"")))

    def text_bytes(self) -> int:
        """How long the generated texts are together: what there is to go by where the engine has counted no tokens."""
        return generated_bytes(self._members.get("choices", b"[]"))

    def choices(self) -> bytes:
        """The answer with its choices alone."""
        return b'{"choices":%b}' % bytes(self._members.get("choices", b"[]"))

    def settled(self, usage: bytes | msgspec.Raw, *, keep_sglext: bool) -> bytes:
        """The answer with `usage` as its last member, and without the engine's `usage` and, unless kept, `sglext`."""
        members: dict[str, Any] = self._members
        if not CHECKED.isdisjoint(members):
            drop_other_types(members)
        for name in _OWN if keep_sglext else _OWN_ACCOUNTS:
            members.pop(name, None)
        members["usage"] = usage if type(usage) is msgspec.Raw else msgspec.Raw(usage)
        return _encode(members)
