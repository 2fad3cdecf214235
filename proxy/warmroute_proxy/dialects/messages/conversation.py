"""The system prompt and the messages of a request, each translated by itself.

A result whose call is not there, since a client has cut it off, is what the user says.
"""

from typing import Any, Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.call_extras import parted
from warmroute_proxy.dialects.content import assistant_message, content_of, reminder
from warmroute_proxy.dialects.foreign import count
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.messages.blocks import Blocks, kind_of, tool_call
from warmroute_proxy.dialects.messages.signatures import is_signed
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    ChatPart,
    Members,
    encode,
    in_list,
    is_object,
    is_text,
    object_at,
    text_in,
)
from warmroute_proxy.dialects.tool_arguments import NO_OBJECT
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.rules import LATE_SYSTEM
from warmroute_proxy.normalising.texts import Texts

_SYSTEM: Final = frozenset({"system", "developer"})
EMPTY: Final = "empty_message"  # what a message with nothing in it is counted as


class InChat(NamedTuple):
    """One message in chat: none, one or several messages, joined as JSON.

    `calls`: ids of its tool calls. `results`: ids of the calls that it answers. `dropped`: the types of blocks that
    were, or became texts. `added`: definitions of tools in it. `marks`: how many `cache_control` were taken off.
    `applied` and `off`: what rules did to its texts.
    """

    messages: bytes
    role: str
    calls: tuple[str, ...]
    results: tuple[str, ...]
    dropped: tuple[str, ...]
    added: tuple[bytes, ...]
    marks: int
    applied: frozenset[str]
    off: frozenset[str]


_KNOWN: Final[Known[InChat]] = Known()


class ConversationReader:
    """The system prompt and the messages of one request.

    `dropped`: how many blocks of a type were, `marks`: how many `cache_control` were taken off, `added`: definitions of
    tools that stand in messages.
    """

    def __init__(self, texts: Texts, key: bytes, work: TranslationWork) -> None:
        """`key`: that of signatures; `work`: what may be made of them."""
        self.dropped: dict[str, int] = {}
        self.marks = 0
        self.added: list[bytes] = []
        self._texts = texts
        self._key = key
        self._work = work
        self._calls: set[str] = set()
        self._out: list[bytes] = []

    def system(self, raw: Raw) -> None:
        """Begin with the system prompt, as one message or none."""
        blocks = Blocks(self._texts, self._work)
        self._out += [encode(message) for message in _of_system(blocks.parts(raw, "system", "system"))]
        self._count(blocks.dropped)
        self.marks += blocks.marks

    def messages(self, raws: list[Raw], *, counts_only: bool) -> list[bytes]:
        """All of a request's messages behind the system prompt, each as what it is in chat, joined."""
        if not raws:
            raise BadRequest("messages", "at least one message is required")
        self._work.take(len(raws) // KNOWN_PER_STEP)
        role, is_asked = "", False
        may_be_late, is_late = LATE_SYSTEM in self._texts.on, False
        scope = self._key, self._texts.on, is_late
        for at, each in enumerate(raws):
            if may_be_late and not is_late and self._out:
                is_late = True
                scope = self._key, self._texts.on, is_late
            found = self._in_chat(each, at, scope)
            role = found.role
            if found.messages:
                self._out.append(found.messages)
                is_asked = True
        if not is_asked:
            raise BadRequest("messages", "no message holds anything that a model can be asked")
        if role == "assistant" and not counts_only:
            raise BadRequest(f"messages.{len(raws) - 1}.role", "the last message must not be the assistant's")
        return self._out

    def _in_chat(self, raw: Raw, at: int, scope: tuple[bytes, frozenset[str], bool]) -> InChat:
        """One message, and what it says of others. `scope`: what its translation depends on besides."""
        found = _KNOWN.get(scope, raw)
        if found is None or not self._calls.issuperset(found.results):
            self._work.take(1)
            reading = _Message(Texts(self._texts.on), self._key, self._work, self._calls, is_late=scope[-1])
            found = reading.read(raw, f"messages.{at}")
            if reading.stands_alone:
                _KNOWN.keep(scope, raw, found, len(found.messages) + sum(map(len, found.added)))
        if found.calls:
            self._calls.update(found.calls)
        if found.dropped:
            self._count(found.dropped)
        if found.added:
            self.added += found.added
        self.marks += found.marks
        if found.applied or found.off:
            self._texts.add(found.applied, found.off)
        return found

    def _count(self, kinds: Any) -> None:
        for kind in kinds:
            count(self.dropped, kind)


class _Message:
    """Reads one message. `stands_alone`: all calls that it answers are there, so that others may be read likewise."""

    def __init__(
        self, texts: Texts, key: bytes, work: TranslationWork, known_calls: set[str], *, is_late: bool
    ) -> None:
        """`known_calls`: of the messages before; `is_late`: it must not be a system message."""
        self.stands_alone = True
        self._texts = texts
        self._blocks = Blocks(texts, work)
        self._key = key
        self._known_calls = known_calls
        self._is_late = is_late
        self._calls: list[str] = []
        self._results: list[str] = []

    def read(self, raw: Raw, path: str) -> InChat:
        members = object_at(raw, path) if is_object(raw) else {"content": raw} if is_text(raw) else {}
        role = text_in(members, "role")
        found = self._messages(members, role, f"{path}.content")
        blocks = self._blocks
        return InChat(
            in_list(found), role, tuple(self._calls), tuple(self._results), tuple(blocks.dropped), tuple(blocks.added),
            blocks.marks, *self._texts.scope(),
        )  # fmt: skip

    def _messages(self, message: Members, role: str, path: str) -> list[ChatPart]:
        raw = message.get("content")
        blocks = self._blocks
        if role in _SYSTEM:
            parts = [] if raw is None else blocks.parts(raw, path, "system")
            found = self._of_late_system(parts) if self._is_late else _of_system(parts)
        elif role == "assistant":
            found = [] if raw is None else self._of_assistant(raw, path)
        else:
            if role != "user":
                blocks.dropped.append(role)
            found = [] if raw is None else self._of_user(raw, path)
        if not found and not blocks.dropped and not self._texts.applied:
            blocks.dropped.append(EMPTY)
        return found

    def _of_late_system(self, parts: list[ChatPart]) -> list[ChatPart]:
        if not parts:
            return []
        self._texts.applied.add(LATE_SYSTEM)
        return [{"role": "user", "content": reminder(parts)}]

    def _of_user(self, raw: Raw, path: str) -> list[ChatPart]:
        if is_text(raw):
            parts = self._blocks.parts(raw, path, "user")
            return [{"role": "user", "content": content_of(parts)}] if parts else []
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
        if parts:
            found.append({"role": "user", "content": content_of(parts)})
        return found

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
        """The text of a thinking block that has our signature; no other is kept."""
        text, signature = text_in(block, "thinking"), text_in(block, "signature")
        if signature and is_signed(self._key, text, signature):
            return [text]
        self._blocks.dropped.append("thinking")
        return []


def _of_system(parts: list[ChatPart]) -> list[ChatPart]:
    return [{"role": "system", "content": content_of(parts)}] if parts else []
