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
        """The key."""

    def open(self, sealed: str) -> str | None:
        """The reasoning; None if it was not sealed with this key."""


class ChatRequest(msgspec.Struct, kw_only=True):
    """A request in chat's terms; subclasses add what the translation of its answer needs.

    `dropped`: members, and types of tools, that chat has no place for; `unlisted`: those that the proxy does not know.
    `dropped_blocks`: how many blocks, items or parts of each type the model does not see. `cache_marks`: how many
    `cache_control` were removed. `texts`: the `Texts` that cleaned it.
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
        """`key`: the tenant's; `work`: the steps left to the translation."""
        self.messages: list[bytes] = []
        self.blocks: dict[str, int] = {}
        self.texts = texts
        self.work = work
        self.scope = key, texts.on
        """All that a translation depends on besides its bytes."""

        self.may_be_late: Final = LATE_SYSTEM in texts.on

    def note(self, dropped: Iterable[str], applied: frozenset[str] = _NONE, off: frozenset[str] = _NONE) -> None:
        """Count what a message lost by type, and add the rules that changed it, or would have if on (`off`)."""
        for kind in dropped:
            count(self.blocks, kind)
        if applied or off:
            self.texts.add(applied, off)


class MessageDraft:
    """One message of a history. `is_late`: it must not be a system message. `dropped`: the types of its dropped or
    changed parts.
    """

    def __init__(self, texts: Texts, work: TranslationWork, *, is_late: bool) -> None:
        self.texts = texts
        self.work = work
        self.is_late = is_late
        self.dropped: list[str] = []

    def message_with(self, role: str, parts: list[ChatPart]) -> list[ChatPart]:
        """A list of the one message with these cleaned parts; empty without parts."""
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
    """A request under construction. `chat`: the members in front of the messages; `behind`: those behind the tools.
    `dropped`: members, and types of tools, that chat has no place for.
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

        The members of the body have a fixed order: short ones, the messages, then the tools. So the intake recognises
        the bodies of one client.
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
