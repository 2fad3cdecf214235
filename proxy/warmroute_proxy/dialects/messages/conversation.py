"""The system prompt and the messages of a request, each translated by itself."""

from collections.abc import Iterator
from typing import Final

from msgspec import Raw

from warmroute_proxy.dialects.messages.blocks import Blocks, content_of, tool_call
from warmroute_proxy.dialects.messages.signatures import is_signed
from warmroute_proxy.dialects.raw_json import (
    MAX_SHOWN_CHARS,
    BadRequest,
    ChatPart,
    Members,
    is_text,
    kind_of,
    list_at,
    object_at,
    text_at,
)

_MANY: Final = frozenset({"text", "image", "document"})


class MessageReader:
    """The messages of one request. `dropped`: how many blocks of a type were."""

    def __init__(self, blocks: Blocks, key: bytes) -> None:
        """`key`: that of signatures."""
        self.dropped: dict[str, int] = {}
        self._blocks = blocks
        self._key = key
        self._calls: set[str] = set()

    def system(self, members: Members) -> list[ChatPart]:
        """The system prompt, as one message or none."""
        raw = members.get("system")
        return [] if raw is None else self._of_system(raw, "system")

    def messages(self, members: Members, *, counts_only: bool) -> list[ChatPart]:
        """All of a request's messages."""
        if "messages" not in members:
            raise BadRequest("messages", "is required")
        raws = list_at(members["messages"], "messages")
        if not raws:
            raise BadRequest("messages", "at least one message is required")
        out: list[ChatPart] = []
        for at, raw in enumerate(raws):
            out += self._message(object_at(raw, f"messages.{at}"), f"messages.{at}")
        if not out:
            raise BadRequest("messages", "no message has any text but one that the model's rules take out")
        if out[-1]["role"] == "assistant" and not counts_only:
            raise BadRequest(f"messages.{len(raws) - 1}.role", "the last message must not be the assistant's")
        return out

    def _message(self, message: Members, path: str) -> list[ChatPart]:
        role = text_at(message, "role", path)
        raw = message.get("content")
        where = f"{path}.content"
        if raw is None:
            raise BadRequest(where, "is required")
        if bytes(memoryview(raw)[:3]) in (b'""', b"[]"):
            raise BadRequest(where, "is empty")
        if role == "system":
            return self._of_system(raw, where)
        if role == "assistant":
            return [{"role": role, "content": raw}] if is_text(raw) else [self._of_assistant(self._opened(raw, where))]
        if role != "user":
            raise BadRequest(f"{path}.role", "must be user, assistant or system")
        if is_text(raw):
            parts = self._blocks.parts(raw, where, role)
            return [{"role": role, "content": content_of(parts)}] if parts else []
        return list(self._of_user(self._opened(raw, where)))

    def _opened(self, raw: Raw, path: str) -> list[tuple[Members, str]]:
        """The blocks of a message, each with its place."""
        found = [(each, f"{path}.{at}") for at, each in enumerate(list_at(raw, path))]
        return [(self._blocks.block(each, where), where) for each, where in found]

    def _of_system(self, raw: Raw, path: str) -> list[ChatPart]:
        parts = self._blocks.parts(raw, path, "system")
        _only_texts(parts, path)
        return [{"role": "system", "content": content_of(parts)}] if parts else []

    def _of_user(self, blocks: list[tuple[Members, str]]) -> Iterator[ChatPart]:
        """Results of tools first, then what the user says."""
        parts: list[ChatPart] = []
        for block, path in blocks:
            if kind_of(block, path) == "tool_result":
                message, images = self._blocks.tool_message(block, path)
                if message["tool_call_id"] not in self._calls:
                    raise BadRequest(f"{path}.tool_use_id", "no tool_use before it has this id")
                yield message
                parts += images
            elif (piece := self._blocks.piece(block, path, "user")) is not None:
                parts.append(piece)
        if parts:
            yield {"role": "user", "content": content_of(parts)}

    def _of_assistant(self, blocks: list[tuple[Members, str]]) -> ChatPart:
        texts: list[ChatPart] = []
        calls: list[ChatPart] = []
        thoughts: list[str] = []
        for block, path in blocks:
            kind = kind_of(block, path)
            if kind == "tool_use":
                call = tool_call(block, path)
                self._calls.add(call["id"])
                calls.append(call)
            elif kind == "thinking":
                thoughts += self._thought(block, path)
            elif kind == "redacted_thinking":
                self._drop(kind)
            elif kind not in _MANY:
                raise BadRequest(f"{path}.type", f"{kind[:MAX_SHOWN_CHARS]!r} is no block of an assistant's message")
            elif (piece := self._blocks.piece(block, path, "assistant")) is not None:
                texts.append(piece)
        _only_texts(texts, blocks[0][1])
        message: ChatPart = {"role": "assistant"}
        thought = "".join(thoughts)
        if thought:
            message["reasoning_content"] = thought
        message["content"] = content_of(texts) if texts else None if calls else ""
        if calls:
            message["tool_calls"] = calls
        return message

    def _thought(self, block: Members, path: str) -> list[str]:
        """The text of a thinking block that has our signature; no other is kept."""
        text, raw = text_at(block, "thinking", path), block.get("signature")
        if raw is not None and is_text(raw) and is_signed(self._key, text, text_at(block, "signature", path)):
            return [text]
        self._drop("thinking")
        return []

    def _drop(self, kind: str) -> None:
        self.dropped[kind] = self.dropped.get(kind, 0) + 1


def _only_texts(parts: list[ChatPart], path: str) -> None:
    if any(piece["type"] != "text" for piece in parts):
        raise BadRequest(path, "must be a text or text blocks")
