"""Reads a stream for usage, end and errors. All other events go to the client as they came. Only calls that clients
could not tell apart get other numbers (`call_numbers`).

The events of one stream differ only in a short text. An event that begins and ends like one that was read before, and
whose text is plain, passes unread. All others are read as JSON, so the style of a server's JSON makes no difference.

Withheld from the client: the usage chunk and `[DONE]` (the relay sends its own once the request is settled), the
`sglext` chunk that only the proxy requested, the chunk that ends an aborted choice, and an engine's error with whatever
follows it.
"""

from typing import Any, Final

from msgspec import Raw

from warmroute_proxy.dialects.call_numbers import MAX_CHOICES, CallNumbers, made_ids, renumbered
from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs
from warmroute_proxy.dialects.chunk_view import (
    ABSENT,
    FAILED,
    ONE_TOKEN_BYTES,
    AnswerView,
    ChoiceView,
    arguments_of,
    as_object,
    decoded,
    is_filled,
    read_view,
    thoughts_in,
    tokens_at_least,
    tokens_elsewhere,
)
from warmroute_proxy.dialects.event_reader import ERROR_EVENT, EventReader
from warmroute_proxy.dialects.work import MAX_CALLS, SMALL_BYTES, check_event

MAX_TEXT_BYTES: Final = ONE_TOKEN_BYTES  # of an event that passes unread

DIGITS: Final = b"0123456789"
_DONE: Final = b"[DONE]"
ABORT: Final = "abort"
ENDS_IN_TOOLS: Final = frozenset({"tool_calls", "function_call"})
"""Of `finish_reason`."""

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C


class EventShape:
    """What stands around the text of an event. Where an event counts tokens, only the digits behind its text differ."""

    __slots__ = ("counts", "head", "tail")

    def __init__(self, head: bytes, tail: bytes, *, counts: bool) -> None:
        """`tail`: with the blank line, and without digits where it `counts`."""
        self.head = head
        self.tail = tail
        self.counts = counts

    def has(self, event: bytes) -> bool:
        """Whether an event is of this shape, and its text plain and short."""
        if not event.startswith(self.head):
            return False
        at = len(self.head)
        if self.counts:
            end = event.find(b'"', at)
            if event[end:].translate(None, DIGITS) != self.tail:
                return False
        else:
            end = len(event) - len(self.tail)
            if not event.endswith(self.tail):
                return False
        text = event[at:end]
        if not 0 < len(text) <= MAX_TEXT_BYTES or _QUOTE in text:
            return False
        return _BACKSLASH not in text or (text[-1] != _BACKSLASH and not has_surrogate(text))


class UsageTracker:
    """Reads one stream of chat or text completion chunks."""

    __slots__ = (
        "_calls",
        "_counted",
        "_keep_sglext",
        "_reader",
        "_renumbers",
        "_rid",
        "_usage",
        "aborted",
        "called_tools",
        "details",
        "done",
        "ended_choices",
        "error",
        "shape",
        "started",
        "thoughts",
        "tokens_seen",
        "usage_event",
    )

    def __init__(self, *, keep_sglext: bool, rid: str = "") -> None:
        """`keep_sglext`: the client has requested the details, too; `rid`: by which ids of calls are made."""
        self._rid = rid
        self._calls: dict[bytes, CallNumbers] = {}  # by the index of the choice
        self._renumbers = False  # once a call had another number than it should have
        self._reader = EventReader()
        self._keep_sglext = keep_sglext
        self.shape: EventShape | None = None
        """Of the events of this stream, as far as they have one."""

        self.started = False
        """Whether an event with content was relayed. After that the answer cannot be replaced by another one."""

        self.tokens_seen = 0
        """How many tokens were generated for what was streamed: a lower bound."""

        self._usage: dict[str, Any] | None = None
        self._counted = b""  # the newest event that passed unread and has a usage
        self.usage_event: dict[str, Any] | None = None
        self.details: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.aborted = False
        self.called_tools = False
        """Whether the model has called tools."""

        self.thoughts = ""
        """The member in which the server writes what the model thinks."""

        self.ended_choices = 0
        """How many choices have given a reason for their end."""

        self.done = False

    @property
    def usage(self) -> dict[str, Any] | None:
        if self._counted:
            view, self._counted = read_view(_payload(self._counted)), b""
            self._usage = self._usage if view is None else view.reported()
        return self._usage

    @property
    def passes(self) -> bool:
        """Whether whole events may pass by `passes_whole`."""
        is_under_way = self.started and not self.done and self.error is None
        return is_under_way and not self._reader.held and not self._renumbers

    def feed(self, data: bytes) -> bytes:
        """Read some bytes. Returns what the client gets. Raises: ValueError, if an event is too large."""
        if self.done:
            return b""
        return self._passed(self._reader.feed(data))

    def end(self) -> bytes:
        """The stream has ended: its last event may lack its blank line. Returns what the client gets of it."""
        events = self._reader.end()
        return self._passed(
            [each for each in events if _payload(each) == _DONE or read_view(_payload(each)) is not None]
        )

    def passes_whole(self, events: bytes) -> bool:
        """Whether whole events go to the client as they are, which counts them: there are only contents."""
        if b"\r" in events or has_surrogate(events):
            return False
        tokens, shape = 0, self.shape
        for event in events[:-2].split(b"\n\n"):
            if event.startswith(b":") and b"\n" not in event:
                continue
            view = read_view(event[5:]) if event.startswith(b"data:") and b"\n" not in event else None
            if view is None or not _has_only_content(view):
                return False
            choices = view.choices or []
            for choice in choices:
                output = choice.outputs()
                if "tool_calls" in output and not self._calls_pass(choice, output):
                    return False
                tokens += tokens_at_least(output)
                if len(choices) == 1:
                    shape = shape_of(event + b"\n\n", output, counts=False) or shape
        if not tokens:
            return False
        self.tokens_seen += tokens
        self.shape = shape
        return True

    def passes_alike(self, event: bytes) -> bool:
        """Whether an event is like one that was read before, which counts it."""
        shape = self.shape
        if shape is None or not shape.has(event):
            return False
        self.tokens_seen += 1
        if shape.counts:
            self._counted = event
        return True

    def _passed(self, events: list[bytes]) -> bytes:
        out = []
        for each in events:
            if self.shape is not None and self.error is None and not self.done and self.passes_alike(each):
                out.append(each)
                continue
            if len(each) > SMALL_BYTES:
                check_event(each)
            event = self._taken(whole_pairs(each) if has_surrogate(each) else each)
            if event:
                out.append(event)
        return out[0] if len(out) == 1 else b"".join(out)

    def _taken(self, event: bytes) -> bytes:
        """Read one event. Returns what the client gets of it."""
        if self.done:
            return b""
        if event.startswith(b":"):
            return event if self.error is None else b""
        payload = _payload(event)
        if payload == _DONE:
            self.done = True
            return b""
        if len(payload) > SMALL_BYTES and payload.count(b'"function"') > 2 * MAX_CALLS:
            raise ValueError(f"it calls more than {MAX_CALLS} tools")
        view = read_view(payload)
        if view is None:  # the client has to handle it
            if event.startswith(ERROR_EVENT):
                self._failed(str(payload, "utf-8", "replace"))
            self.started = self.started or self.error is None
            self.tokens_seen += self.error is None
            return event if self.error is None else b""
        if view.error is not ABSENT or view.object == "error" or event.startswith(ERROR_EVENT):
            fault = view.fault()
            if fault is True or (fault is None and event.startswith(ERROR_EVENT)):
                fault = decoded(payload)
            if fault is not None:
                self._failed(fault)
        if not self._takes_view(view, event, payload) or self.error is not None:
            return b""
        return self._with_own_numbers(view, event, payload) if b'"tool_calls"' in event else event

    def _with_own_numbers(self, view: AnswerView, event: bytes, payload: bytes) -> bytes:
        """A chunk with the numbers and ids of calls by which clients tell them apart."""
        for at, choice in enumerate(view.choices or ()):
            raw = choice.outputs().get("tool_calls") if choice.delta is not None else None
            calls = None if raw is None else self._calls_of(choice)
            pieces = None if raw is None or calls is None else calls.put_right(raw)
            if pieces is not None:
                self._renumbers = True
                self.shape = None
                event = renumbered(payload, at, pieces)
                payload = _payload(event)
        return event

    def _calls_pass(self, choice: ChoiceView, output: dict[str, Raw]) -> bool:
        """Whether what a choice adds to its calls may pass as it is, and so may all like it."""
        calls = self._calls_of(choice)
        return calls is not None and calls.passes(output["tool_calls"])

    def _calls_of(self, choice: ChoiceView) -> CallNumbers | None:
        """The calls of a choice; None if there are more choices than any client may ask for."""
        index = bytes(choice.index)
        calls = self._calls.get(index)
        if calls is None and len(self._calls) < MAX_CHOICES:
            calls = self._calls[index] = CallNumbers(made_ids(self._rid))
        return calls

    def _failed(self, error: object) -> None:
        self.error = self.error or (error if isinstance(error, dict) else {"message": str(error)})

    def _takes_view(self, view: AnswerView, event: bytes, payload: bytes) -> bool:
        """Note what a chunk reports of the account, and of the answer unless it has failed."""
        usage, extension = view.reported(), None if view.sglext is ABSENT else as_object(view.sglext)
        if usage is not None:
            self._usage, self._counted = usage, b""
        if extension is not None and isinstance(extension.get("cached_tokens_details"), dict):
            self.details = extension["cached_tokens_details"]
        choices = view.choices
        if choices:
            return self.error is None and self._takes_choices(choices, event, counts=usage is not None, payload=payload)
        if usage is not None and is_filled(view.usage):
            found = decoded(payload)
            self.usage_event = found if isinstance(found, dict) else None
            return False
        if usage is None and extension is None:
            self._count_elsewhere(payload)
        return extension is None or self._keep_sglext

    def _count_elsewhere(self, payload: bytes) -> None:
        """Count the text of an event that goes to the client, and has none if it should be."""
        tokens = tokens_elsewhere(payload) if self.error is None else 0
        if tokens:
            self.started = True
            self.tokens_seen += tokens

    def _takes_choices(self, choices: list[ChoiceView], event: bytes, *, counts: bool, payload: bytes) -> bool:
        for choice in choices:
            if choice.finish_reason == ABORT:
                self.aborted = True
                return False
            if choice.error is not ABSENT or choice.finish_reason == FAILED:
                fault = choice.fault()
                if fault is not None:
                    self._failed(fault)
                    return False
        if self.aborted:
            return True
        is_first = not self.started  # it names a role, which the others do not
        before = self.tokens_seen
        for choice in choices:
            output, ends = choice.outputs(), choice.finish_reason
            if output:
                self.tokens_seen += tokens_at_least(output)
                self.started = True
                self.thoughts = self.thoughts or thoughts_in(output)
            if ends:
                self.started = True
                self.ended_choices += 1
                self.called_tools = self.called_tools or ends in ENDS_IN_TOOLS
            elif output and len(choices) == 1 and not is_first and not self._renumbers:
                self.shape = shape_of(event, output, counts=counts) or self.shape
        if self.tokens_seen == before:
            self._count_elsewhere(payload)
        return True


def shape_of(event: bytes, output: dict[str, Raw], *, counts: bool) -> EventShape | None:
    """The shape of an event with one choice that goes on; None if it has not one text alone."""
    if len(output) != 1:
        return None
    name, raw = next(iter(output.items()))
    text = bytes(arguments_of(raw) if name == "tool_calls" else raw)
    if len(text) < 3 or text[0] != _QUOTE or _BACKSLASH in text:
        return None
    at = event.find(text) + 1
    if not at or event.find(text, at) >= 0:
        return None
    tail = event[at + len(text) - 2 :]
    return EventShape(event[:at], tail.translate(None, DIGITS) if counts else tail, counts=counts)


def _has_only_content(view: AnswerView) -> bool:
    if view.usage is not ABSENT and view.reported() is not None:
        return False
    if view.error is not ABSENT or view.object == "error" or view.sglext is not ABSENT or view.x_groq is not None:
        return False
    for choice in view.choices or ():
        if choice.finish_reason or choice.usage is not ABSENT or choice.error is not ABSENT:
            return False
    return True


def _payload(event: bytes) -> bytes:
    """The data of an event in the form of `EventReader`."""
    return event[len(ERROR_EVENT) if event.startswith(ERROR_EVENT) else 5 :].strip()
