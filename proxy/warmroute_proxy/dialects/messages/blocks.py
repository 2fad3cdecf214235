"""Blocks of content: each becomes a piece of a chat message, a tool call, or a message of role `tool`.

A block that has no place in chat becomes its text, if it has one, and is counted by its type.
"""

from typing import Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.call_extras import call_of
from warmroute_proxy.dialects.content import content_of, data_image, data_text, image_at, is_given, text_of
from warmroute_proxy.dialects.foreign import UNTYPED, not_shown, texts_in
from warmroute_proxy.dialects.raw_json import (
    NOTHING,
    BadRequest,
    ChatPart,
    Members,
    Misshapen,
    encode,
    is_list,
    is_object,
    is_text,
    json_as_text,
    object_at,
    text_at,
    text_in,
)
from warmroute_proxy.dialects.tool_arguments import object_text
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

_OBJECT: Final = 0x7B
_EMPTY: Final = len(b'""')
_FAILED: Final = "The tool failed:"
_MARK: Final = "cache_control"
_NO_TEXT: Final = frozenset(
    {"thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback"}
)
"""What says nothing to a model where it cannot stand: thoughts of others, and calls."""

_AVAILABLE: Final = {
    "tool_reference": "Tool available: ",
    "tool_addition": "Tool available: ",
    "tool_removal": "Tool no longer available: ",
}
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode


class Blocks:
    """Reads the blocks of one message.

    `marks`: how many `cache_control` were on them. `dropped`: the types of those that are not as they came. `added`:
    definitions of tools that stand in them.
    """

    def __init__(self, texts: Texts, work: TranslationWork) -> None:
        self.marks = 0
        self.dropped: list[str] = []
        self.added: list[bytes] = []
        self._texts = texts
        self.work = work

    def listed(self, raw: Raw, path: str) -> list[tuple[Members, str]]:
        """The blocks of a content, each with its place. A text among them is a block, too, and so is other JSON."""
        found: list[tuple[Members, str]] = []
        if not is_list(raw):
            self.dropped.append(UNTYPED)
            return [({"text": json_as_text(raw)}, path)]
        for at, each in enumerate(self.work.take_list(raw, path)):
            where = f"{path}.{at}"
            if not is_object(each) and not is_text(each):
                self.dropped.append(UNTYPED)
                continue
            block: Members = {"text": each} if is_text(each) else object_at(each, where)
            if _MARK in block:
                self.marks += 1
            found.append((block, where))
        return found

    def parts(self, raw: Raw, path: str, role: str) -> list[ChatPart]:
        """Content that is a text or blocks. What the rules take out is left out, and what is empty."""
        if not is_given(raw):
            return []
        if is_text(raw):
            return self._cleaned(raw, role)
        found = []
        for block, where in self.listed(raw, path):
            found += self.piece(block, where, role)
        return found

    def piece(self, block: Members, path: str, role: str) -> list[ChatPart]:
        """A block as parts: none where nothing of it is left. Only users and tools show images."""
        kind = kind_of(block)
        try:
            found = self._known(block, kind, path, role)
        except Misshapen:
            found = None
        if found is not None:
            return found
        self.dropped.append(kind)
        if kind in ("image", "document"):
            return [text_of(_titled(block, not_shown(kind)))]
        return self._foreign(block, kind)

    def _known(self, block: Members, kind: str, path: str, role: str) -> list[ChatPart] | None:
        """A block that has a place in chat; None of any other. Raises: Misshapen."""
        if kind == "text":
            return self._text(block, path, role)
        if kind == "image" and role in ("user", "tool"):
            image = _image(block, path)
            return None if image is None else [image]
        text = self._document(block, path) if kind == "document" else None
        return None if text is None else [text_of(text)]

    def tool_message(self, block: Members, path: str, call_id: str) -> tuple[ChatPart, list[ChatPart]]:
        """A `tool_result` as a message, and its images, for which a message of this role has no place."""
        parts = self.result(block, path)
        images = [piece for piece in parts if piece["type"] != "text"]
        texts = [piece for piece in parts if piece["type"] == "text"]
        content = content_of(texts) if texts else ""
        return {"role": "tool", "tool_call_id": call_id, "content": content}, images

    def result(self, block: Members, path: str) -> list[ChatPart]:
        """What a `tool_result` says and shows."""
        content = block.get("content")
        parts = [] if content is None else self.parts(content, f"{path}.content", "tool")
        failed = bytes(block.get("is_error", b"false"))
        if failed not in (b"true", b"false"):
            self.dropped.append("is_error")
        return [text_of(_FAILED), *parts] if failed == b"true" else parts

    def _text(self, block: Members, path: str, role: str) -> list[ChatPart]:
        raw = block.get("text")
        if raw is None or not is_text(raw):
            raise Misshapen(f"{path}.text", "must be a text")
        return self._cleaned(raw, role)

    def _cleaned(self, raw: Raw, role: str) -> list[ChatPart]:
        text = self._texts.clean(raw, role)
        return [] if text is None or len(memoryview(text)) == _EMPTY else [{"type": "text", "text": text}]

    def _document(self, block: Members, path: str) -> str | None:
        """A document as its text, behind its title; None where it has none."""
        given = block.get("source")
        if given is None or not is_object(given):
            return texts_in(block, self.work) or None
        source, kind = _source(given, path)
        text: str | None = None
        if kind == "text":
            text = text_at(source, "data", f"{path}.source")
        elif kind == "content":
            text = texts_in(source, self.work)
        elif kind == "base64":
            text = data_text(text_in(source, "data"))
        return None if text is None else _titled(block, text)

    def _foreign(self, block: Members, kind: str) -> list[ChatPart]:
        self._take_definitions(block)
        if kind in _NO_TEXT:
            return []
        label = _AVAILABLE.get(kind)
        if label is not None:
            return [text_of(f"{label}{_tool_name(block)}")]
        text = texts_in(block, self.work)
        if kind == "tool_search_tool_result":
            found = object_of(block.get("content")).get("tool_references")
            names = [_tool_name(object_of(each)) for each in list_of(found)]
            return [text_of(f"{_AVAILABLE['tool_reference']}{name}") for name in names]
        return [text_of(text)] if text else []

    def _take_definitions(self, block: Members) -> None:
        """Keep the tools that a block defines: itself, or in the changes that it sums up."""
        changes = block.get("tool_changes")
        for change in [block] if changes is None else [object_of(each) for each in list_of(changes)]:
            definition = object_of(change.get("tool")).get("definition")
            if definition is not None:
                self.work.take(1)
                self.added.append(bytes(definition))


def kind_of(block: Members) -> str:
    """The type of a block; one without a type is a text, or nothing that is known."""
    if "type" in block:
        return text_in(block, "type") or UNTYPED
    return "text" if "text" in block else UNTYPED


def object_of(raw: Raw | None) -> Members:
    """The members of an object; none of anything else."""
    try:
        return {} if raw is None else _decode_members(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def list_of(raw: Raw | None) -> list[Raw]:
    """The elements of a list; none of anything else."""
    try:
        return [] if raw is None else _decode_list(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _tool_name(block: Members) -> str:
    tool = object_of(block.get("tool"))
    for members in (block, tool, object_of(tool.get("definition"))):
        for name in ("tool_name", "name", "mcp_server_name", "server_name"):
            found = text_in(members, name)
            if found:
                return found
    return ""


def _titled(block: Members, text: str) -> str:
    title = text_in(block, "title")
    return f"{title}\n{text}" if title else text


def _source(raw: Raw, path: str) -> tuple[Members, str]:
    source = object_at(raw, f"{path}.source")
    return source, text_at(source, "type", f"{path}.source")


def _image(block: Members, path: str) -> ChatPart | None:
    source, kind = _source(block.get("source", NOTHING), path)
    if kind == "url":
        return image_at(text_at(source, "url", f"{path}.source"))
    if kind != "base64":
        return None
    return data_image(text_at(source, "media_type", f"{path}.source"), text_at(source, "data", f"{path}.source"))


def tool_call(block: Members, call_id: str, name: str, path: str) -> tuple[ChatPart, bool]:
    """A `tool_use` as a call, its input as it came, and whether that is an object; any other input becomes one."""
    given = block.get("input")
    is_object = True
    if given is None:
        arguments = "{}"
    elif memoryview(given)[0] == _OBJECT:
        try:
            arguments = str(given, "utf-8")
        except UnicodeDecodeError:
            raise BadRequest(f"{path}.input", "is not UTF-8") from None
    else:
        text = text_in({"": given}, "") if is_text(given) else ""
        arguments = object_text(text) if is_text(given) else encode({"arguments": given}).decode()
        is_object = arguments == text
    return call_of(call_id, name, arguments), is_object
