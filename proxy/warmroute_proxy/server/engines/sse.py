"""Reads an engine's stream of server-sent events for usage, end and errors, and passes other events to the client.

Events pass as they came, with two exceptions. Tool calls which clients could not tell apart get new numbers
(`call_numbers`). A usage beside choices is taken out, unless the client requested it, since the relay sends its own.

Most events of one stream differ only in a short text. An event that begins and ends like an event that was read before,
and whose text is plain, passes unread. All other events are read as JSON, in whatever style the server writes it.

Some events do not reach the client: the usage chunk and `[DONE]` (the relay sends its own when the request's usage and
price are known), the `sglext` chunk that only the proxy requested, the chunk that ends an aborted choice, and an
engine's error with all events that follow it.
"""

from typing import Any, Final

from msgspec import Raw

from warmroute_proxy.dialects.call_numbers import MAX_CHOICES, CallNumbers, made_ids, renumbered
from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs
from warmroute_proxy.dialects.chunk_view import (
    ABSENT,
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
    without_usage,
)
from warmroute_proxy.dialects.event_reader import ERROR_EVENT, EventReader
from warmroute_proxy.dialects.work import MAX_CALLS, SMALL_BYTES, check_event

MAX_TEXT_BYTES: Final = ONE_TOKEN_BYTES  # length of the text in an event that passes unread

DIGITS: Final = b"0123456789"
_DONE: Final = b"[DONE]"
ABORT: Final = "abort"
ENDS_IN_TOOLS: Final = frozenset({"tool_calls", "function_call"})
"""Values of `finish_reason` for an answer that ends in tool calls."""

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C


class EventShape:
    """The bytes around the text of an event. If events of the shape state token counts, the digits after the text may
    differ, too.
    """

    __slots__ = ("counts", "head", "tail")

    def __init__(self, head: bytes, tail: bytes, *, counts: bool) -> None:
        """`counts`: the events state token counts. `tail`: includes the blank line; with `counts`, lacks the digits."""
        self.head = head
        self.tail = tail
        self.counts = counts

    def has(self, event: bytes) -> bool:
        """Whether an event has this shape, and a plain and short text."""
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
        "_keep_usage",
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

    def __init__(self, *, keep_sglext: bool, keep_usage: bool = True, rid: str = "") -> None:
        """`keep_sglext`: the client requested the `sglext` chunk, too. `keep_usage`: the client, or the translation to
        its API, reads usage in chunks with choices. `rid`: missing ids of calls are made from it.
        """
        self._rid = rid
        self._calls: dict[bytes, CallNumbers] = {}  # index of a choice -> its tool calls
        self._renumbers = False  # whether a call had a wrong number
        self._reader = EventReader()
        self._keep_sglext = keep_sglext
        self._keep_usage = keep_usage
        self.shape: EventShape | None = None
        """The newest shape of this stream's events, if one was found."""

        self.started = False
        """Whether an event with content was relayed. From then on, no other answer can replace this one."""

        self.tokens_seen = 0
        """A lower bound of the tokens that were streamed."""

        self._usage: dict[str, Any] | None = None
        self._counted = b""  # the newest event with a usage, if it passed unread
        self.usage_event: dict[str, Any] | None = None
        self.details: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.aborted = False
        self.called_tools = False
        """Whether a choice has ended in tool calls."""

        self.thoughts = ""
        """The name of the JSON member that has the model's reasoning."""

        self.ended_choices = 0
        """How many choices have ended with a `finish_reason`."""

        self.done = False

    @property
    def usage(self) -> dict[str, Any] | None:
        if self._counted:
            view, self._counted = read_view(_payload(self._counted)), b""
            self._usage = self._usage if view is None else view.reported()
        return self._usage

    @property
    def held_bytes(self) -> int:
        """How many bytes of an unfinished event wait for the rest of the event."""
        return len(self._reader.held)

    @property
    def passes(self) -> bool:
        """Whether `passes_whole` may be called for the next events."""
        is_under_way = self.started and not self.done and self.error is None
        return is_under_way and not self._reader.held and not self._renumbers

    def feed(self, data: bytes) -> bytes:
        """Read some bytes. Returns the bytes for the client. Raises: ValueError, if an event is too large."""
        if self.done:
            return b""
        return self._passed(self._reader.feed(data))

    def end(self) -> bytes:
        """Read the end of the stream, whose last event may lack its blank line. Returns the bytes for the client."""
        events = self._reader.end()
        return self._passed(
            [each for each in events if _payload(each) == _DONE or read_view(_payload(each)) is not None]
        )

    def passes_whole(self, events: bytes) -> bool:
        """Whether whole events have only content, so the client gets them as they are. If so, count their tokens."""
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
        """Whether an event has the shape of an event that was read before. If so, count one token."""
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
        """Read one event. Returns the bytes for the client."""
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
        if view is None:  # not a readable chunk, so the client has to handle it
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
        if not self._keep_usage and view.choices and view.reported() is not None:
            payload = without_usage(payload)
            event = b"data: %b\n\n" % payload
        return self._with_own_numbers(view, event, payload) if b'"tool_calls"' in event else event

    def _with_own_numbers(self, view: AnswerView, event: bytes, payload: bytes) -> bytes:
        """The chunk, changed to have numbers and ids by which clients can tell its tool calls apart."""
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
        """Whether a choice's pieces of tool calls may pass as they are. If so, later events of this shape may, too."""
        calls = self._calls_of(choice)
        return calls is not None and calls.passes(output["tool_calls"])

    def _calls_of(self, choice: ChoiceView) -> CallNumbers | None:
        """The tool calls of a choice; None if the stream has more choices than a client may request."""
        index = bytes(choice.index)
        calls = self._calls.get(index)
        if calls is None and len(self._calls) < MAX_CHOICES:
            calls = self._calls[index] = CallNumbers(made_ids(self._rid))
        return calls

    def _failed(self, error: object) -> None:
        self.error = self.error or (error if isinstance(error, dict) else {"message": str(error)})

    def _takes_view(self, view: AnswerView, event: bytes, payload: bytes) -> bool:
        """Record a chunk's usage, details and choices. Returns whether the client gets the chunk."""
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
        """Count the tokens of an event that goes to the client with its text in an unusual place."""
        tokens = tokens_elsewhere(payload) if self.error is None else 0
        if tokens:
            self.started = True
            self.tokens_seen += tokens

    def _takes_choices(self, choices: list[ChoiceView], event: bytes, *, counts: bool, payload: bytes) -> bool:
        for choice in choices:
            if choice.finish_reason == ABORT:
                self.aborted = True
                return False
            if choice.error is not ABSENT or choice.finish_reason is not None:
                fault = choice.fault()
                if fault is not None:
                    self._failed(fault)
                    return False
        if self.aborted:
            return True
        is_first = not self.started  # only the first chunk names a role, so no other chunk has its shape
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
            elif counts and not self._keep_usage:
                pass  # no later event of its shape may pass unread
            elif output and len(choices) == 1 and not is_first and not self._renumbers:
                self.shape = shape_of(event, output, counts=counts) or self.shape
        if self.tokens_seen == before:
            self._count_elsewhere(payload)
        return True


def shape_of(event: bytes, output: dict[str, Raw], *, counts: bool) -> EventShape | None:
    """The shape of an event with one unfinished choice; None unless the choice has exactly one plain text."""
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
    """The data of an event that `EventReader` has returned."""
    return event[len(ERROR_EVENT) if event.startswith(ERROR_EVENT) else 5 :].strip()
