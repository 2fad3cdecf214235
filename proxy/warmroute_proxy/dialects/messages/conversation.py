"""Translates the system prompt and the messages of a request, each by itself.

If a client has removed a call but not its result, the result becomes part of the user's message.
"""

from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.call_extras import call_of, parted
from warmroute_proxy.dialects.chat_draft import HistoryDraft, MessageDraft
from warmroute_proxy.dialects.content import (
    assistant_message,
    content_of,
    data_text,
    foreign_image,
    image_at,
    is_given,
    text_of,
)
from warmroute_proxy.dialects.foreign import UNTYPED, not_shown, texts_in
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.messages.signatures import is_signed
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    ChatPart,
    Members,
    Misshapen,
    encode,
    in_list,
    is_list,
    is_object,
    is_text,
    json_as_text,
    object_at,
    text_at,
    text_in,
)
from warmroute_proxy.dialects.tool_arguments import NO_OBJECT, object_text
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.texts import Texts

# Blocks of content: each becomes a piece of a chat message, a tool call, or a message of role `tool`.
#
# A block that has no place in chat is replaced by its text, if it has one, and counted by its type.

_OBJECT: Final = 0x7B
_EMPTY: Final = len(b'""')
_FAILED: Final = "The tool failed:"
_MARK: Final = "cache_control"
_NO_TEXT: Final = frozenset(
    {"thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback"}
)
"""Blocks that give the model no text if chat has no place for them: other models' thoughts, and calls."""

_AVAILABLE: Final = {
    "tool_reference": "Tool available: ",
    "tool_addition": "Tool available: ",
    "tool_removal": "Tool no longer available: ",
}
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode


class Blocks(MessageDraft):
    """Reads the blocks of one message.

    `marks`: how many `cache_control` the blocks have. `added`: definitions of tools in them.
    """

    def __init__(self, texts: Texts, work: TranslationWork, *, is_late: bool = False) -> None:
        super().__init__(texts, work, is_late=is_late)
        self.marks = 0
        self.added: list[bytes] = []

    def listed(self, raw: Raw, path: str) -> list[tuple[Members, str]]:
        """The blocks of a content, each with its path. A string in the list becomes a text block; elements that are
        neither objects nor strings are dropped. A content that is not a list becomes one text block.
        """
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
        """The parts of content, a text or blocks. Empty texts, and those that normalising empties, are left out."""
        if not is_given(raw):
            return []
        if is_text(raw):
            return self._cleaned(raw, role)
        found = []
        for block, where in self.listed(raw, path):
            found += self.piece(block, where, role)
        return found

    def piece(self, block: Members, path: str, role: str) -> list[ChatPart]:
        """The parts of a block; empty if nothing of it is left. Only users and tools may show images."""
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
        """The parts of a block that has a place in chat; None for any other. Raises: Misshapen."""
        if kind == "text":
            return self._text(block, path, role)
        if "image" in kind and role in ("user", "tool"):
            image = _image(block, path)
            return None if image is None else [image]
        text = self._document(block, path) if kind == "document" else None
        return None if text is None else [text_of(text)]

    def tool_message(self, block: Members, path: str, call_id: str) -> tuple[ChatPart, list[ChatPart]]:
        """A `tool_result` as a message of role `tool`, and its images, which a message of that role cannot hold."""
        parts = self.result(block, path)
        images = [piece for piece in parts if piece["type"] != "text"]
        texts = [piece for piece in parts if piece["type"] == "text"]
        content = content_of(texts) if texts else ""
        return {"role": "tool", "tool_call_id": call_id, "content": content}, images

    def result(self, block: Members, path: str) -> list[ChatPart]:
        """The texts and images of a `tool_result`."""
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
        text = self.texts.clean(raw, role)
        return [] if text is None or len(memoryview(text)) == _EMPTY else [{"type": "text", "text": text}]

    def _document(self, block: Members, path: str) -> str | None:
        """The title and text of a document; None if it has no text."""
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
        """The texts of a block that has no place in chat."""
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
        return [text_of(text or not_shown("image"))] if text or "image" in kind else []

    def _take_definitions(self, block: Members) -> None:
        """Keep the tools that a block defines, in its own `tool` or in its list of changes."""
        changes = block.get("tool_changes")
        for change in [block] if changes is None else [object_of(each) for each in list_of(changes)]:
            definition = object_of(change.get("tool")).get("definition")
            if definition is not None:
                self.work.take(1)
                self.added.append(bytes(definition))


def kind_of(block: Members) -> str:
    """The type of a block. A block without a type is a text if it has `text`, else untyped."""
    if "type" in block:
        return text_in(block, "type") or UNTYPED
    return "text" if "text" in block else UNTYPED


def object_of(raw: Raw | None) -> Members:
    """The members of an object; empty for any other value."""
    try:
        return {} if raw is None else _decode_members(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def list_of(raw: Raw | None) -> list[Raw]:
    """The elements of a list; empty for any other value."""
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
    """The text of a document behind its title and what the client says about it."""
    return "\n".join(filter(None, [text_in(block, "title"), text_in(block, "context"), text]))


def _source(raw: Raw, path: str) -> tuple[Members, str]:
    source = object_at(raw, f"{path}.source")
    return source, text_at(source, "type", f"{path}.source")


def _image(block: Members, path: str) -> ChatPart | None:
    source = object_of(block.get("source"))
    if text_in(source, "type") == "url":
        return image_at(text_at(source, "url", f"{path}.source"))
    return foreign_image(block)


def tool_call(block: Members, call_id: str, name: str, path: str) -> tuple[ChatPart, bool]:
    """A `tool_use` as a call, and whether its input is an object or the text of one. Other input becomes an object."""
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


_SYSTEM: Final = frozenset({"system", "developer"})
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})


class InChat(NamedTuple):
    """One message in chat's terms: zero or more chat messages, joined as JSON.

    `calls`: ids of its tool calls. `results`: ids of the calls that it answers. `dropped`: types of blocks that were
    dropped or became texts. `added`: definitions of tools in it. `effort`: the effort from here on, or empty. `marks`:
    how many `cache_control` were removed. `applied` and `off`: normalising rules that changed its texts, and disabled
    rules that would have changed them.
    """

    messages: bytes
    role: str
    calls: tuple[str, ...]
    results: tuple[str, ...]
    dropped: tuple[str, ...]
    added: tuple[bytes, ...]
    effort: str
    marks: int
    applied: frozenset[str]
    off: frozenset[str]


_KNOWN: Final[Known[InChat]] = Known()


class ConversationReader(HistoryDraft):
    """The system prompt and the messages of one request.

    `marks`: how many `cache_control` were removed. `added`: definitions of tools in messages. `effort`: the last effort
    that a system message asks for, or empty.
    """

    def __init__(self, texts: Texts, key: bytes, work: TranslationWork) -> None:
        """`key`: the key that signs reasoning."""
        super().__init__(texts, key, work)
        self.marks = 0
        self.added: list[bytes] = []
        self.effort = ""
        self._key = key
        self._calls: set[str] = set()

    def system(self, raw: Raw) -> None:
        """Read the system prompt, as the first message; an empty one adds no message."""
        blocks = Blocks(self.texts, self.work)
        self.messages += [
            encode(message) for message in blocks.message_with("system", blocks.parts(raw, "system", "system"))
        ]
        self.note(blocks.dropped)
        self.marks += blocks.marks

    def read(self, raws: list[Raw], *, counts_only: bool) -> list[bytes]:
        """Translate the messages. Returns those of chat, with the system prompt first."""
        if not raws:
            raise BadRequest("messages", "at least one message is required")
        self.work.take(len(raws) // KNOWN_PER_STEP)
        role, is_asked = "", False
        is_late = False
        scope = *self.scope, is_late
        for at, each in enumerate(raws):
            if self.may_be_late and not is_late and self.messages:
                is_late = True
                scope = *self.scope, is_late
            found = self._in_chat(each, at, scope)
            if found.messages or found.role != "assistant":
                role = found.role
            if found.messages:
                self.messages.append(found.messages)
                is_asked = True
        if not is_asked:
            raise BadRequest("messages", "no message holds anything that a model can be asked")
        if role == "assistant" and not counts_only:
            raise BadRequest(f"messages.{len(raws) - 1}.role", "the last message must not be the assistant's")
        return self.messages

    def _in_chat(self, raw: Raw, at: int, scope: tuple[bytes, frozenset[str], bool]) -> InChat:
        """Translate one message, and note its calls and counts. `scope`: all that the translation depends on besides
        the message's bytes.
        """
        found = _KNOWN.get(scope, raw)
        if found is None or not self._calls.issuperset(found.results):
            self.work.take(1)
            reading = _Message(Texts(self.texts.on), self._key, self.work, self._calls, is_late=scope[-1])
            found = reading.read(raw, f"messages.{at}")
            if reading.stands_alone:
                _KNOWN.keep(scope, raw, found, len(found.messages) + sum(map(len, found.added)))
        if found.calls:
            self._calls.update(found.calls)
        self.note(found.dropped, found.applied, found.off)
        if found.added:
            self.added += found.added
        self.effort = found.effort or self.effort
        self.marks += found.marks
        return found


class _Message:
    """Reads one message. `stands_alone`: it answers only known calls, so its translation may be kept and reused."""

    def __init__(
        self, texts: Texts, key: bytes, work: TranslationWork, known_calls: set[str], *, is_late: bool
    ) -> None:
        """`known_calls`: ids of the calls in earlier messages; `is_late`: a system message becomes a user's."""
        self.stands_alone = True
        self._blocks = Blocks(texts, work, is_late=is_late)
        self._key = key
        self._known_calls = known_calls
        self._calls: list[str] = []
        self._results: list[str] = []

    def read(self, raw: Raw, path: str) -> InChat:
        members = object_at(raw, path) if is_object(raw) else {"content": raw} if is_text(raw) else {}
        role = text_in(members, "role")
        stated = text_in(object_of(members.get("output_config")), "effort") if role in _SYSTEM else ""
        effort = stated if stated in _EFFORTS else ""
        blocks = self._blocks
        found = self._messages(members, role, f"{path}.content")
        blocks.count_empty(found or effort)
        return InChat(
            in_list(found), role, tuple(self._calls), tuple(self._results), tuple(blocks.dropped), tuple(blocks.added),
            effort, blocks.marks, *blocks.texts.scope(),
        )  # fmt: skip

    def _messages(self, message: Members, role: str, path: str) -> list[ChatPart]:
        raw = message.get("content")
        blocks = self._blocks
        if role in _SYSTEM:
            return [] if raw is None else blocks.message_with("system", blocks.parts(raw, path, "system"))
        if role == "assistant":
            return [] if raw is None else self._of_assistant(raw, path)
        if role != "user":
            blocks.dropped.append(role)
        return [] if raw is None else self._of_user(raw, path)

    def _of_user(self, raw: Raw, path: str) -> list[ChatPart]:
        if is_text(raw):
            return self._blocks.message_with("user", self._blocks.parts(raw, path, "user"))
        found: list[ChatPart] = []
        parts = []
        for block, where in self._blocks.listed(raw, path):
            if kind_of(block) != "tool_result":
                parts += self._blocks.piece(block, where, "user")
                continue
            call_id, _ = parted(text_in(block, "tool_use_id"))
            if call_id in self._known_calls:
                message, images = self._blocks.tool_message(block, where, call_id)
                self._results.append(call_id)
                found.append(message)
                parts += images
            else:
                self.stands_alone = False
                self._blocks.dropped.append("tool_result")
                parts += self._blocks.result(block, where)
        return found + self._blocks.message_with("user", parts)

    def _of_assistant(self, raw: Raw, path: str) -> list[ChatPart]:
        blocks = self._blocks
        if is_text(raw):
            texts = blocks.parts(raw, path, "assistant")
            return [assistant_message(texts, "", [])] if texts else []
        texts, calls, thoughts = [], [], []
        for block, where in blocks.listed(raw, path):
            kind = kind_of(block)
            call_id, name = text_in(block, "id"), text_in(block, "name")
            if kind == "tool_use" and call_id and name:
                call, takes_input = tool_call(block, call_id, name, where)
                if not takes_input:
                    blocks.dropped.append(NO_OBJECT)
                self._calls.append(call["id"])
                calls.append(call)
            elif kind == "thinking":
                thoughts += self._thought(block)
            else:
                texts += blocks.piece(block, where, "assistant")
        thought = "".join(thoughts)
        return [assistant_message(texts, thought, calls)] if texts or calls or thought else []

    def _thought(self, block: Members) -> list[str]:
        """The text of a thinking block with this proxy's signature. Other thinking blocks are dropped."""
        text, signature = text_in(block, "thinking"), text_in(block, "signature")
        if signature and is_signed(self._key, text, signature):
            return [text]
        self._blocks.dropped.append("thinking")
        return []
