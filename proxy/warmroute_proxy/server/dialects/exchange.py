"""The exchange of a translated request: translates chat's answer into the client's dialect."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from warmroute.contract import headers as names
from warmroute_proxy.dialects.chat_answers import read_error
from warmroute_proxy.server.base.errors import UNREADABLE, Refusal, error_body
from warmroute_proxy.server.dialects.dialect import Dialect, Events, Headers, Translated
from warmroute_proxy.server.http.exchange import Exchange, Problem, Request

log = logging.getLogger(__name__)

_LINE_FEED: Final = 0x0A  # an integer: to find a bytes object takes CPython five times as long
_MANY: Final = 4096
_SIZES: Final = [b"%x\r\n" % size for size in range(_MANY)]  # a look-up takes a third of the time of formatting
_STEP_BYTES: Final = 16_384  # bytes of a stream between two checks of how much its translator keeps
_PREFIX: Final = "wr-"  # begins a receipt's id


class DialectExchange(Exchange):
    """Stands between a chat request and the exchange that sends to the client.

    To the request it looks like a client of chat, and to the client's exchange it looks like the request.
    """

    def __init__(self, client: Exchange, chat: Request, dialect: Dialect, found: Translated) -> None:
        """`chat`: the translated request; `found`: the translator of its answer."""
        self.request = chat
        self.translates = True  # set on the instance: compiled code does not see a subclass's attribute
        self.started = False
        self.ended = False
        self._client = client
        self._dialect = dialect
        self._found = found
        self._events: Events | None = None
        self._uncounted_bytes = 0  # bytes that came since the last check of what the translator keeps
        self._reserved_bytes = 0  # memory reserved for what the translator keeps
        self._problem: Problem | None = None  # why a part of the answer could not be translated
        client.on_gone = self._gone
        client.on_pause = self._pause

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        if self.ended:
            return
        headers = list(headers)
        receipt_id = _receipt_id(headers)
        answer = None
        if status == 200:
            answer = self._answer(receipt_id, body)
            status, body = (200, body) if answer is not None else (502, error_body(502, UNREADABLE, "engine_error"))
        self._finish()
        dialect = self._dialect
        if answer is None:
            error = read_error(body)
            answer = dialect.error(status, error.message, error.code, error.param)
        self._client.respond(dialect.status(status), dialect.headers(headers, receipt_id), answer)

    def answer(self, lines: bytes, body: bytes) -> None:
        """Send a whole answer with status 200. `lines`: its headers."""
        pairs = [line.partition(": ") for line in lines.decode("latin-1").split("\r\n")[:-1]]
        self.respond(200, [(name, value) for name, _, value in pairs], body)

    def start(self, status: int, headers: Headers, data: bytes = b"") -> None:
        headers = list(headers)
        self.started = True
        receipt_id = _receipt_id(headers)
        self._events = self._found.events(receipt_id.removeprefix(_PREFIX))
        typed = [(name, self._found.stream_type if name == "content-type" else value) for name, value in headers]
        self._client.start(status, self._dialect.headers(typed, receipt_id))
        self.write(data)

    def write(self, data: bytes) -> None:
        if data and not self.ended:
            self._client.write(self._translated(data))

    def passthrough_target(self) -> Callable[[bytes], None] | None:
        target = self._client.passthrough_target()
        if self.ended or self._events is None or target is None:
            return None
        return partial(self._pass_bare if self._client.takes_bare else self._pass, target)

    def _pass(self, target: Callable[[bytes], None], data: bytes) -> None:
        at = data.find(_LINE_FEED) + 1
        whole = at + int(data[: at - 2], 16) + 2 == len(data)  # usually `data` is one chunk
        translated = self._translated(data[at:-2] if whole else unframed(data))
        if translated and not self.ended:
            size = len(translated)
            target(b"".join((_SIZES[size] if size < _MANY else b"%x\r\n" % size, translated, b"\r\n")))

    def _pass_bare(self, target: Callable[[bytes], None], data: bytes) -> None:
        translated = self._translated(unframed(data))
        if translated and not self.ended:
            target(translated)

    def end(self, data: bytes = b"") -> None:
        if self.ended:
            return
        rest = self._translated(data)
        ends_well = self._events is not None and self._events.ended
        self._finish()
        if ends_well:
            self._client.end(rest)
        else:
            self._client.abort(rest)

    def unreadable(self, answer: bytes | None) -> Problem | None:
        """The reason why an answer cannot be translated; None if it can. The request asks before it charges the turn.

        `answer`: a whole answer; None for the stream so far.
        """
        if self._problem is not None:
            return self._problem
        try:
            if answer is not None:
                self._found.answer(answer, "")
            elif self._events is not None and not self.ended:
                self._events.check()
        except ValueError as error:
            return str(error)
        return None

    def abort(self, data: bytes = b"") -> None:
        """End an incomplete stream. If its last event reports the failure, the connection is closed normally: a client
        that reads past that event would mistake a broken connection for another failure.
        """
        self.end(data)

    def _answer(self, receipt_id: str, body: bytes) -> bytes | None:
        try:
            return self._found.answer(body, receipt_id.removeprefix(_PREFIX))
        except ValueError as error:
            log.error("an answer could not be translated: %s", error)
            return None

    def _translated(self, data: bytes) -> bytes:
        """Translate the next bytes of a stream into the dialect's events. If that fails, the last event is an error."""
        events = self._events
        if events is None or events.ended or not data:
            return b""
        self._uncounted_bytes += len(data)
        if self._uncounted_bytes > _STEP_BYTES and (refusal := self._reserve(events)) is not None:
            return self._break_off(events, refusal, refusal)
        try:
            return events.feed(data)
        except ValueError as error:
            return self._break_off(events, str(error), Refusal(502, UNREADABLE, code="engine_error"))

    def _reserve(self, events: Events) -> Refusal | None:
        """Reserve memory for what the translator keeps and for the uncounted bytes. Returns a refusal if that fails.

        The memory is released together with the request's.
        """
        reservation = self.request.body_reservation
        if reservation is None:
            return None
        kept_bytes, self._uncounted_bytes = events.gathered_bytes() + self._uncounted_bytes, 0
        more = kept_bytes - self._reserved_bytes
        if more <= 0:
            return None
        if not reservation.add_answer(more):
            return reservation.refusal()
        self._reserved_bytes = kept_bytes
        return None

    def _break_off(self, events: Events, problem: Problem, refusal: Refusal) -> bytes:
        self._problem = problem
        asyncio.get_running_loop().call_soon(self._report)
        return events.error(refusal.status, refusal.message, refusal.code)

    def _report(self) -> None:
        """Tell the request about the problem. Runs from the event loop, once the caller has returned."""
        if self.on_unreadable is not None and self._problem is not None:
            self.on_unreadable(self._problem)

    def _finish(self) -> None:
        self.started = self.ended = True
        self.on_gone = self.on_pause = self.on_unreadable = None

    def _gone(self) -> None:
        self.ended = True
        self.client_left = self._client.client_left
        on_gone, self.on_gone, self.on_pause, self.on_unreadable = self.on_gone, None, None, None
        if on_gone is not None:
            on_gone()

    def _pause(self, paused: bool) -> None:
        if self.on_pause is not None:
            self.on_pause(paused)


def _receipt_id(headers: list[tuple[str, str]]) -> str:
    """The id of the answer's receipt, empty if it has none."""
    return next((value for name, value in headers if name == names.RECEIPT), "")


def unframed(data: bytes) -> bytes:
    found, begins = [], 0
    while begins < len(data):
        at = data.index(b"\r\n", begins) + 2
        end = at + int(data[begins : at - 2], 16)
        found.append(data[at:end])
        begins = end + 2
    return b"".join(found)
