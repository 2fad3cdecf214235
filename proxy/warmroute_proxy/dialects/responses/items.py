"""Joins the items of a request's input into chat messages: an item is a message, or a piece of the model's message.

The model's items of one turn make one chat message: reasoning, then text, then calls, whichever order they come in. The
images of results follow the last result, since nothing may stand between a call and its result. Each item is read
alone (`item_reading`), so its translation is kept under its bytes (`Known`). Its effect on the items around it is
worked out each time.
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
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.texts import Texts

_SLOTS_BYTES: Final = 64  # memory of an id in a set, besides the string
_KNOWN: Final[Known[InChat]] = Known()


class ReadItems(NamedTuple):
    """What earlier items leave for later ones. `scope`: the share group's key and the normalising rules in force.

    `calls`: ids of the items' calls; `ids_bytes`: the memory of these ids. `tools`: the tool definitions in the items.
    `reasoning`, `content` and `called`: pieces of the model's message, if it is still open. `applied` and `off`: as in
    `Texts`.
    """

    scope: tuple[bytes, frozenset[str]]
    calls: frozenset[str]
    ids_bytes: int
    dropped: dict[str, int]
    tools: tuple[bytes, ...]
    reasoning: tuple[bytes, ...]
    content: tuple[bytes, ...]
    called: tuple[bytes, ...]
    applied: frozenset[str]
    off: frozenset[str]

    @property
    def size_bytes(self) -> int:
        """The size of the open message of the model, the tools and the ids."""
        return self.ids_bytes + sum(map(len, self.tools + self.reasoning + self.content + self.called))


_NOTHING_READ: Final = ReadItems(
    scope=(b"", frozenset()),
    calls=frozenset(),
    ids_bytes=0,
    dropped={},
    tools=(),
    reasoning=(),
    content=(),
    called=(),
    applied=frozenset(),
    off=frozenset(),
)


class ItemReader(HistoryDraft):
    """Makes the messages of one input. `tools`: definitions in items. `compacts`: whether it asks for a summary."""

    def __init__(
        self, seal: Opens, texts: Texts, work: TranslationWork, before: ReadItems | None = None, *, is_led: bool = False
    ) -> None:
        """`before`: what earlier items leave, in the same scope. `is_led`: whether other messages come first."""
        super().__init__(texts, seal.key, work)
        self.tools: list[bytes] = []
        self.compacts = False
        self._seal = seal
        self._is_led = is_led or before is not None
        self._before = _NOTHING_READ
        self._calls: set[str] = set()  # ids in these items; `before.calls` is not copied
        self._reasoning: list[bytes] = []
        self._content: list[bytes] = []
        self._called: list[bytes] = []
        self._images: list[bytes] = []  # images of results
        if before is not None:
            self._go_on(before)

    def _go_on(self, before: ReadItems) -> None:
        assert before.scope == self.scope
        self._before = before
        self.blocks.update(before.dropped)
        self.tools += before.tools
        self._reasoning, self._content, self._called = [*before.reasoning], [*before.content], [*before.called]
        self.texts.add(before.applied, before.off)

    def read_items(self) -> ReadItems:
        before = self._before
        calls, call_bytes = _with(before.calls, self._calls)
        return ReadItems(
            self.scope, calls, before.ids_bytes + call_bytes, dict(self.blocks), tuple(self.tools),
            tuple(self._reasoning), tuple(self._content), tuple(self._called), *self.texts.scope(),
        )  # fmt: skip

    def add_text(self, raw: Raw, role: str) -> None:
        """Add a message that is one text, unless the rules leave nothing of it."""
        self._end_message()
        text = self.texts.clean(raw, role)
        if text is not None:
            self.messages.append(encode({"role": role, "content": text}))

    def read(self, raws: list[Raw]) -> None:
        """Take all items of an input. The model answers next, so its open message ends. Raises: BadRequest."""
        self.take(raws)
        self._end_message()

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
        self._end_results()

    def _has_begun(self) -> bool:
        return bool(self._is_led or self.messages or self._content or self._called or self._reasoning)

    def _take(self, item: InChat) -> None:
        kind = item.kind
        if kind is Kind.RESULT:
            self._answer(item)
            return
        if self._images and kind is not Kind.NOTHING:
            self._end_results()
        if kind is Kind.CALL:
            self._calls.add(item.call_id)
            self._called.append(item.json)
        elif kind is Kind.MESSAGE:
            self._end_message()
            self.messages.append(item.json)
        elif kind is Kind.TEXT:
            self._content.append(item.json)
        elif kind is Kind.REASONING:
            self._reasoning.append(item.json)
        else:
            self.tools += item.tools

    def _answer(self, item: InChat) -> None:
        """Add the result of a call; without its call in the history, it becomes a user's message."""
        self._end_message()
        if item.call_id in self._calls or item.call_id in self._before.calls:
            self.messages.append(item.json)
        else:
            count(self.blocks, "function_call_output")
            content = item.json[len(result_begins(item.call_id)) :]
            self.messages.append(b'{"role":"user","content":%b' % content)
        if item.images:
            self._images.append(item.images)
        if item.tools:
            self.tools += item.tools

    def _end_results(self) -> None:
        """Write the images of the results, after the last result and before the next message."""
        if self._images:
            self.messages.append(b'{"role":"user","content":[%b]}' % b",".join(self._images))
            self._images = []

    def _end_message(self) -> None:
        if not (self._reasoning or self._content or self._called):
            return
        reasoning = b""
        if self._reasoning:
            reasoning = b'"reasoning_content":"%b",' % b"".join(self._reasoning)
        content = _one_content(self._content) or (b"null" if self._called else b'""')
        calls = b',"tool_calls":[%b]' % b",".join(self._called) if self._called else b""
        self.messages.append(b'{"role":"assistant",%b"content":%b%b}' % (reasoning, content, calls))
        self._reasoning, self._content, self._called = [], [], []


def _one_content(contents: Sequence[bytes]) -> bytes:
    """Join contents, each a text or a list of parts, into one."""
    if len(contents) < 2:
        return b"".join(contents)
    parts = [each[1:-1] if each[:1] == b"[" else b'{"type":"text","text":%b}' % each for each in contents]
    return b"[%b]" % b",".join(parts)


def _with(ids: frozenset[str], more: set[str]) -> tuple[frozenset[str], int]:
    """The union of ids, and the memory of the new ones."""
    new = more - ids
    return (ids | new, sum(map(getsizeof, new)) + _SLOTS_BYTES * len(new)) if new else (ids, 0)
