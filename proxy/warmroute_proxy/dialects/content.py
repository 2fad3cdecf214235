"""What contents of several dialects have in common: one text is a plain text, and images are checked."""

from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, ChatPart
from warmroute_proxy.normalising.texts import Texts

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NULL: Final = 0x6E
_WINDOW_CHARS: Final = 1_048_576


def content_of(pieces: list[ChatPart]) -> Any:
    """The content of a chat message: one text is a plain text, so that it is the same with and without a part."""
    if len(pieces) == 1 and pieces[0]["type"] == "text":
        return pieces[0]["text"]
    return pieces


def assistant_message(texts: list[ChatPart], thought: str, calls: list[Any]) -> ChatPart:
    """A message of the model: what it has thought, if that is given, its texts, and the calls that it made."""
    message: ChatPart = {"role": "assistant"}
    if thought:
        message["reasoning_content"] = thought
    message["content"] = content_of(texts) if texts else None if calls else ""
    if calls:
        message["tool_calls"] = calls
    return message


def cleaned(pieces: list[ChatPart], role: str, texts: Texts) -> list[ChatPart]:
    """The pieces of a message without what the rules take out of its texts."""
    found = []
    for piece in pieces:
        if piece["type"] == "text":
            text = texts.clean(piece["text"], role)
            if text is None:
                continue
            piece["text"] = text
        found.append(piece)
    return found


def is_given(raw: Raw) -> bool:
    """Whether a member is there, and not null."""
    return bool(raw) and memoryview(raw)[0] != _NULL


def is_base64(data: str) -> bool:
    """Whether a text is base64, with padding. It is looked at window by window, and not copied whole."""
    if not data or len(data) % 4:
        return False
    end = len(data) - (2 if data.endswith("==") else 1 if data.endswith("=") else 0)
    for at in range(0, end, _WINDOW_CHARS):
        window = data[at : min(at + _WINDOW_CHARS, end)]
        if not window.isascii() or window.encode().translate(None, _ALPHABET):
            return False
    return True


def is_address(url: str) -> bool:
    """Whether something may be fetched at it."""
    return url[:8].lower().startswith(("https://", "http://"))


def check_image(url: str, path: str) -> None:
    """Raises: BadRequest, where an image is neither at an address nor base64. Which addresses may be is decided for all
    APIs by that of chat.
    """
    if is_address(url):
        return
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:image/") or not is_base64(data):
        raise BadRequest(path, "must be an address or data:image/...;base64,...")


def misread(error: Exception, path: str) -> BadRequest:
    """What is wrong in a list or an object at `path`, and where: msgspec says `... - at `$[3].role``."""
    if not isinstance(error, msgspec.ValidationError):
        return BadRequest(path, "is not valid JSON")
    problem, _, inside = str(error).partition(" - at `$")
    return BadRequest(f"{path}{inside.rstrip('`')}", problem)
