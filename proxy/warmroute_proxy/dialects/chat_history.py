"""What engines would refuse in the messages of a chat: parts of other APIs, and arguments that are no object.

Chats go to engines byte for byte. Only where a message has something of this kind, its messages are written anew.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute.contract.steering import ENGINE_PARTS
from warmroute_proxy.dialects.content import data_image, data_text, given_image, is_given, text_of
from warmroute_proxy.dialects.foreign import UNTYPED, count, not_shown, texts_in
from warmroute_proxy.dialects.raw_json import ChatPart, Members, encode, is_list, is_text, object_at, text_in
from warmroute_proxy.dialects.tool_arguments import NO_OBJECT, object_text
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork

_TEXTS: Final = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_SILENT: Final = frozenset({"redacted_thinking", "reasoning", "tool_use", "tool-call", "server_tool_use"})
_MEDIA: Final = frozenset({"image", "input_image", "file", "input_file", "document", "video", "audio"})
_OBJECT: Final = 0x7B
_PROBLEMS: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def mended(raw: Raw, work: TranslationWork) -> tuple[bytes, dict[str, int]] | None:
    """The list of messages as engines take it, and how much of a type was dropped or changed; None where it stays as
    it is. Raises: BadRequest, as whoever reads it next would.
    """
    try:
        messages = _decode_list(raw)
    except _PROBLEMS:
        return None
    work.take(1 + len(messages) // KNOWN_PER_STEP)
    mending = _Mending(work)
    found = [mending.message(each, f"messages[{at}]") for at, each in enumerate(messages)]
    return (b"[%b]" % b",".join(found), mending.dropped) if mending.dropped else None


class _Mending:
    """Mends the messages of one chat. `dropped`: how much of a type was dropped or changed."""

    def __init__(self, work: TranslationWork) -> None:
        self.dropped: dict[str, int] = {}
        self._work = work

    def message(self, raw: Raw, path: str) -> bytes:
        """One message, as it came where nothing is to be done."""
        message = object_at(raw, path)
        given: dict[str, Raw] = {}
        content, calls = message.get("content"), message.get("tool_calls")
        if content is not None and not is_text(content):
            changed = self._content(content, f"{path}.content")
            if changed is not None:
                given["content"] = changed
        if calls is not None and is_list(calls):
            changed = self._each(calls, self._call)
            if changed is not None:
                given["tool_calls"] = changed
        return encode({**message, **given}) if given else bytes(raw)

    def _each(self, raw: Raw, mend: Callable[[Members], Any]) -> Raw | None:
        """A list with its objects mended; None where none of them is."""
        try:
            found: list[Any] = _decode_list(raw)
        except _PROBLEMS:
            return None
        self._work.take(len(found))
        is_changed = False
        for at, each in enumerate(found):
            made = None if is_text(each) else mend(object_at(each, ""))
            if made is not None:
                found[at], is_changed = made, True
        return Raw(encode(found)) if is_changed else None

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
            if memoryview(content)[0] != _OBJECT:
                return None  # whoever reads it next says what is wrong
            count(self.dropped, UNTYPED)
            return Raw(encode(bytes(content).decode("utf-8", "replace")))
        try:
            parts = _decode_list(content)
        except _PROBLEMS:
            return None
        self._work.take(len(parts))
        found: list[Any] = []
        is_changed = False
        for at, each in enumerate(parts):
            made = self._piece(each, f"{path}[{at}]")
            found += [each] if made is None else made
            is_changed = is_changed or made is not None
        return Raw(encode(found or "")) if is_changed else None

    def _piece(self, raw: Raw, path: str) -> list[ChatPart] | None:
        """A part in chat's terms; None where it stays."""
        if is_text(raw):
            count(self.dropped, UNTYPED)
            return [{"type": "text", "text": raw}]
        piece = object_at(raw, path)
        kind = text_in(piece, "type") if "type" in piece else "text" if "text" in piece else UNTYPED
        if kind in ENGINE_PARTS:
            return None
        if kind in _TEXTS:
            count(self.dropped, kind)
            return [text_of(text_in(piece, _TEXTS[kind]))]
        image, text = _shown(piece, path)
        if image is not None:
            count(self.dropped, kind)
            return [image]
        count(self.dropped, kind)
        if text is None and kind in _MEDIA:
            text = not_shown(kind.removeprefix("input_"))
        elif text is None and kind not in _SILENT:
            text = texts_in(piece, self._work)
        return [text_of(text)] if text else []


def _shown(piece: Members, path: str) -> tuple[ChatPart | None, str | None]:
    """The image, or the text of the file, that a part of another API has."""
    url, source, file = piece.get("image_url"), piece.get("source"), piece.get("file")
    if url is not None and is_text(url):
        return given_image(_decode_text(url), f"{path}.image_url"), None
    held = object_at(source, path) if source is not None and is_given(source) and not is_text(source) else {}
    data = text_in(held, "data")
    image = data_image(text_in(held, "media_type"), data)
    if image is not None or text_in(held, "type") == "url":
        return image or given_image(text_in(held, "url"), path), None
    inner = object_at(file, path) if file is not None and not is_text(file) else piece
    given = text_in(inner, "file_data") or data
    return None, data if text_in(held, "type") == "text" else data_text(given) if given else None
