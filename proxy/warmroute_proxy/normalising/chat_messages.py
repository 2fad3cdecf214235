"""Applies the normalising rules to the messages of a chat completion."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.normalising.rules import LATE_SYSTEM, reminded
from warmroute_proxy.normalising.texts import Texts

_QUOTE: Final = 0x22
_SYSTEM: Final = frozenset({"system", "developer"})
_USER: Final = Raw(b'"user"')
_decode_text: Final = msgspec.json.Decoder(str).decode
_PROBLEMS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_messages: Final = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_parts: Final = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode: Final = msgspec.json.Encoder().encode


def _take_any(_number: int) -> None:
    """Let any number pass."""


Take = Callable[[int], None]
"""Called with the number of messages or parts before they are cleaned; may raise."""


def cleaned(raw: Raw, texts: Texts, take: Take = _take_any) -> bytes | None:
    """The cleaned list of messages, as JSON; None if no rule changed it. A message with nothing left is dropped."""
    try:
        messages = _decode_messages(raw)
    except _PROBLEMS:
        return None  # a later parser says what is wrong
    take(len(messages))
    found: list[dict[str, Raw]] = []
    may_be_late = LATE_SYSTEM in texts.on
    for message in messages:
        role = bytes(message.get("role", b""))[1:-1].decode("utf-8", "replace")
        content = message.get("content")
        if content is not None and role in ("system", "user", "developer"):
            left = _content(content, "system" if role == "developer" else role, texts, take)
            if left is None:
                continue
            if left is not content:
                message["content"] = left
        is_late = may_be_late and found and role in _SYSTEM
        found.append(_reminder(message, texts) if is_late else message)
    return _encode(found) if texts.applied else None


def _reminder(message: dict[str, Raw], texts: Texts) -> dict[str, Raw]:
    content = message.get("content", Raw(b'""'))
    try:
        if memoryview(content)[0] == _QUOTE:
            text = _decode_text(content)
        else:
            text = "\n".join([_decode_text(piece["text"]) for piece in _decode_parts(content) if "text" in piece])
    except _PROBLEMS:
        return message  # a later parser says what is wrong
    texts.applied.add(LATE_SYSTEM)
    return {**message, "role": _USER, "content": Raw(_encode(reminded(text)))}


def _content(content: Raw, role: str, texts: Texts, take: Take) -> Raw | None:
    if memoryview(content)[0] == _QUOTE:
        return texts.clean(content, role)
    try:
        parts = _decode_parts(content)
    except _PROBLEMS:
        return content
    take(len(parts))
    found: list[Any] = []
    changed = False
    for each in parts:
        text = each.get("text")
        left = None if text is None else texts.clean(text, role)
        if text is not None and left is not text:
            changed = True
            if left is None:
                continue
            each["text"] = left
        found.append(each)
    if not changed:
        return content
    return Raw(_encode(found)) if found else None
