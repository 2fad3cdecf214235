"""Mends chat messages that engines would refuse: parts of other APIs, and arguments that are not objects.

Chats go to engines byte for byte. The messages of a chat are rewritten only if one of them needs mending.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute.contract.steering import ENGINE_PARTS
from warmroute_proxy.dialects.content import data_text, foreign_image, given_image, text_of
from warmroute_proxy.dialects.foreign import UNTYPED, count, not_shown, texts_in
from warmroute_proxy.dialects.raw_json import (
    NOTHING,
    ChatPart,
    Members,
    encode,
    is_list,
    is_object,
    is_text,
    json_as_text,
    object_at,
    text_in,
)
from warmroute_proxy.dialects.tool_arguments import NO_OBJECT, object_text
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork

_TEXTS: Final = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_SILENT: Final = frozenset({"redacted_thinking", "reasoning", "tool_use", "tool-call", "server_tool_use"})
_MEDIA: Final = frozenset({"image", "input_image", "file", "input_file", "document", "video", "audio"})
_PROBLEMS: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def mended(raw: Raw, work: TranslationWork) -> tuple[bytes, dict[str, int]] | None:
    """The list of messages as engines take it, and how many parts of each type were dropped or changed; None if the
    list stays as it is. Raises: BadRequest, if a message is too malformed to mend.
    """
    try:
        messages = _decode_list(raw)
    except _PROBLEMS:
        return None
    work.take(1 + len(messages) // KNOWN_PER_STEP)
    mending = _Mending(work)
    found = [mending.message(each, f"messages[{at}]") for at, each in enumerate(messages)]
    return (b"[%b]" % b",".join([each for each in found if each]), mending.dropped) if mending.dropped else None


class _Mending:
    """Mends the messages of one chat. `dropped`: how many parts of each type were dropped or changed."""

    def __init__(self, work: TranslationWork) -> None:
        self.dropped: dict[str, int] = {}
        self._work = work

    def message(self, raw: Raw, path: str) -> bytes:
        """One message, mended if it needs it; empty if nothing is left of it."""
        message = object_at(raw, path) if is_object(raw) else {"content": raw} if is_text(raw) else {}
        given: dict[str, Any] = {}
        content, calls = message.get("content"), message.get("tool_calls")
        if not text_in(message, "role"):
            count(self.dropped, UNTYPED)
            if content is None:
                return b""
            given["role"] = "user"
        if content is not None and not is_text(content):
            changed = self._content(content, f"{path}.content")
            if changed is not None:
                given["content"] = changed
        if calls is not None:
            left = self._calls(calls)
            if left is not None:
                given["tool_calls"] = left or NOTHING
        return encode({**message, **given}) if given else bytes(raw)

    def _calls(self, raw: Raw) -> list[Any] | None:
        """The tool calls after mending; None if all stay as they are."""
        listed = _decode_list(raw) if is_list(raw) else [raw]
        self._work.take(len(listed))
        found: list[Any] = []
        is_changed = not is_list(raw)
        for each in listed:
            call = object_at(each, "") if is_object(each) else {}
            if not is_object(call.get("function", call.get("custom", NOTHING))):
                count(self.dropped, "tool_calls")
                is_changed = True
                continue
            made = self._call(call)
            found.append(each if made is None else made)
            is_changed = is_changed or made is not None
        return found if is_changed else None

    def _call(self, call: Members) -> Any:
        function = object_at(call["function"], "") if "function" in call else {}
        given = function.get("arguments")
        if given is None or not is_text(given):
            return None
        text = _decode_text(given)
        arguments = object_text(text)
        if arguments == text:
            return None
        count(self.dropped, NO_OBJECT)
        return {**call, "function": {**function, "arguments": arguments}}

    def _content(self, content: Raw, path: str) -> Raw | None:
        if not is_list(content):
            count(self.dropped, UNTYPED)
            return json_as_text(content)
        parts = _decode_list(content)
        self._work.take(len(parts))
        found: list[Any] = []
        is_changed = False
        for at, each in enumerate(parts):
            made = self._piece(each, f"{path}[{at}]")
            found += [each] if made is None else made
            is_changed = is_changed or made is not None
        return Raw(encode(found or "")) if is_changed else None

    def _piece(self, raw: Raw, path: str) -> list[ChatPart] | None:
        """A part in chat's terms; None if it stays as it is."""
        if is_text(raw):
            count(self.dropped, UNTYPED)
            return [{"type": "text", "text": raw}]
        piece = object_at(raw, path) if is_object(raw) else {}
        kind = text_in(piece, "type") if "type" in piece else "text" if "text" in piece else UNTYPED
        if kind in ENGINE_PARTS and _is_read(piece, kind):
            if "type" in piece:
                return None
            count(self.dropped, UNTYPED)
            return [text_of(text_in(piece, "text"))]
        if kind in _TEXTS:
            count(self.dropped, kind)
            return [text_of(text_in(piece, _TEXTS[kind]))]
        count(self.dropped, kind)
        url = piece.get("image_url")
        is_flat = url is not None and is_text(url)
        image = given_image(text_in(piece, "image_url"), f"{path}.image_url") if is_flat else foreign_image(piece)
        if image is not None:
            return [image]
        text = _file_text(piece, path)
        if text is None and (kind in _MEDIA or kind.endswith("_url")):
            text = not_shown(kind.removeprefix("input_").removesuffix("_url"))
        elif text is None and kind not in _SILENT:
            text = texts_in(piece, self._work)
        return [text_of(text)] if text else []


def _is_read(piece: Members, kind: str) -> bool:
    """Whether a part has the content that its type names, and each URL in it is a text."""
    text = piece.get("text")
    if (kind == "text" and (text is None or not is_text(text))) or (kind.endswith("_url") and kind not in piece):
        return False
    if kind == "image_url" and not is_object(piece[kind]):  # Mistral's shape
        return False
    return all(_is_address(value) for name, value in piece.items() if name.endswith("_url"))


def _is_address(raw: Raw) -> bool:
    held = object_at(raw, "").get("url", NOTHING) if is_object(raw) else raw
    return is_text(held)


def _file_text(piece: Members, path: str) -> str | None:
    """The text of the file in a part of another API; None if it has no text."""
    source, file = piece.get("source"), piece.get("file")
    held = object_at(source, path) if source is not None and is_object(source) else {}
    data = text_in(held, "data")
    inner = object_at(file, path) if file is not None and is_object(file) else piece
    given = text_in(inner, "file_data") or data
    return data if text_in(held, "type") == "text" else data_text(given) if given else None
