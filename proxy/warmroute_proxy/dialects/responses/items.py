"""Joins the items of a request's input into chat messages: an item is a message, or a piece of the model's message.

The model's items of one turn make one chat message: reasoning, then text, then calls, whichever order they come in. No
message may stand between a call and its result. So the images of results follow the last result, and a message that
comes before the last result is held back until then. While calls wait, a message of the system does not end the model's
message. Each item is read alone (`item_reading`), so its translation is kept under its bytes (`Known`). Its effect on
the items around it is worked out each time.
"""

from collections.abc import Sequence
from sys import getsizeof
from typing import Final, NamedTuple

from msgspec import Raw

from warmroute_proxy.dialects.chat_draft import HistoryDraft, Opens
from warmroute_proxy.dialects.foreign import count
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.raw_json import encode
from warmroute_proxy.dialects.responses.item_reading import InChat, ItemReading, Kind, result_begins
from warmroute_proxy.dialects.responses.settings import updates_in
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.texts import Texts

_KNOWN: Final[Known[InChat]] = Known()
# Looked up only once here: each access to a member of an enum costs 900 instructions in Python 3.11.
_RESULT, _MESSAGE, _CALL, _TEXT = Kind.RESULT, Kind.MESSAGE, Kind.CALL, Kind.TEXT
_OF_SYSTEM: Final = b'{"role":"system"'
_PIECE_BYTES: Final = 48  # memory of a piece besides its text: the object, and the part of a content that it becomes


class ReadItems(NamedTuple):
    """What earlier items leave for later ones. `scope`: the share group's key and the normalising rules in force.

    `tools`: the tool definitions in the items. `reasoning`, `content` and `called`: pieces of the model's message, if
    it is still open. `unanswered`: how many calls of each id in the model's last message have no result yet. `held`:
    messages that wait for these results. `images`: images of the results so far. `begun`: whether there are messages.
    `updates`: settings that items have changed. `applied` and `off`: as in `Texts`.
    """

    scope: tuple[bytes, frozenset[str]]
    dropped: dict[str, int]
    tools: tuple[bytes, ...]
    reasoning: tuple[bytes, ...]
    content: tuple[bytes, ...]
    called: tuple[bytes, ...]
    unanswered: dict[str, int]
    held: tuple[bytes, ...]
    images: tuple[bytes, ...]
    begun: bool
    updates: dict[str, bytes]
    applied: frozenset[str]
    off: frozenset[str]

    @property
    def open_pieces(self) -> tuple[bytes, ...]:
        """The pieces of the open message of the model, and the messages that wait."""
        return self.reasoning + self.content + self.called + self.held + self.images

    @property
    def size_bytes(self) -> int:
        """The size of the open pieces, the tools, the settings and the ids."""
        pieces = (*self.open_pieces, *self.tools, *self.updates.values())
        return sum(map(len, pieces)) + _PIECE_BYTES * len(pieces) + sum(map(getsizeof, self.unanswered))


class ItemReader(HistoryDraft):
    """Makes the messages of one input. `tools`: definitions in items. `updates`: members of the request that items have
    changed. `compacts`: whether it asks for a summary.
    """

    def __init__(
        self, seal: Opens, texts: Texts, work: TranslationWork, before: ReadItems | None = None, *, is_led: bool = False
    ) -> None:
        """`before`: what earlier items leave, in the same scope. `is_led`: whether other messages come first."""
        super().__init__(texts, seal.key, work)
        self.tools: list[bytes] = []
        self.updates: dict[str, bytes] = {}
        self.compacts = False
        self._seal = seal
        self._has_led = before is not None and before.begun
        self._is_led = is_led or self._has_led
        self._reasoning: list[bytes] = []
        self._content: list[bytes] = []
        self._called: list[bytes] = []
        self._unanswered: dict[str, int] = {}
        self._held: list[bytes] = []
        self._holds_notes = True  # whether all that waits is of the system
        self._images: list[bytes] = []  # images of results
        if before is not None:
            self._go_on(before)

    def _go_on(self, before: ReadItems) -> None:
        assert before.scope == self.scope
        self.blocks.update(before.dropped)
        self.tools += before.tools
        self.updates |= before.updates
        self._reasoning, self._content, self._called = [*before.reasoning], [*before.content], [*before.called]
        self._unanswered, self._held = {**before.unanswered}, [*before.held]
        self._holds_notes = all(each.startswith(_OF_SYSTEM) for each in self._held)
        self._images = [*before.images]
        self.texts.add(before.applied, before.off)

    def read_items(self) -> ReadItems:
        return ReadItems(
            self.scope, dict(self.blocks), tuple(self.tools), tuple(self._reasoning), tuple(self._content),
            tuple(self._called), dict(self._unanswered), tuple(self._held), tuple(self._images),
            self._has_led or self._has_messages(), dict(self.updates),
            *self.texts.scope(),
        )  # fmt: skip

    def add_text(self, raw: Raw, role: str) -> None:
        """Add a message that is one text, unless the rules leave nothing of it."""
        text = self.texts.clean(raw, role)
        if text is not None:
            self._add(encode({"role": role, "content": text}))

    def open_messages(self) -> list[bytes]:
        """The messages after `messages` if no more items come: the model's open one, images, and those that wait."""
        message = self._open_message()
        return [*([] if message is None else [message]), *self._shown(), *self._held]

    def take(self, raws: list[Raw]) -> None:
        """Take some items; the model's message stays open, so later items may continue it. Raises: BadRequest."""
        self.work.take(len(raws) // KNOWN_PER_STEP)
        is_late = False
        scope = *self.scope, is_late
        found: InChat | None = None
        for at, raw in enumerate(raws):
            if self.may_be_late and not is_late and self._has_begun():
                is_late = True
                scope = *self.scope, is_late
            found = _KNOWN.get(scope, raw)
            if found is None:
                self.work.take(1)
                reading = ItemReading(self._seal, Texts(self.texts.on), self.work, is_late=is_late)
                found = reading.read(raw, f"input[{at}]")
                _KNOWN.keep(scope, raw, found, found.size_bytes)
            self.note(found.dropped, found.applied, found.off)
            self._take(found)
        self.compacts = found is not None and found.kind is Kind.TRIGGER

    def _has_begun(self) -> bool:
        return self._is_led or self._has_messages()

    def _has_messages(self) -> bool:
        return bool(self.messages or self._content or self._called or self._reasoning)

    def _take(self, item: InChat) -> None:
        kind = item.kind
        if kind is _RESULT:
            self._answer(item)
        elif kind is _MESSAGE:
            self._add(item.json)
        elif kind is _CALL or kind is _TEXT or kind is Kind.REASONING:
            self._add_of_model(item)
        elif kind is Kind.UPDATE:
            self.updates |= updates_in(item.json)
        else:
            self.tools += item.tools

    def _add(self, message: bytes) -> None:
        """Add a message of the user or system; it waits while calls have no result."""
        self._held.append(message)
        self._holds_notes = self._holds_notes and message.startswith(_OF_SYSTEM)
        if not self._unanswered:
            self._release()

    def _add_of_model(self, item: InChat) -> None:
        """Add an item of the model. If the model has gone on, no message waits any longer."""
        if (self._held and not self._is_noted()) or self._images:
            self._release()
        if not (self._reasoning or self._content or self._called):
            self._unanswered.clear()
        if item.kind is _CALL:
            self._unanswered[item.call_id] = self._unanswered.get(item.call_id, 0) + 1
            self._called.append(item.json)
        elif item.kind is _TEXT:
            self._content.append(item.json)
        else:
            self._reasoning.append(item.json)

    def _is_noted(self) -> bool:
        """Whether only a program has spoken since the model's call, while the model still wrote: a hook of Codex runs
        before the model's next call.
        """
        return bool(self._called) and self._holds_notes

    def _answer(self, item: InChat) -> None:
        """Add the result of a call; it becomes a user's message if the model's last message does not wait for it."""
        left = self._unanswered.pop(item.call_id, 0)
        if left:
            self._end_message()
            self.messages.append(item.json)
            if left > 1:
                self._unanswered[item.call_id] = left - 1
        else:
            count(self.blocks, "function_call_output")
            content = item.json[len(result_begins(item.call_id)) :]
            self._add(b'{"role":"user","content":%b' % content)
        if item.images:
            self._images.append(item.images)
        if item.tools:
            self.tools += item.tools
        if self._held and not self._unanswered:
            self._release()

    def _release(self) -> None:
        """Write the messages that wait, after the images of the results."""
        self._end_message()
        self._end_results()
        self.messages += self._held
        self._held, self._holds_notes = [], True

    def _end_results(self) -> None:
        """Write the images of the results, after the last result and before the next message."""
        self.messages += self._shown()
        self._images = []

    def _shown(self) -> list[bytes]:
        return [b'{"role":"user","content":[%b]}' % b",".join(self._images)] if self._images else []

    def _end_message(self) -> None:
        message = self._open_message()
        if message is not None:
            self.messages.append(message)
            self._reasoning, self._content, self._called = [], [], []

    def _open_message(self) -> bytes | None:
        if not (self._reasoning or self._content or self._called):
            return None
        reasoning = b""
        if self._reasoning:
            reasoning = b'"reasoning_content":"%b",' % b"".join(self._reasoning)
        content = _one_content(self._content) or (b"null" if self._called else b'""')
        calls = b',"tool_calls":[%b]' % b",".join(self._called) if self._called else b""
        return b'{"role":"assistant",%b"content":%b%b}' % (reasoning, content, calls)


def _one_content(contents: Sequence[bytes]) -> bytes:
    """Join contents, each a text or a list of parts, into one."""
    if len(contents) < 2:
        return b"".join(contents)
    parts = [each[1:-1] if each[:1] == b"[" else b'{"type":"text","text":%b}' % each for each in contents]
    return b"[%b]" % b",".join(parts)
