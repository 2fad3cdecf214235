"""Prepares each call before it is sent, and watches it until its usage is known.

Nothing in this module makes a call fail, except `guard="raise"`. Each step runs in a *shelter*, a block that counts an
exception and continues without the step's result. If the whole preparation fails, the call is sent as the client's
library would send it.
"""

import copy
import secrets
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from warmroute._backends import WARMROUTE, backend_of, home_of, signal
from warmroute._books import Books
from warmroute._guard import Guard, Mode, PrefixBroken
from warmroute._outgoing import (
    SERVERS,
    USAGE_FIELD,
    Identity,
    Server,
    added_signal,
    body_of,
    identity_of,
    lower_headers,
    printable,
    stream_options_with_usage,
)
from warmroute._session import Named, checked_key, current, purpose
from warmroute._turns import Turn
from warmroute._warm import Ahead, ahead_of, turns_ahead
from warmroute._watch import Watch
from warmroute.contract import headers
from warmroute.contract.conversations import Conversation
from warmroute.contract.homes import lineage_of
from warmroute.contract.money import NANO_PER_USD
from warmroute.contract.providers import Provider
from warmroute.guard.outcome import Keeping

# Opt-in telemetry: a span for each turn.
#
# Attributes with names that begin with `gen_ai` are those of OpenTelemetry's semantic conventions 1.40
# (opentelemetry.io/docs/specs/semconv/gen-ai); the others are warmroute's. No attribute has text of a prompt.


class Telemetry:
    """Sends a span for each turn to the tracer provider of the program."""

    def __init__(self) -> None:
        """Raises: ImportError that says what to install, if OpenTelemetry's API is missing."""
        try:
            trace: Any = import_module("opentelemetry.trace")
            propagation: Any = import_module("opentelemetry.trace.propagation.tracecontext")
        except ImportError:
            raise ImportError("telemetry=True needs OpenTelemetry: pip install 'warmroute[telemetry]'") from None
        self._tracer = trace.get_tracer("warmroute")
        self._trace = trace
        self._propagator = propagation.TraceContextTextMapPropagator()

    def begun(self, turn: Turn) -> dict[str, str]:
        """Begin the span of a turn, and return the headers with which the server continues its trace."""
        carrier: dict[str, str] = {}
        kind = self._trace.SpanKind.CLIENT
        turn.span = self._tracer.start_span(f"chat {turn.model}", kind=kind, start_time=turn.begun_ns)
        self._propagator.inject(carrier, self._trace.set_span_in_context(turn.span))
        return carrier

    def ended(self, turn: Turn) -> None:
        """End the span of a turn, with the status of an error if its call failed. Later calls do nothing."""
        span, turn.span = turn.span, None
        if span is not None:
            span.set_attributes(attributes_of(turn))
            if turn.failed:
                span.set_status(self._trace.StatusCode.ERROR)
            span.end(end_time=time.time_ns())


def attributes_of(turn: Turn) -> dict[str, str | int | float]:
    """The span's attributes for a turn, without attributes whose value is unknown."""
    found: dict[str, object] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": turn.model,
        "gen_ai.conversation.id": turn.session,
    }
    if (measured := turn.measured) is not None:
        found["gen_ai.usage.input_tokens"] = measured.prompt_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = measured.cached_tokens
        found["gen_ai.usage.output_tokens"] = measured.completion_tokens
        found["warmroute.receipt.id"] = turn.receipt_id
        found["warmroute.region"] = measured.region
        if (amounts := measured.amounts_nanousd) is not None:
            found["warmroute.cost_usd"] = amounts.cost / NANO_PER_USD
            found["warmroute.saved_usd"] = amounts.saved / NANO_PER_USD
    checked = turn.checked
    event = checked.event if checked is not None and checked.event is not None else turn.miss
    if event is not None:
        found["warmroute.guard.cause"] = str(event.cause)
        found["warmroute.guard.where"] = event.where
        found["warmroute.guard.tokens_lost"] = event.tokens_lost
    if checked is not None and checked.repairs:
        found["warmroute.guard.repaired_by"] = str(checked.repairs[0].repaired_by)
    return {name: value for name, value in found.items() if isinstance(value, (str, int, float))}


MAX_HOME_CHARS: Final = 128
MAX_RECEIPT_ID_CHARS: Final = 128

EXPECT_PATH: Final = "/sessions/expect"
EXPECT_TIMEOUT_S: Final = 5.0
_TURNS: Final = ("/completions", "/messages", "/responses")

_RAW_HEADER: Final = "x-stainless-raw-response"
"""openai's own mark on a call: `stream` under `with_streaming_response`."""


@dataclass(slots=True, eq=False)
class Call:
    """One call. `given`: the caller's options; `sent`: the options to send."""

    given: Any
    sent: Any
    stream_cls: Any
    base_url: str = ""
    backend: Provider | None = None
    added: tuple[Server, ...] = ()
    """The body fields that the SDK added for this server, which may refuse them."""
    refused: tuple[Server, ...] = ()
    """Those of them for which the server may have refused the call."""
    watch: Watch | None = None
    """None if the call has no usage."""
    answered: bool = False
    read: Any = None
    """The response, if its body was read before the library parsed it."""
    conversation: Conversation | None = None
    tip: int = 0

    def add_headers(self, added: Mapping[str, str]) -> None:
        """Send headers besides those of the caller."""
        given = self.sent.headers if isinstance(self.sent.headers, Mapping) else {}
        self._own_options()
        self.sent.headers = {**given, **added}

    def add_fields(self, added: Mapping[str, Any]) -> None:
        """Send body fields besides the caller's, or in their place."""
        given = self.sent.json_data if isinstance(self.sent.json_data, Mapping) else {}
        self._own_options()
        self.sent.json_data = {**given, **added}

    def offer_field(self, name: str, value: Any, model: str) -> bool:
        """Send a body field that servers may refuse, unless this one has, or the body is bytes of the caller. Returns
        whether the field is sent.
        """
        server = Server(self.base_url, model, name)
        if self.given.json_data is None or SERVERS.takes(server) is False:
            return False
        self.add_fields({name: value})
        self.added += (server,)
        return True

    def _own_options(self) -> None:
        """Copy the caller's options before the first change: the caller may use them again."""
        if self.sent is self.given:
            self.sent = copy.copy(self.given)

    def continues(self, conversation: Conversation) -> None:
        """Note the conversation whose newest request is this call, which names no session."""
        self.conversation = conversation
        self.tip = conversation.newest.tip

    def ended(self) -> None:
        """Note that the call has returned or failed. If it failed, a repetition continues the call's conversation."""
        if self.watch is not None and not self.answered:
            self.watch.turn.failed = True
            self.watch.finished()
        elif self.watch is not None and self.read is not None and self.watch.usage is None:
            self.watch.read(self.read)  # the library has not parsed it
        if self.conversation is not None and not self.answered:
            self.conversation.left_unanswered(self.tip)

    def retry_as_given(self, status: int, text: str = "") -> bool:
        """Whether to repeat a failed call without the fields that the SDK added: they may be the reason.

        `text`: the server's error. If it names some of the fields, the others are not held to be refused.
        """
        unknown = tuple(server for server in self.added if status in server.refusals and not SERVERS.takes(server))
        if not unknown:
            return False
        self.added = ()
        self.refused = tuple(server for server in unknown if server.field in text) or unknown
        if self.watch is not None:
            self.watch.turn.withhold = False
        return True

    def field_refused(self) -> None:
        """Remember that this server refuses the added fields, since the repeated call succeeded without them."""
        for server in self.refused:
            SERVERS.learn(server, takes=False)


current_call: ContextVar[Call | None] = ContextVar("warmroute_call", default=None)
"""The call that openai's code handles now, from `request` to `_process_response`."""


def is_turn_path(path: str) -> bool:
    """Whether a POST to a path computes a prompt, unlike a message for a thread of OpenAI's Assistants."""
    return path.rstrip("/").endswith(_TURNS) and "/threads/" not in path


def options_of(url: str, headers: Mapping[str, Any], json_data: Mapping[str, Any]) -> Any:
    """A call that computes a prompt in the form of openai's options, with the members that `Observer.begin` reads."""
    return SimpleNamespace(method="post", url=url, headers=headers, json_data=json_data, extra_json=None)


class Callers(NamedTuple):
    """The calls that `client.cache` makes. Results of an asynchronous client have to be awaited."""

    get: Callable[[str], Any]
    """Takes a path, and returns the answer of a GET."""
    ahead: dict[str, Ahead]
    """Methods that compute prompts, by the argument that takes the prompt."""
    expect: Callable[[str | None, str], Callable[[], Any] | None]
    """Takes a session (None: the session of calls made now) and a value of `x-warmroute-expect`, and returns a call
    that sends session and value. Returns None if the server is not warmroute; `ValueError` if there is no session."""


class Observer:
    """Prepares the calls of one client, and keeps what they showed in `Books`, which the client's copies share."""

    def __init__(
        self, session: str | None, guard: Guard, backend: str | None = None, *, telemetry: bool = False
    ) -> None:
        self._telemetry = Telemetry() if telemetry else None
        self.books = Books(guard, self._telemetry.ended if self._telemetry else None)
        self._default = None if session is None else checked_key(session)
        self._pinned: str | None = None
        self._backend = backend
        backend_of(backend, "")  # raises ValueError for an unknown name

    def pinned(self, session: str | None) -> "Observer":
        """The observer of a client's `with_options()` copy, all of whose calls have this session."""
        twin = copy.copy(self)
        if session is not None:
            twin._pinned = checked_key(session)
        return twin

    def callers(self, client: Any) -> Callers:
        """The calls that `client.cache` makes."""
        base_url = str(client.base_url)
        backend = backend_of(self._backend, base_url)
        root = "" if hasattr(type(client), "chat") else "/v1"  # anthropic's own paths begin with the version

        def expect(session: str | None, word: str) -> Callable[[], Any] | None:
            key = self._named() if session is None else checked_key(session)
            if key is None:
                raise ValueError("no session: name it, or call inside its session() block")
            if backend is not WARMROUTE:
                return None
            named = {headers.AFFINITY: key, headers.EXPECT: word}
            given = {"headers": named, "timeout": EXPECT_TIMEOUT_S, "max_retries": 0}
            return lambda: client.post(root + EXPECT_PATH, cast_to=type(None), options=given)

        return Callers(lambda path: client.get(root + path, cast_to=object), ahead_of(client, backend), expect)

    def has(self, session: str | None, guard: Guard, backend: str | None, base_url: str) -> bool:
        """Whether these options, as far as they are not the defaults, are those of the observer."""
        mine = self.books.guard
        return (
            session in (None, self._pinned or self._default)
            and guard.mode in (Mode.WARN, mine.mode)
            and guard.rules in ((), mine.rules)
            and (backend is None or backend_of(backend, base_url) is backend_of(self._backend, base_url))
        )

    def _named(self) -> str | None:
        block = current()
        return self._pinned or (block.key if block else None) or self._default

    def named_headers(self, client: Any) -> dict[str, str]:
        """The session headers for a connection that carries many turns; empty if the program has named no session."""
        named = self._named()
        if named is None:
            return {}
        backend = backend_of(self._backend, str(client.base_url))
        caller = lower_headers(client._client.headers, client._custom_headers)
        identity = identity_of(named, caller, {})
        if identity is None or identity.header is None:
            return {}
        found = signal(backend, identity.header, derived=False, home=None, parent=None)
        return {name: value for name, value in found.headers.items() if name not in caller}

    def begin(self, client: Any, options: Any, *, stream: bool, stream_cls: Any, repeats: bool = False) -> Call:
        """Prepare a call of `client`, with the arguments of its library's `request`. `repeats`: whether the library
        sends the call's headers with each retry, so that an idempotency key helps.
        """
        call = Call(options, options, stream_cls)
        with self.books.shelter():
            call.base_url = str(client.base_url)
            call.backend = backend_of(self._backend, call.base_url)
            body = body_of(options.json_data, options.extra_json)
            caller = lower_headers(client._client.headers, client._custom_headers, options.headers)
            turn = Turn(session=None, streamed=stream, model=str(body.get("model")))
            turn.keeping = Keeping(call.backend.ttl_s, call.backend.min_tokens)
            if (ahead := turns_ahead.get()) is not None:
                turn.ahead = True
                ahead.append(turn)
            is_turn = options.method.lower() == "post" and is_turn_path(options.url.partition("?")[0])
            identity = self._identify(call, turn, caller, body, is_turn=is_turn)
            if is_turn:
                turn.session = identity.key
                turn.lineage = _of_block(identity.key, current())
                call.watch = Watch(self.books, turn)
                self._request_usage(call, turn, caller, body)
                if repeats:
                    self._add_key(call, caller)
                self._add_trace(call, turn, caller)
                self._guard(call, turn, body)
        return call

    def _guard(self, call: Call, turn: Turn, body: Mapping[str, Any]) -> None:
        """Have the guard compare the prompt. If the guard repaired the prompt, the repaired one is sent."""
        try:
            with self.books.shelter():
                found = self.books.check(turn, body)
                if found is not body:
                    changed = {name: value for name, value in found.items() if body.get(name) is not value}
                    call.add_fields(changed)
        except PrefixBroken:
            call.ended()
            raise

    def answered(self, call: Call | None, response: Any) -> None:
        """Note the head of a successful answer."""
        if call is None:
            return
        call.answered = True
        if call.watch is None:
            return
        with self.books.shelter():
            turn = call.watch.turn
            call.watch.attach(response)
            call.read = response if response.is_closed else None
            for server in call.added:
                SERVERS.learn(server, takes=True)
            home = printable(home_of(call.backend, response.headers) if call.backend else None, MAX_HOME_CHARS)
            receipt_id = printable(response.headers.get(headers.RECEIPT), MAX_RECEIPT_ID_CHARS)
            self.books.answered(turn, home, receipt_id)

    def _identify(
        self, call: Call, turn: Turn, caller: Mapping[str, object], body: Mapping[str, Any], *, is_turn: bool
    ) -> Identity:
        """Add the session to a call. A call that is not a turn gets only headers, and only those of a named session."""
        identity = Identity(None, None, False)
        assert call.backend is not None
        with self.books.shelter():
            block = current()
            named = identity_of(self._named(), caller, body)
            identity = named or (self._derived(call, turn, body) if is_turn else identity)
            turn.at = lineage_of(call.base_url, identity.key, caller, body)
            home = self.books.home(turn.at)
            parent = block.parent if block and block.key == identity.key else None
            key = identity.header
            found = signal(call.backend, key, derived=identity.derived, home=home, parent=parent)
            added = added_signal(identity, found, caller, body)
            if added.headers:
                call.add_headers(added.headers)
            if call.backend is WARMROUTE and block is not None and block.key == identity.key:
                call.add_headers({name: value for name, value in purpose(block).items() if name not in caller})
            if is_turn:
                for name, value in added.fields.items():
                    call.offer_field(name, value, turn.model)
        return identity

    def _derived(self, call: Call, turn: Turn, body: Mapping[str, Any]) -> Identity:
        """The identity of a call that names no session: the key of the conversation that it continues."""
        conversation = self.books.conversation(turn, body)
        if conversation is None:
            return Identity(None, None, False)
        call.continues(conversation)
        return Identity(conversation.key, conversation.key, True)

    def _request_usage(self, call: Call, turn: Turn, caller: Mapping[str, object], body: Mapping[str, Any]) -> None:
        """Request usage if the answer is a stream that may lack it, and the caller did not set the option."""
        with self.books.shelter():
            ours = _observed(call.stream_cls) if turn.streamed else None
            if ours is None:
                return
            call.stream_cls = ours
            in_extra = isinstance(call.given.extra_json, Mapping) and "stream_options" in call.given.extra_json
            wanted = stream_options_with_usage(body, in_extra=in_extra)
            reads_bytes = caller.get(_RAW_HEADER) == "stream"
            if wanted is None or reads_bytes:
                return
            if not call.given.url.rstrip("/").endswith("/completions"):
                return  # streams of the other APIs always have their usage
            turn.withhold = call.offer_field(USAGE_FIELD, wanted, turn.model)

    def _add_key(self, call: Call, caller: Mapping[str, object]) -> None:
        """Give the call an idempotency key."""
        with self.books.shelter():
            if headers.IDEMPOTENCY not in caller and call.backend is WARMROUTE:
                call.add_headers({headers.IDEMPOTENCY: call.given.idempotency_key or secrets.token_hex(16)})

    def _add_trace(self, call: Call, turn: Turn, caller: Mapping[str, object]) -> None:
        """Begin the turn's span, and let the proxy continue its trace, unless the caller sends a `traceparent`."""
        with self.books.shelter():
            if self._telemetry is not None:
                added = self._telemetry.begun(turn)
                if call.backend is WARMROUTE and "traceparent" not in caller:
                    call.add_headers(added)


def _observed(stream_cls: Any) -> Any:
    """The observed class for a stream class of openai; None for any other, without importing openai."""
    if not str(getattr(stream_cls, "__module__", "")).startswith("openai"):
        return None
    from warmroute._stream import observed

    return observed(stream_cls)


def _of_block(key: str | None, block: Named | None) -> str:
    """The key under which prompts are compared: the session, with kind and agent of its `session()` block."""
    if key is None or block is None or block.key != key or (block.kind == "main" and block.agent is None):
        return key or ""
    return f"{key} {block.kind} {block.agent or ''}"
