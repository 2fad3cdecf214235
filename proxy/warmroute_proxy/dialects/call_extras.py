"""Extra content of a tool call that an engine wants back: it travels to the client and back inside the call's id.

Behind a chat API, Gemini gives each call a thought signature (`extra_content`), and refuses a history whose calls lack
their signatures. Of all APIs here, only chat has a member for extra content. But clients of every API send the id of a
call back unchanged, with the call and with its result.
"""

import base64
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import ChatPart, is_object

MAX_EXTRA_CHARS: Final = 16_384
"""The longest extra content, as encoded in the id. Gemini's signatures have hundreds to a few thousand characters."""

_MARK: Final = "-xc-"
_check: Final = msgspec.json.Decoder(dict[str, Any]).decode


def carrying(call_id: str, extra: Raw) -> str:
    """The id with `extra` encoded in it; the bare id if `extra` is empty, not an object, or too long."""
    if not extra or not is_object(extra):
        return call_id
    carried = base64.urlsafe_b64encode(extra).decode().rstrip("=")
    return call_id if len(carried) > MAX_EXTRA_CHARS else f"{call_id}{_MARK}{carried}"


def parted(call_id: str) -> tuple[str, Raw | None]:
    """Split a client's id of a call into the engine's id and the extra content; None if the id carries none."""
    bare, mark, carried = call_id.rpartition(_MARK)
    if not mark or len(carried) > MAX_EXTRA_CHARS:
        return call_id, None
    try:
        extra = base64.b64decode(carried + "=" * (-len(carried) % 4), b"-_", validate=True)
        _check(extra)
    except (ValueError, RecursionError):  # not valid base64, UTF-8 or JSON
        return call_id, None
    return bare, Raw(extra)


def call_of(call_id: str, name: str, arguments: str) -> ChatPart:
    """A call in chat's terms. `call_id`: the id that the client has, which may carry extra content."""
    bare, extra = parted(call_id)
    call: ChatPart = {"id": bare, "type": "function", "function": {"name": name, "arguments": arguments}}
    return call if extra is None else {**call, "extra_content": extra}
