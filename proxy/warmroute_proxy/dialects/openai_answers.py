"""Drops members of whole answers that have another type than OpenAI's.

Clients read answers with the classes of OpenAI's libraries. These classes let unknown members pass, and refuse a known
member of another type: with an error in pydantic-ai, or with a warning at `model_dump()`. So such a member is dropped,
and all others pass. For example, SGLang's chats have the list `metadata.weight_versions`, but OpenAI's `metadata` holds
only texts.

Members that an answer must have (`id`, `choices`, ...) are not checked. Chunks of streams pass unread: the members of
SGLang's chunks have OpenAI's types.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

CHECKED: Final = frozenset({"metadata", "system_fingerprint", "service_tier"})
"""The members that `drop_other_types` looks at."""

CHAT: Final = Raw(b'"chat.completion"')

_QUOTE: Final = 0x22
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_FINGERPRINT: Final = msgspec.json.Decoder(str | None)
_TIER: Final = msgspec.json.Decoder(Literal["auto", "default", "flex", "scale", "priority", "fast"] | None)


def drop_other_types(members: dict[str, Any]) -> None:
    """Drop the members whose types differ from OpenAI's. `members`: the raw JSON of each member, by name."""
    if "system_fingerprint" in members:
        _drop_unless(_FINGERPRINT, members, "system_fingerprint")
    if members.get("object") != CHAT:
        return
    if "metadata" in members:
        _keep_texts(members)
    if "service_tier" in members:
        _drop_unless(_TIER, members, "service_tier")


def _keep_texts(members: dict[str, Any]) -> None:
    try:
        metadata = _MEMBERS.decode(members["metadata"])
    except msgspec.ValidationError:
        if members["metadata"] != b"null":
            del members["metadata"]
        return
    texts = {name: value for name, value in metadata.items() if memoryview(value)[0] == _QUOTE}
    if texts or not metadata:
        members["metadata"] = texts
    else:
        del members["metadata"]


def _drop_unless(decoder: "msgspec.json.Decoder[Any]", members: dict[str, Any], name: str) -> None:
    try:
        decoder.decode(members[name])
    except msgspec.DecodeError:
        del members[name]
