"""Blocks of content: each becomes a piece of a chat message, a tool call, or a message of role `tool`."""

from typing import Final

from msgspec import Raw

from warmroute_proxy.dialects.content import content_of, is_base64
from warmroute_proxy.dialects.raw_json import (
    MAX_SHOWN_CHARS,
    BadRequest,
    ChatPart,
    Members,
    is_text,
    kind_of,
    object_at,
    text_at,
)
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

MEDIA_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")

_OBJECT: Final = 0x7B
_FAILED: Final = "The tool failed:"
_MARK: Final = "cache_control"


class Blocks:
    """Reads the blocks of one request. `marks`: how many `cache_control` were on them."""

    def __init__(self, texts: Texts, work: TranslationWork) -> None:
        self.marks = 0
        self._texts = texts
        self.work = work

    def block(self, raw: Raw, path: str) -> Members:
        """The members of a block."""
        found = object_at(raw, path)
        if _MARK in found:
            self.marks += 1
        return found

    def parts(self, raw: Raw, path: str, role: str) -> list[ChatPart]:
        """Content that is a text or blocks of text, images and documents. What the rules take out is left out."""
        if is_text(raw):
            text = self._texts.clean(raw, role)
            return [] if text is None else [{"type": "text", "text": text}]
        found = []
        for at, each in enumerate(self.work.take_list(raw, path)):
            where = f"{path}.{at}"
            piece = self.piece(self.block(each, where), where, role)
            if piece is not None:
                found.append(piece)
        return found

    def piece(self, block: Members, path: str, role: str) -> ChatPart | None:
        """A block of text, an image or a document; None where the rules leave nothing of it."""
        kind = kind_of(block, path)
        if kind == "text":
            return self._text(block, path, role)
        if kind == "image":
            return _image(block, path)
        if kind == "document":
            return _document(block, path)
        shown = kind[:MAX_SHOWN_CHARS]
        raise BadRequest(f"{path}.type", f"{shown!r} is no block that is served here: text, image, document")

    def tool_message(self, block: Members, path: str) -> tuple[ChatPart, list[ChatPart]]:
        """A `tool_result` as a message, and its images, for which a message of this role has no place."""
        content = block.get("content")
        parts = [] if content is None else self.parts(content, f"{path}.content", "tool")
        images = [piece for piece in parts if piece["type"] != "text"]
        texts = [piece for piece in parts if piece["type"] == "text"]
        failed = block.get("is_error")
        if failed is not None and bytes(failed) not in (b"true", b"false"):
            raise BadRequest(f"{path}.is_error", "must be true or false")
        if failed is not None and bytes(failed) == b"true":
            texts.insert(0, {"type": "text", "text": _FAILED})
        text = content_of(texts) if texts else ""
        return {"role": "tool", "tool_call_id": text_at(block, "tool_use_id", path), "content": text}, images

    def _text(self, block: Members, path: str, role: str) -> ChatPart | None:
        raw = block.get("text")
        if raw is None or not is_text(raw):
            raise BadRequest(f"{path}.text", "must be a text")
        text = self._texts.clean(raw, role)
        return None if text is None else {"type": "text", "text": text}


def _source(block: Members, path: str) -> tuple[Members, str]:
    raw = block.get("source")
    if raw is None:
        raise BadRequest(f"{path}.source", "is required")
    source = object_at(raw, f"{path}.source")
    return source, kind_of(source, f"{path}.source")


def _image(block: Members, path: str) -> ChatPart:
    source, kind = _source(block, path)
    path = f"{path}.source"
    if kind == "url":
        return {"type": "image_url", "image_url": {"url": text_at(source, "url", path)}}
    if kind != "base64":
        raise BadRequest(f"{path}.type", "must be base64 or url")
    media_type, data = text_at(source, "media_type", path), text_at(source, "data", path)
    if media_type not in MEDIA_TYPES:
        raise BadRequest(f"{path}.media_type", f"must be one of {', '.join(MEDIA_TYPES)}")
    if not is_base64(data):
        raise BadRequest(f"{path}.data", "is not base64")
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}


def _document(block: Members, path: str) -> ChatPart:
    source, kind = _source(block, path)
    if kind != "text":
        raise BadRequest(f"{path}.source.type", "must be text: PDF and other documents are not served here, send text")
    text = text_at(source, "data", f"{path}.source")
    title = block.get("title")
    return {"type": "text", "text": f"{text_at(block, 'title', path)}\n{text}" if title is not None else text}


def tool_call(block: Members, path: str) -> ChatPart:
    """A `tool_use` as a call, its input as it came."""
    given = block.get("input")
    if given is None or memoryview(given)[0] != _OBJECT:
        raise BadRequest(f"{path}.input", "must be an object")
    try:
        arguments = str(given, "utf-8")
    except UnicodeDecodeError:
        raise BadRequest(f"{path}.input", "is not UTF-8") from None
    function = {"name": text_at(block, "name", path), "arguments": arguments}
    return {"id": text_at(block, "id", path), "type": "function", "function": function}
