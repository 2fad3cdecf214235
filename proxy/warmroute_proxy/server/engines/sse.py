"""The stream as it passes: usage, end and errors are picked out, all other bytes go through as they came.

A read from the engine usually holds whole events and nothing of interest: a few substring searches tell, and it is
relayed as it is. Only a read that holds a marker, or cuts an event in two, is split into events. Markers are JSON with
bare quotes, which cannot stand inside a JSON string, so text that an engine generates never looks like one.

Withheld from the client: the usage chunk and `[DONE]` (the relay sends its own once the turn is settled), the `sglext`
chunk that the proxy asked for, and an engine's error with whatever follows it.
"""

from typing import Any, Final

import msgspec

MAX_EVENT_BYTES: Final = 16_777_216

_ABORT: Final = b'"abort"'
_MARKERS: Final = (b"[DONE]", b'"usage":{', b'"usage": {', b'"sglext"', b'"error"', _ABORT)
UNFINISHED: Final = b'"finish_reason":null'  # once for each choice that an event has content of
_ROLE: Final = b'"role":"assistant"'
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Scanner:
    """Reads one stream of chat or text completion chunks."""

    __slots__ = (
        "_carry",
        "_keep_sglext",
        "aborted",
        "content_events",
        "details",
        "done",
        "error",
        "started",
        "usage",
        "usage_event",
    )

    def __init__(self, *, keep_sglext: bool) -> None:
        """`keep_sglext`: the client asked for the details itself."""
        self._carry = b""
        self._keep_sglext = keep_sglext
        self.started = False
        """Whether an event with content has passed: from then on nothing can be taken back."""
        self.content_events = 0
        """Choices in events that had content of them: a lower bound of the tokens generated."""
        self.usage: dict[str, Any] | None = None
        self.usage_event: dict[str, Any] | None = None
        self.details: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.aborted = False
        self.done = False

    @property
    def passes(self) -> bool:
        """Whether whole events without a marker, which come next, reach the client whatever they say."""
        return self.started and not self._carry and not self.done and self.error is None

    @property
    def lacks_its_end(self) -> bool:
        """Whether what waits for more is an event but for its blank line: no client could read a part of one."""
        if not self._carry:
            return False
        payload = _payload(self._carry)
        try:
            return payload == b"[DONE]" or bool(_decode(payload))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False

    def feed(self, data: bytes) -> bytes:
        """Take what was read from the engine, return what goes to the client; `ValueError`: an event never ends."""
        if self.done or self.error is not None:
            if self.error is not None:
                self._events(self._carry + data)  # usage may follow an error: it settles the row, and is not relayed
            return b""
        if self._carry:
            data = self._carry + data
        elif self.started and data.endswith(b"\n\n") and not has_marker(data):
            self.content_events += data.count(UNFINISHED)  # whole events and nothing of interest: almost every read
            return data
        return self._flow(data) if self.started else self._begin(data)

    def _begin(self, data: bytes) -> bytes:
        """Event by event up to the first content, then on as usual."""
        first = self._events(data, until_started=True)
        if self.started and self._carry and self.error is None:
            return first + self._flow(self._carry)
        return first

    def _flow(self, data: bytes) -> bytes:
        """Whole events without a marker pass as they are; only what follows is looked at one by one."""
        clean = _clean_bytes(data)
        self.content_events += data.count(UNFINISHED, 0, clean)
        self._carry = b""
        return data if clean == len(data) else data[:clean] + self._events(data[clean:])

    def _events(self, data: bytes, *, until_started: bool = False) -> bytes:
        """Take event by event; what is left of `data` is carried."""
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
        """Look at one event; whether the client gets it."""
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
            self.started = (
                self.started or self.error is None
            )  # not for us to judge: the client gets what the engine said
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
            self.aborted = self.aborted or _any_aborted(chunk["choices"])
            if not self.aborted and self.error is None:
                self.started = True
                self.content_events += 1
            return True
        if isinstance(usage, dict):
            self.usage_event = chunk
            return False
        return extension is None or self._keep_sglext


def has_marker(data: bytes) -> bool:
    """Whether anything of interest stands in `data`. From the right: where nothing is found, that is CPython's faster
    search, by twice for one chunk and by four times for a burst.
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


def was_aborted(answer: bytes) -> bool:
    """Whether a chat or text completion says of a choice that it was aborted."""
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
    """How much of `data` is whole events in front of the first one with a marker."""
    first = len(data)
    for marker in _MARKERS:
        if data.rfind(marker, 0, first) >= 0:  # see `has_marker`
            first = data.find(marker, 0, first)
    last = data.rfind(b"\n\n", 0, first)
    return last + 2 if last >= 0 else 0


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
    """SGLang's first chunk: the role, and nothing said yet."""
    try:
        choices = _decode(_payload(event)).get("choices")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    for choice in choices if isinstance(choices, list) else []:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict) or any(value for name, value in delta.items() if name != "role"):
            return False
    return True
