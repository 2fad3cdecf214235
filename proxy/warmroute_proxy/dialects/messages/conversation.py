"""The system prompt and the messages of a request, each translated by itself."""

from collections import Counter
from typing import Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.content import assistant_message, content_of
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.messages.blocks import Blocks, tool_call
from warmroute_proxy.dialects.messages.signatures import is_signed
from warmroute_proxy.dialects.raw_json import (
    MAX_SHOWN_CHARS,
    BadRequest,
    ChatPart,
    Members,
    encode,
    in_list,
    is_text,
    kind_of,
    object_at,
    text_at,
)
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.texts import Texts

_MANY: Final = frozenset({"text", "image", "document"})


class InChat(NamedTuple):
    """One message in chat: none, one or several messages, joined as JSON.

    `calls`: ids of its tool calls. `results`: ids of the calls that it answers, with their places in the message.
    `dropped`: the types of blocks that were. `marks`: how many `cache_control` were taken off. `applied` and `off`:
    what rules did to its texts.
    """

    messages: bytes
    role: str
    calls: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...]
    marks: int
    applied: frozenset[str]
    off: frozenset[str]


_KNOWN: Final[Known[InChat]] = Known()


class ConversationReader:
    """The system prompt and the messages of one request.

    `dropped`: how many blocks of a type were, `marks`: how many `cache_control` were taken off.
    """

    def __init__(self, texts: Texts, key: bytes, work: TranslationWork) -> None:
        """`key`: that of signatures; `work`: what may be made of them."""
        self.dropped: Counter[str] = Counter()
        self.marks = 0
        self._texts = texts
        self._key = key
        self._work = work
        self._scope = key, texts.on
        self._calls: set[str] = set()

    def system(self, members: Members) -> list[bytes]:
        """The system prompt, as one message or none."""
        raw = members.get("system")
        if raw is None:
            return []
        blocks = Blocks(self._texts, self._work)
        found = _of_system(raw, "system", blocks)
        self.marks += blocks.marks
        return [encode(message) for message in found]

    def messages(self, raws: list[Raw], *, counts_only: bool) -> list[bytes]:
        """All of a request's messages, each as what it is in chat, joined."""
        if not raws:
            raise BadRequest("messages", "at least one message is required")
        self._work.take(len(raws) // KNOWN_PER_STEP)
        out: list[bytes] = []
        role = ""
        for at, each in enumerate(raws):
            found = self._in_chat(each, at)
            if found.messages:
                out.append(found.messages)
                role = found.role
        if not out:
            raise BadRequest("messages", "no message has any text but one that the model's rules take out")
        if role == "assistant" and not counts_only:
            raise BadRequest(f"messages.{len(raws) - 1}.role", "the last message must not be the assistant's")
        return out

    def _in_chat(self, raw: Raw, at: int) -> InChat:
        """One message, and what it says of others."""
        found = _KNOWN.get(self._scope, raw)
        if found is None:
            self._work.take(1)
            found = _Message(Texts(self._texts.on), self._key, self._work).read(raw, f"messages.{at}")
            _KNOWN.keep(self._scope, raw, found, len(found.messages))
        for call, path in found.results:
            if call not in self._calls:
                raise BadRequest(f"messages.{at}.{path}", "no tool_use before it has this id")
        if found.calls:
            self._calls.update(found.calls)
        if found.dropped:
            self.dropped.update(found.dropped)
        self.marks += found.marks
        if found.applied or found.off:
            self._texts.add(found.applied, found.off)
        return found


class _Message:
    """Reads one message."""

    def __init__(self, texts: Texts, key: bytes, work: TranslationWork) -> None:
        self._texts = texts
        self._blocks = Blocks(texts, work)
        self._key = key
        self._calls: list[str] = []
        self._results: list[tuple[str, str]] = []
        self._dropped: list[str] = []

    def read(self, raw: Raw, path: str) -> InChat:
        """The message in chat."""
        members = object_at(raw, path)
        role = text_at(members, "role", path)
        found = self._messages(members, role, path)
        applied, off = self._texts.scope()
        return InChat(
            in_list(found), role, tuple(self._calls), tuple(self._results), tuple(self._dropped),
            self._blocks.marks, applied, off,
        )  # fmt: skip

    def _messages(self, message: Members, role: str, path: str) -> list[ChatPart]:
        raw = message.get("content")
        where = f"{path}.content"
        if raw is None:
            raise BadRequest(where, "is required")
        if bytes(memoryview(raw)[:3]) == b'""':
            raise BadRequest(where, "is empty")
        if role == "system":
            return _of_system(raw, where, self._blocks)
        if role == "assistant":
            return [{"role": role, "content": raw}] if is_text(raw) else [self._of_assistant(self._opened(raw, where))]
        if role != "user":
            raise BadRequest(f"{path}.role", "must be user, assistant or system")
        if is_text(raw):
            parts = self._blocks.parts(raw, where, role)
            return [{"role": role, "content": content_of(parts)}] if parts else []
        return self._of_user(self._opened(raw, where), len(path) + 1)

    def _opened(self, raw: Raw, path: str) -> list[tuple[Members, str]]:
        """The blocks of a message, each with its place."""
        found = [(each, f"{path}.{at}") for at, each in enumerate(self._blocks.work.take_list(raw, path))]
        if not found:
            raise BadRequest(path, "is empty")
        return [(self._blocks.block(each, where), where) for each, where in found]

    def _of_user(self, blocks: list[tuple[Members, str]], path_at: int) -> list[ChatPart]:
        """Results of tools first, then what the user says. `path_at`: where paths go on behind the message's."""
        found: list[ChatPart] = []
        parts: list[ChatPart] = []
        for block, path in blocks:
            if kind_of(block, path) == "tool_result":
                message, images = self._blocks.tool_message(block, path)
                self._results.append((message["tool_call_id"], f"{path[path_at:]}.tool_use_id"))
                found.append(message)
                parts += images
            elif (piece := self._blocks.piece(block, path, "user")) is not None:
                parts.append(piece)
        if parts:
            found.append({"role": "user", "content": content_of(parts)})
        return found

    def _of_assistant(self, blocks: list[tuple[Members, str]]) -> ChatPart:
        texts: list[ChatPart] = []
        calls: list[ChatPart] = []
        thoughts: list[str] = []
        for block, path in blocks:
            kind = kind_of(block, path)
            if kind == "tool_use":
                call = tool_call(block, path)
                self._calls.append(call["id"])
                calls.append(call)
            elif kind == "thinking":
                thoughts += self._thought(block, path)
            elif kind == "redacted_thinking":
                self._dropped.append(kind)
            elif kind not in _MANY:
                raise BadRequest(f"{path}.type", f"{kind[:MAX_SHOWN_CHARS]!r} is no block of an assistant's message")
            elif (piece := self._blocks.piece(block, path, "assistant")) is not None:
                texts.append(piece)
        _only_texts(texts, blocks[0][1])
        return assistant_message(texts, "".join(thoughts), calls)

    def _thought(self, block: Members, path: str) -> list[str]:
        """The text of a thinking block that has our signature; no other is kept."""
        text, raw = text_at(block, "thinking", path), block.get("signature")
        if raw is not None and is_text(raw) and is_signed(self._key, text, text_at(block, "signature", path)):
            return [text]
        self._dropped.append("thinking")
        return []


def _of_system(raw: Raw, path: str, blocks: Blocks) -> list[ChatPart]:
    parts = blocks.parts(raw, path, "system")
    _only_texts(parts, path)
    return [{"role": "system", "content": content_of(parts)}] if parts else []


def _only_texts(parts: list[ChatPart], path: str) -> None:
    if any(piece["type"] != "text" for piece in parts):
        raise BadRequest(path, "must be a text or text blocks")
