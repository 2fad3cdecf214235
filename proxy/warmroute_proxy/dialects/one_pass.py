"""A body whose members are known and whose conversation is a list: parsed in one pass, the list into its elements."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import Members, object_at

_NULL: Final = 0x6E


class BodyReader:
    """Reads the bodies of one API."""

    def __init__(self, conversation: str, names: Iterable[str]) -> None:
        """`conversation`: the member with the list; `names`: of all members that its clients send."""
        self._conversation = conversation
        self._names = tuple(sorted(set(names) - {conversation}))
        fields: list[Any] = [(conversation, list[Raw]), *((name, Raw, Raw()) for name in self._names)]
        body: Any = msgspec.defstruct("_Body", fields, forbid_unknown_fields=True)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(body).decode

    def read(self, raw: bytes) -> tuple[Members, list[Raw] | None]:
        """The members, those that are null left out, and the elements of the list. Raises: BadRequest.

        A body with other members, or whose conversation is no list, is read member by member: then the list is None,
        and what there is of it is a member.
        """
        try:
            body = self._decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return object_at(raw, ""), None
        elements: list[Raw] = getattr(body, self._conversation)
        return given_members(body, self._names), elements


def given_members(body: object, names: Iterable[str]) -> Members:
    """The members of these names that are raw values, those that are null or absent left out."""
    members = {}
    for name in names:
        value = getattr(body, name)
        if value and memoryview(value)[0] != _NULL:
            members[name] = value
    return members
