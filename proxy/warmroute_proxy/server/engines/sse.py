"""Scans a stream for usage, end and errors. All other bytes go to the client as they came.

A read from the engine usually contains whole events without a marker. A few substring searches find that, and the read
is relayed unchanged. Only a read that contains a marker, or ends inside an event, is split into events. Markers are
JSON with bare quotes, which cannot occur inside a JSON string, so generated text never looks like a marker.

Withheld from the client: the usage chunk and `[DONE]` (the relay sends its own once the request is settled), the
`sglext` chunk that only the proxy requested, the chunk that ends an aborted choice, and an engine's error with whatever
follows it.
"""

from typing import Any, Final

import msgspec

MAX_EVENT_BYTES: Final = 16_777_216

_ABORT: Final = b'"abort"'
_MARKERS: Final = (b"[DONE]", b'"usage":{', b'"usage": {', b'"sglext"', b'"error"', _ABORT)
CALLED_TOOLS: Final = (b'"finish_reason":"tool_calls"', b'"finish_reason": "tool_calls"')
UNFINISHED: Final = b'"finish_reason":null'  # once for each choice with content in an event
_ROLE: Final = b'"role":"assistant"'
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class UsageTracker:
    """Reads one stream of chat or text completion chunks."""

    __slots__ = (
        "_carry",
        "_keep_sglext",
        "_last_read",
        "aborted",
        "called_tools",
        "content_events",
        "details",
        "done",
        "error",
        "started",
        "usage",
        "usage_event",
    )

    def __init__(self, *, keep_sglext: bool) -> None:
        """`keep_sglext`: the client has requested the details, too."""
        self._carry = b""
        self._last_read = b""
        self._keep_sglext = keep_sglext
        self.started = False
        """Whether an event with content was relayed. After that the answer cannot be replaced by another one."""
        self.content_events = 0
        """How many choices had content, over all events: a lower bound of the generated tokens."""
        self.usage: dict[str, Any] | None = None
        self.usage_event: dict[str, Any] | None = None
        self.details: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.aborted = False
        self.called_tools = False
        """Whether it ended in calls of tools, as far as the reads of its usage and the one before show."""
        self.done = False

    @property
    def passes(self) -> bool:
        """Whether the next whole events without a marker are relayed, whatever their content is."""
        return self.started and not self._carry and not self.done and self.error is None

    @property
    def lacks_its_end(self) -> bool:
        """Whether the unfinished event lacks only its blank line."""
        if not self._carry:
            return False
        payload = _payload(self._carry)
        try:
            return payload == b"[DONE]" or bool(_decode(payload))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False

    def feed(self, data: bytes) -> bytes:
        """Scan one read. Returns what the client gets. Raises: ValueError if an event is too long."""
        if self.done or self.error is not None:
            if self.error is not None:
                self._events(self._carry + data)  # usage may follow an error: it counts, but is not relayed
            return b""
        if self._carry:
            data = self._carry + data
        elif self.started and data.endswith(b"\n\n") and not has_marker(data):
            self._last_read = data
            self.content_events += data.count(UNFINISHED)  # whole events without a marker: almost every read
            return data
        if not self.called_tools:
            self.called_tools = ended_in_tools(self._last_read) or ended_in_tools(data)
            self._last_read = b""
        return self._flow(data) if self.started else self._begin(data)

    def _begin(self, data: bytes) -> bytes:
        """Scan event by event up to the first content, then as usual."""
        first = self._events(data, until_started=True)
        if self.started and self._carry and self.error is None:
            return first + self._flow(self._carry)
        return first

    def _flow(self, data: bytes) -> bytes:
        """Relay the whole events in front of the first marker unchanged, and scan the others one by one."""
        clean = _clean_bytes(data)
        self.content_events += data.count(UNFINISHED, 0, clean)
        self._carry = b""
        return data if clean == len(data) else data[:clean] + self._events(data[clean:])

    def _events(self, data: bytes, *, until_started: bool = False) -> bytes:
        """Scan event by event. An unfinished event is kept for the next read."""
        out: list[bytes] = []
        at = 0
        while (end := _event_end(data, at)) > 0:
            event = data[at:end]
            at = end
            if self._take(event):
                out.append(event)
            if until_started and self.started:
                break
        self._keep(data[at:])
        return b"".join(out)

    def _keep(self, rest: bytes) -> None:
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event exceeds {MAX_EVENT_BYTES} bytes")
        self._carry = rest

    def _take(self, event: bytes) -> bool:
        """Scan one event. Returns whether the client gets it."""
        if self.done:
            return False
        if has_marker(event):
            payload = _payload(event)
            if payload == b"[DONE]":
                self.done = True
                return False
            return self._take_marked(payload) and self.error is None
        if self.error is not None:
            return False
        if UNFINISHED in event:
            if _ROLE in event and not self.started and _is_role_only(event):
                return True
            self.content_events += event.count(UNFINISHED)
        if event.startswith(b"data:"):
            self.started = True
        return True

    def _take_marked(self, payload: bytes) -> bool:
        try:
            chunk = _decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError):
            # Relayed as it is: the client has to handle it.
            self.started = self.started or self.error is None
            return True
        error = chunk if chunk.get("object") == "error" else chunk.get("error")
        if error:
            self.error = self.error or (error if isinstance(error, dict) else {"message": str(error)})
            return False
        return self._take_accounts(chunk)

    def _take_accounts(self, chunk: dict[str, Any]) -> bool:
        usage, extension = chunk.get("usage"), chunk.get("sglext")
        if isinstance(usage, dict):
            self.usage = usage
        if isinstance(extension, dict) and isinstance(extension.get("cached_tokens_details"), dict):
            self.details = extension["cached_tokens_details"]
        if chunk.get("choices"):
            if _any_aborted(chunk["choices"]):
                self.aborted = True
                return False
            if not self.aborted and self.error is None:
                self.started = True
                self.content_events += 1
            return True
        if isinstance(usage, dict):
            self.usage_event = chunk
            return False
        return extension is None or self._keep_sglext


def has_marker(data: bytes) -> bool:
    """Whether `data` contains a marker. It is searched from the right: without a hit, CPython's search is twice
    as fast for one chunk, and four times for a burst.
    """
    rfind = data.rfind
    return (
        rfind(b'"usage":{') >= 0
        or rfind(b"[DONE]") >= 0
        or rfind(b'"sglext"') >= 0
        or rfind(b'"error"') >= 0
        or rfind(b'"abort"') >= 0
        or rfind(b'"usage": {') >= 0
    )


def ended_in_tools(data: bytes) -> bool:
    """Whether a chat completion or a chunk of one says that the model has called tools."""
    return data.rfind(CALLED_TOOLS[0]) >= 0 or data.rfind(CALLED_TOOLS[1]) >= 0


def was_aborted(answer: bytes) -> bool:
    """Whether a choice of a chat or text completion was aborted."""
    if answer.rfind(_ABORT) < 0:  # see `has_marker`
        return False
    try:
        choices = _decode(answer).get("choices")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return _any_aborted(choices)


def _any_aborted(choices: object) -> bool:
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices
    )


def _clean_bytes(data: bytes) -> int:
    """How many bytes of `data` are whole events in front of the first event with a marker."""
    first = len(data)
    for marker in _MARKERS:
        if data.rfind(marker, 0, first) >= 0:  # see `has_marker`
            first = data.find(marker, 0, first)
    last_end = data.rfind(b"\n\n", 0, first)
    return last_end + 2 if last_end >= 0 else 0


def _event_end(data: bytes, at: int) -> int:
    """Where the event that starts at `at` ends, its blank line included; 0 if it has not arrived whole."""
    plain = data.find(b"\n\n", at)
    with_cr = data.find(b"\r\n\r\n", at, plain) if plain >= 0 else data.find(b"\r\n\r\n", at)
    if with_cr >= 0:
        return with_cr + 4
    return plain + 2 if plain >= 0 else 0


def _payload(event: bytes) -> bytes:
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def _is_role_only(event: bytes) -> bool:
    """Whether it is SGLang's first chunk, which has the role and no content."""
    try:
        choices = _decode(_payload(event)).get("choices")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    for choice in choices if isinstance(choices, list) else []:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict) or any(value for name, value in delta.items() if name != "role"):
            return False
    return True
