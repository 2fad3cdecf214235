"""The course of a call: prepared before it is sent, and watched until its usage is known. Both clients share it.

Nothing in here makes a call fail. Each step runs in a guard that counts an exception and continues without the step's
result. A call whose whole preparation failed is sent as openai would send it.
"""

import copy
import json
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from warmroute._books import Books, Turn
from warmroute._homes import Lineage, lineage_of
from warmroute._outgoing import (
    SERVERS,
    Identity,
    Server,
    body_of,
    identity_of,
    lower_headers,
    may_be_refusal,
    printable,
    session_headers,
    stream_options_with_usage,
)
from warmroute._session import checked_key, current
from warmroute._stream import observed
from warmroute._watch import Watch
from warmroute.contract import headers
from warmroute.contract.conversations import Conversation

MAX_HOME_CHARS: Final = 128
MAX_RECEIPT_ID_CHARS: Final = 128

_RAW_HEADER: Final = "x-stainless-raw-response"
"""openai's own mark on a call: `true` under `with_raw_response`, `stream` under `with_streaming_response`."""


class Call:
    """One call: what the caller gave, what is sent, and the watch over its answer (None for calls without usage)."""

    __slots__ = (
        "added_usage",
        "answered",
        "base_url",
        "conversation",
        "given",
        "sent",
        "server",
        "stream_cls",
        "tip",
        "watch",
    )

    def __init__(self, options: Any, stream_cls: Any) -> None:
        self.given = self.sent = options
        self.stream_cls = stream_cls
        self.base_url = ""
        self.server: Server | None = None
        self.added_usage = False
        self.watch: Watch | None = None
        self.answered = False
        self.conversation: Conversation | None = None
        self.tip = 0

    def continues(self, conversation: Conversation) -> None:
        """It names no session, and is the newest request of this conversation."""
        self.conversation = conversation
        self.tip = conversation.newest.tip

    def ended(self) -> None:
        """It has returned or failed. If it failed, the same call again is of the same conversation."""
        if self.conversation is not None and not self.answered:
            self.conversation.left_unanswered(self.tip)

    def retry_as_given(self, status: int) -> bool:
        """Whether to repeat a failed call as it was given, because the added field may be the reason."""
        if not self.added_usage or self.server is None or SERVERS.takes(self.server) or not may_be_refusal(status):
            return False
        self.added_usage = False
        if self.watch is not None:
            self.watch.turn.withhold = False
        return True

    def field_refused(self) -> None:
        """The repeated call succeeded, so this server refuses the added field."""
        if self.server is not None:
            SERVERS.learn(self.server, takes=False)


current_call: ContextVar[Call | None] = ContextVar("warmroute_call", default=None)
"""The call that openai's code handles now, from `request` to `_process_response`."""


class Observer:
    """Prepares the calls of one client and keeps its books, which its copies share."""

    def __init__(self, session: str | None) -> None:
        self.books = Books()
        self._default = None if session is None else checked_key(session)
        self._pinned: str | None = None

    def pinned(self, session: str | None) -> "Observer":
        """The observer of a `with_options()` copy."""
        twin = copy.copy(self)
        if session is not None:
            twin._pinned = checked_key(session)
        return twin

    def begin(self, client: Any, options: Any, *, stream: bool, stream_cls: Any) -> Call:
        """Prepare a call of `client`, with the arguments of openai's `request`."""
        call = Call(options, stream_cls)
        with self.books.guard():
            call.base_url = str(client.base_url)
            body = body_of(options.json_data, options.extra_json)
            caller = lower_headers(client._client.headers, client._custom_headers, options.headers)
            identity = self._identity(call, caller, body)
            completes = options.method.lower() == "post" and options.url.rstrip("/").endswith("/completions")
            prompt = lineage = None
            with self.books.guard():
                if completes and identity.key is not None:
                    prompt = self.books.read(body)
                    lineage = lineage_of(call.base_url, identity.key, caller, prompt)
            self._add_session(call, caller, identity, lineage)
            if completes:
                turn = Turn(session=identity.key, streamed=stream, lineage=lineage)
                call.watch = Watch(self.books, turn)
                self._request_usage(call, turn, caller, body)
                self._add_key(call, caller)
                with self.books.guard():
                    if prompt is not None:
                        self.books.compare(turn, prompt, body)
        return call

    def answered(self, call: Call | None, response: Any) -> None:
        """A call succeeded. `response` has been read unless it is a stream."""
        if call is None:
            return
        call.answered = True
        if call.watch is None:
            return
        with self.books.guard():
            turn = call.watch.turn
            call.watch.attach(response)
            if call.added_usage and call.server is not None:
                SERVERS.learn(call.server, takes=True)
            home = printable(response.headers.get(headers.HOME), MAX_HOME_CHARS)
            receipt_id = printable(response.headers.get(headers.RECEIPT), MAX_RECEIPT_ID_CHARS)
            self.books.answered(turn, home, receipt_id)
            if not turn.streamed and response.request.headers.get(_RAW_HEADER) == "true":
                call.watch.observe(_json(response.content))  # the caller may never parse it

    def _identity(self, call: Call, caller: Mapping[str, object], body: Mapping[str, Any]) -> Identity:
        with self.books.guard():
            named = identity_of(self._pinned or current() or self._default, caller, body)
            return named or self._derived(call, body)
        return Identity(None, None, False)

    def _add_session(
        self, call: Call, caller: Mapping[str, object], identity: Identity, lineage: Lineage | None
    ) -> None:
        """Send the session with a call, and the home of its lineage."""
        with self.books.guard():
            added = session_headers(identity, self.books.home(lineage), caller)
            if added:
                given = call.given.headers if isinstance(call.given.headers, Mapping) else {}
                sent = copy.copy(call.given)
                sent.headers = {**given, **added}
                call.sent = sent

    def _derived(self, call: Call, body: Mapping[str, Any]) -> Identity:
        """The identity of a call that names none: that of its conversation."""
        conversation = self.books.conversation(body)
        if conversation is None:
            return Identity(None, None, False)
        call.continues(conversation)
        return Identity(conversation.key, conversation.key, True)

    def _request_usage(self, call: Call, turn: Turn, caller: Mapping[str, object], body: Mapping[str, Any]) -> None:
        """Request usage where the answer is a stream that can withhold it, and the caller did not set the option."""
        with self.books.guard():
            ours = observed(call.stream_cls) if turn.streamed else None
            if ours is None:
                return
            call.stream_cls = ours
            call.server = Server(call.base_url, str(body.get("model")))
            in_extra = isinstance(call.given.extra_json, Mapping) and "stream_options" in call.given.extra_json
            wanted = stream_options_with_usage(body, in_extra=in_extra)
            reads_bytes = caller.get(_RAW_HEADER) == "stream"
            if wanted is None or reads_bytes or SERVERS.takes(call.server) is False:
                return
            sent = copy.copy(call.sent)
            sent.json_data = {**call.given.json_data, "stream_options": wanted}
            call.sent = sent
            call.added_usage = turn.withhold = True

    def _add_key(self, call: Call, caller: Mapping[str, object]) -> None:
        """Give the call an idempotency key of its own, which openai sends with each of its retries."""
        with self.books.guard():
            if headers.IDEMPOTENCY not in caller:
                given = call.sent.headers if isinstance(call.sent.headers, Mapping) else {}
                sent = copy.copy(call.sent)
                sent.headers = {**given, headers.IDEMPOTENCY: call.given.idempotency_key or secrets.token_hex(16)}
                call.sent = sent


def _json(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None
