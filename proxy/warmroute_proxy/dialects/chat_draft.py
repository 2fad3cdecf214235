"""Drafts of a chat request, which the translators of all other APIs fill."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Raw

from warmroute.contract.changes import Changes
from warmroute_proxy.dialects.content import content_of, reminder
from warmroute_proxy.dialects.fields import names_of
from warmroute_proxy.dialects.foreign import count
from warmroute_proxy.dialects.raw_json import ChatPart, Members, Misshapen, Piece, chat_pieces, text_at
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.rules import LATE_SYSTEM
from warmroute_proxy.normalising.texts import Texts

EMPTY: Final = "empty_message"  # the type under which an empty message is counted


_NONE: Final[frozenset[str]] = frozenset()


class Opens(Protocol):
    @property
    def key(self) -> bytes:
        """The key of the tenant's share group: tenants that may use each other's cached prompts."""

    def open(self, sealed: str) -> str | None:
        """The text that was sealed (encrypted for the client to keep); None if another key sealed it."""


class ChatRequest(msgspec.Struct, kw_only=True):
    """A request translated to chat; subclasses add what the translation of its answer needs.

    `dropped`: names of members and types of tools that chat has no place for. `unlisted`: those of them that the proxy
    does not know. `dropped_blocks`: how many blocks, items or parts of each type the model does not see.
    `cache_marks`: how many `cache_control` members were removed. `texts`: the `Texts` that cleaned the prompt.
    """

    pieces: list[Piece]
    model: str
    dropped: frozenset[str]
    unlisted: frozenset[str]
    dropped_blocks: dict[str, int]
    cache_marks: int = 0
    texts: Texts

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def changes(self) -> Changes:
        return Changes(names_of(self.dropped), self.dropped_blocks, self.cache_marks, *self.texts.names())


_Request = TypeVar("_Request", bound=ChatRequest)


class HistoryDraft:
    """The messages of a history, as JSON. `blocks`: how many blocks, items or parts of each type were dropped or
    changed.
    """

    def __init__(self, texts: Texts, key: bytes, work: TranslationWork) -> None:
        """`key`: that of the tenant's share group; `work`: the steps that the translation may still take."""
        self.messages: list[bytes] = []
        self.blocks: dict[str, int] = {}
        self.texts = texts
        self.work = work
        self.scope = key, texts.on
        """All that the translation of a message depends on, besides the message's bytes."""

        self.may_be_late: Final = LATE_SYSTEM in texts.on

    def note(self, dropped: Iterable[str], applied: frozenset[str] = _NONE, off: frozenset[str] = _NONE) -> None:
        """Count the types of parts that a message lost. Add the normalising rules that changed it (`applied`), and
        those that would have changed it if they were on (`off`).
        """
        for kind in dropped:
            count(self.blocks, kind)
        if applied or off:
            self.texts.add(applied, off)


class MessageDraft:
    """One message of a history. `is_late`: a system message is not allowed here, and becomes a user's. `dropped`: the
    types of its dropped or changed parts.
    """

    def __init__(self, texts: Texts, work: TranslationWork, *, is_late: bool) -> None:
        self.texts = texts
        self.work = work
        self.is_late = is_late
        self.dropped: list[str] = []

    def message_with(self, role: str, parts: list[ChatPart]) -> list[ChatPart]:
        """A list with the one message that these cleaned parts make; an empty list without parts."""
        if not parts:
            return []
        if role == "system" and self.is_late:
            self.texts.applied.add(LATE_SYSTEM)
            return [{"role": "user", "content": reminder(parts)}]
        return [{"role": role, "content": content_of(parts)}]

    def count_empty(self, found: object) -> None:
        """Count an empty message, unless dropped parts or applied rules explain it."""
        if not found and not self.dropped and not self.texts.applied:
            self.dropped.append(EMPTY)


class ChatDraft:
    """A request under construction. `chat`: the members before the messages; `behind`: those after the tools.
    `dropped`: names of members and types of tools that chat has no place for.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.chat: dict[str, Any] = {"model": model}
        self.behind: dict[str, Any] = {}
        self.dropped: set[str] = set()

    def request(
        self,
        kind: type[_Request],
        history: HistoryDraft,
        messages: Sequence[Piece],
        tools: bytes,
        unlisted: frozenset[str],
        /,
        **terms: Any,
    ) -> _Request:
        """The finished request, of the class `kind`. `tools`: chat's list as JSON, or empty; `terms`: further fields.

        The members of the body have a fixed order: short members, the messages, then the tools. By this order, the
        intake recognises that bodies come from one client.
        """
        behind = {"tools": Raw(tools), **self.behind} if tools else self.behind
        return kind(
            pieces=chat_pieces(self.chat, messages, behind),
            model=self.model,
            dropped=unlisted.union(self.dropped),
            unlisted=unlisted,
            dropped_blocks=dict(history.blocks),
            texts=history.texts,
            **terms,
        )


def function_tool(tool: Members, path: str, name: str, parameters: Any, strict: bytes = b"false") -> ChatPart:
    """A tool as a function of chat, with its description. Raises: Misshapen."""
    function: dict[str, Any] = {"name": name}
    if "description" in tool:
        text_at(tool, "description", path)
        function["description"] = tool["description"]
    function["parameters"] = parameters
    if strict not in (b"true", b"false"):
        raise Misshapen(f"{path}.strict", "must be true or false")
    if strict == b"true":
        function["strict"] = True
    return {"type": "function", "function": function}
