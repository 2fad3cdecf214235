"""The answer to a client: its headers, its stream or body, or an error in the form that still fits."""

from typing import Any, Final

import msgspec

from warmroute.contract import headers as names
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.base.errors import Refusal, error_event
from warmroute_proxy.server.engines.passthrough import Write
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.http.exchange import Exchange, Problem
from warmroute_proxy.server.intake.parsed_request import COMPLETIONS, ParsedRequest
from warmroute_proxy.server.request.answer import Answer
from warmroute_proxy.server.stores.limits.request_limits import RequestLimits

EVENTS: Final = "text/event-stream; charset=utf-8"
_COMMENT: Final = b": the prompt is being computed\n\n"


class AnswerHeaders:
    """Makes the headers of answers: the receipt's id, the region, and what is left of a tenant's limits."""

    def __init__(self, region: str, limits: RequestLimits) -> None:
        home = region.encode("latin-1", "replace").replace(b"%", b"%%")
        self._region = region
        self._limits = limits
        self._of_whole = (
            f"content-type: application/json\r\n{names.RECEIPT}: %b\r\n{names.HOME}: ".encode() + home + b"\r\n"
        )

    def of_whole(self, receipt_id: str, parsed: ParsedRequest) -> bytes:
        lines = self._of_whole % receipt_id.encode()
        if parsed.tenant.limits is None:
            return lines
        left = self._limits.sent_headers(parsed)
        return lines + "".join([f"{name}: {value}\r\n" for name, value in left]).encode()

    def of(self, content_type: str, receipt_id: str, parsed: ParsedRequest) -> list[tuple[str, str]]:
        """The headers of a stream, or of an error of a request that has a receipt."""
        headers = [("content-type", content_type), (names.RECEIPT, receipt_id), (names.HOME, self._region)]
        if content_type == EVENTS:
            headers.append(("cache-control", "no-cache"))
        if parsed.tenant.limits is not None:
            headers += self._limits.sent_headers(parsed)
        return headers


class ClientAnswer:
    def __init__(self, exchange: Exchange, headers: AnswerHeaders, parsed: ParsedRequest, receipt_id: str) -> None:
        self.exchange = exchange
        self.receipt_id = receipt_id
        self._headers = headers
        self._parsed = parsed

    def begin(self) -> None:
        """Send the head of a stream, unless it was sent."""
        if not self.exchange.started:
            self.exchange.start(200, self._headers.of(EVENTS, self.receipt_id, self._parsed))

    def comment(self) -> None:
        self.write(_COMMENT)

    def write(self, data: bytes) -> None:
        if self.exchange.started:
            self.exchange.write(data)
        else:
            self.exchange.start(200, self._headers.of(EVENTS, self.receipt_id, self._parsed), data)

    def passthrough_target(self) -> Write | None:
        return self.exchange.passthrough_target()

    def unreadable(self, answer: Answer | None) -> Problem | None:
        """Why `answer`, or the stream so far if it is None, cannot be expressed in the client's API; None if it can."""
        exchange = self.exchange
        if not exchange.translates:
            return None
        return exchange.unreadable(None if answer is None else answer.choices())

    def end(self, answer: Answer | None, scanner: UsageTracker, entry: Entry) -> None:
        """End a stream with its last chunk and `[DONE]`, or send a whole `answer`. Called when the ledger row is
        durable."""
        parsed = self._parsed
        if answer is not None:
            body = answer.settled(entry.usage, keep_sglext=parsed.keep_sglext)
            self.exchange.answer(self._headers.of_whole(self.receipt_id, parsed), body)
            return
        tail = b"data: [DONE]\n\n"
        if parsed.include_usage:
            tail = usage_event(scanner, entry, parsed.keep_sglext) + tail
        self.exchange.end(tail)

    def refuse(self, refusal: Refusal, *, has_receipt: bool) -> None:
        """Send an error: as an event if the stream has begun, else as the answer."""
        self._parsed.left_unanswered()
        if self.exchange.started:  # the head was sent, so no header can say when to retry
            message, after_s = refusal.message, refusal.retry_after_s
            if after_s is not None and "try again" not in message:
                message = f"{message}; try again in {after_s} s"
            self.exchange.abort(error_event(refusal.status, message, refusal.code))
            return
        headers = self._headers.of("application/json", self.receipt_id, self._parsed) if has_receipt else []
        self.exchange.refuse(refusal, headers)


def usage_event(scanner: UsageTracker, entry: Entry, keep_sglext: bool) -> bytes:
    """The usage chunk of the engine, with the settled usage in place of the engine's."""
    event: dict[str, Any] = dict(scanner.usage_event or _usage_chunk(entry))
    if not keep_sglext:
        event.pop("sglext", None)
    event["usage"] = entry.usage
    if isinstance(groq := event.get("x_groq"), dict):
        event["x_groq"] = {name: value for name, value in groq.items() if name != "usage"}
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def _usage_chunk(entry: Entry) -> dict[str, Any]:
    """A usage chunk for an engine that has written none."""
    kind = "text_completion" if entry.route == COMPLETIONS else "chat.completion.chunk"
    return {"id": entry.id, "object": kind, "created": int(entry.opened_at), "model": entry.model, "choices": []}
