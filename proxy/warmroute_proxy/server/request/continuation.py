"""Continues a broken-off answer at another engine, for models whose operator allows it (`[[model]] continue_broken`).

`Continuation` gathers the text that the client was sent, as long as another engine could go on from it. If the engine
dies, the proxy sends the client's request to another engine, with this text added as the beginning of the answer. In a
chat, the text is added as a last message of the assistant, which SGLang appends to the prompt unchanged
(`continue_final_message`). In a completion, the text is added to the end of the prompt.

An engine can go on only from text. Clients do not get all that the model wrote of a tool call or of reasoning, so an
answer with either is not continued. An answer that has ended is not continued either, nor is one that depends on more
than the text so far, such as an answer with a grammar, with probabilities of all tokens, or to a prompt that already
begins the answer.

`Rest` joins the two halves to one answer with one id, one role and one usage. The broken engine has reported no usage,
but the second engine counts the text so far as part of its prompt, so the sum of prompt and completion tokens is known.
If a prefill engine has counted the prompt, the rest of the sum is the completion; otherwise each event of the first
half counts as one token.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from warmroute.contract.receipt import ESTIMATED_FIELDS
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS, Usage
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.intake.body import AnyBody, Body, TemplatedBody
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.parsed_request import COMPLETIONS, ParsedRequest
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.failure import Failure

MAX_TEXT_BYTES: Final = 1_048_576  # a longer answer is not continued
UNCOUNTED_BYTES: Final = 16_384  # a text up to this size is not counted as memory
MAX_STOP_CHARS: Final = 1024  # total length of the stop strings, with which the end of the text is compared
COMPLETION_TOKENS: Final = 16  # what the OpenAI API allows a completion that names no limit

_NOT_BY_TEXT: Final = frozenset(
    {
        "response_format", "regex", "ebnf", "json_schema", "structural_tag", "tool_choice", "functions",
        "function_call", "logprobs", "top_logprobs", "stop_regex", "watermark", "custom_params", "task", "best_of",
        "continue_final_message", "add_generation_prompt", "echo", "suffix",
    }
)  # fmt: skip
"""Members of a request that make its answer depend on more than the text so far."""

_NOT_BY_TEXT_PREFIXES: Final = ("return_", "guided_")
_HARMLESS: Final = {
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "return_cached_tokens_details": (True,),
}
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_REPLACED: Final = frozenset({"messages", "prompt", "min_tokens", *_LIMITS})


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None

    def adds(self) -> dict[str, Any]:
        delta = {"content": self.text} if self.delta is None else self.delta
        return {kind: value for kind, value in delta.items() if value and kind != "role"}


class _Chunk(msgspec.Struct, gc=False):
    id: str = ""
    choices: list[_Choice] = []


PlainBody = Body | TemplatedBody

_UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
_chunk: Final = msgspec.json.Decoder(_Chunk).decode
_decode: Final = msgspec.json.decode
_encode: Final = msgspec.json.encode


class Continuation:
    """An answer that can be continued, or is being continued: its text so far, and the request for its rest."""

    __slots__ = ("_body", "_counted_bytes", "_id", "_memory", "_rest", "_route", "_stops", "_text", "_tokens")

    def __init__(self, route: str, body: PlainBody, stops: tuple[str, ...], memory: BodyReservation | None) -> None:
        """`memory`: the request's reservation, which also counts the text; if None, the text is not counted."""
        self._route = route
        self._body: PlainBody | None = body  # until the answer can no longer be continued
        self._stops = stops
        self._id = ""
        self._text: bytearray | None = bytearray()
        self._memory = memory
        self._counted_bytes = UNCOUNTED_BYTES
        self._tokens = 0  # a lower bound for the text: one for each event
        self._rest: Rest | None = None

    @classmethod
    def of(cls, parsed: ParsedRequest, body: AnyBody, memory: BodyReservation | None = None) -> "Continuation | None":
        """The continuation of an answer that begins now; None if its request rules that out."""
        if isinstance(body, LargeBody):
            return None  # its members were not parsed, and parsing them here would take too long
        members = body.members
        if not parsed.stream or parsed.several or parsed.stream_options.get("continuous_usage_stats"):
            return None
        try:
            if any(_asks_for_more(name, members[name]) for name in members):
                return None
        except _UNREADABLE:
            return None  # a member cannot be decoded here, but the engine may have understood it
        if parsed.route == COMPLETIONS and bytes(memoryview(members["prompt"])[:1]) != b'"':
            return None  # the prompt consists of token ids, to which text cannot be added
        stop = _decode(members["stop"]) if "stop" in members else None
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        return cls(parsed.route, body, stops, memory) if sum(map(len, stops)) <= MAX_STOP_CHARS else None

    def take(self, data: bytes) -> bytes | None:
        """What the client gets of whole events of an engine; None if they do not continue what the client was sent."""
        if self._rest is not None:
            return self._rest.take(data)
        if self._text is not None and not self._gather(data, self._text):
            self._text = self._body = None
        return data

    def rest(self, failure: Failure, broken: Attempt) -> "tuple[Rest, Body] | None":
        """The receiver of the answer's rest, and the request body that asks for the rest. None if no other engine can
        go on, because the failure was not the engine's fault or the rest depends on more than the text.
        """
        if self._text is None or self._body is None or not failure.avoid or failure.refusal.status < 500:
            return None
        text, tokens = self._text.decode(), self._tokens
        if any(text.endswith(stop[:n]) for stop in self._stops for n in range(1, len(stop))):
            return None  # the text ends with the beginning of a stop string, which the other engine would not notice
        try:
            body = _continued(self._route, self._body, text, tokens)
        except _UNREADABLE:
            return None
        if body is None or not self._count(len(body.raw) - len(self._body.raw)):
            return None
        counted = (broken.prefill_usage() or {}).get("prompt_tokens")
        return Rest(self._id, tokens, counted if type(counted) is int and counted > 0 else None), body

    def go_on(self, rest: "Rest") -> None:
        """Pass events to `rest` from now on. An answer is continued only once."""
        self._rest = rest
        self._text = self._body = None

    def settled(self, usage: Usage, scanner: UsageTracker) -> Usage:
        return usage if self._rest is None else self._rest.settled(usage, scanner)

    def refusal(self, failure: Failure) -> Refusal:
        """The error for the client. A 4xx to the request for the rest is hidden: the client did not send it."""
        return failure.refusal if self._rest is None or failure.refusal.status >= 500 else broken()

    def _gather(self, data: bytes, text: bytearray) -> bool:
        """Add the text of events. Returns whether the answer can still be continued."""
        try:
            for event in _payloads(data):
                chunk = _chunk(event)
                self._id = chunk.id or self._id
                for choice in chunk.choices:
                    adds = choice.adds()
                    added = adds.pop("content", "")
                    if adds or choice.finish_reason is not None or choice.index or not isinstance(added, str):
                        return False
                    text += added.encode()
                    self._tokens += 1 if added else 0
        except _UNREADABLE:
            return False
        return len(text) <= MAX_TEXT_BYTES and self._count(len(text))

    def _count(self, size_bytes: int) -> bool:
        """Reserve memory for the text, and as much again for its growth. Returns whether there was enough."""
        more = 2 * size_bytes - self._counted_bytes
        if size_bytes <= self._counted_bytes or self._memory is None:
            return True
        if not self._memory.add_answer(more):
            return False
        self._counted_bytes += more
        return True


class Rest:
    """The second half of an answer, as it comes from another engine."""

    __slots__ = ("_begun", "_id", "_new_id", "_prompt_tokens", "_tokens")

    def __init__(self, id_: str, tokens: int, prompt_tokens: int | None) -> None:
        """`id_`: the answer's id that the client was sent. `tokens`: a lower bound for the first half.
        `prompt_tokens`: None if the broken attempt has not counted the prompt.
        """
        self._id = id_
        self._new_id = b""
        self._tokens = tokens
        self._prompt_tokens = prompt_tokens
        self._begun = False

    def take(self, data: bytes) -> bytes | None:
        """What the client gets of whole events; None if they do not continue what the client was sent."""
        if not self._begun:
            begun = self._begin(data)
            if begun is None:
                return None
            data = begun
        # Generated text cannot contain the quoted id: quotes inside a JSON string are escaped.
        return data.replace(self._new_id, b'"%b"' % self._id.encode()) if self._new_id else data

    def _begin(self, data: bytes) -> bytes | None:
        """What the client gets of the events up to the first text; the event with the role is dropped, since the client
        has one already. None if something other than text comes first: the engine parses its first words as the
        beginning of an answer, and may mistake them for a tool call or reasoning.
        """
        kept_events = []
        try:
            for event in _payloads(data):
                chunk = _chunk(event)
                if chunk.id and self._id:
                    self._new_id = b'"%b"' % chunk.id.encode()
                adds = [kind for choice in chunk.choices for kind in choice.adds()]
                if not self._begun and any(kind != "content" for kind in adds):
                    return None
                self._begun = self._begun or bool(adds)
                if adds or not chunk.choices or any(choice.finish_reason for choice in chunk.choices):
                    kept_events.append(b"data: " + event + b"\n\n")
        except _UNREADABLE:
            return None
        return b"".join(kept_events)

    def settled(self, usage: Usage, scanner: UsageTracker) -> Usage:
        """The usage of the whole answer, from the usage reported for its rest. The usage chunk gets the answer's id."""
        if scanner.usage_event is not None and self._id:
            scanner.usage_event["id"] = self._id
        tokens, prompt, guessed = self._tokens, usage.prompt_tokens, {*usage.estimated, "completion_tokens"}
        if "prompt_tokens" not in guessed:
            if self._prompt_tokens is not None and self._prompt_tokens < prompt:
                tokens = prompt - self._prompt_tokens
            else:
                guessed.add("prompt_tokens")
            prompt = max(prompt - tokens, 1)
        device = min(usage.device, prompt)
        host = min(usage.host, prompt - device)
        storage = min(usage.storage, prompt - device - host)
        if device + host + storage < usage.cached_tokens:  # the second engine also had some of the text so far cached
            guessed |= {"cached_tokens", "cached_tiers"}
        return msgspec.structs.replace(
            usage,
            prompt_tokens=prompt,
            completion_tokens=min(usage.completion_tokens + tokens, MAX_TOKENS),
            cached_tokens=device + host + storage,
            device=device,
            host=host,
            storage=storage,
            estimated=tuple(name for name in ESTIMATED_FIELDS if name in guessed),
            continued_after=tokens,
        )


def broken() -> Refusal:
    """The error for an answer that has begun and cannot be continued."""
    return Refusal(502, "the engine failed, and no other engine could continue its answer", code="engine_error")


def unable(engines: Engines, route: str) -> frozenset[str]:
    """The workers that cannot continue a chat: only SGLang has `continue_final_message`."""
    if route == COMPLETIONS:
        return frozenset()
    return frozenset(worker.id for worker in engines.workers() if engines.of(worker).config.kind != "sglang")


def _asks_for_more(name: str, raw: msgspec.Raw) -> bool:
    if name not in _NOT_BY_TEXT and not name.startswith(_NOT_BY_TEXT_PREFIXES):
        return False
    value = _decode(raw)
    return value is not None and value is not False and value not in _HARMLESS.get(name, ())


def _continued(route: str, body: PlainBody, text: str, tokens: int) -> Body | None:
    """The request for the rest after `text`, which has at least `tokens` tokens; None if no request can ask for it."""
    members = body.members
    add = []
    for name, left in _limits(route, members, tokens):
        if left < 1 and name in _LIMITS:
            return None
        add.append(b'"%b":%d' % (name.encode(), max(left, 0)))
    if route != COMPLETIONS:
        messages = members["messages"]
        last_message = _decode(_decode(messages, type=list[msgspec.Raw])[-1], type=dict[str, Any])
        if last_message.get("role") == "assistant":
            return None  # SGLang treats this message as the user's if it is the last; with the text added, it is not
        message = _encode({"role": "assistant", "content": text})
        add += (b'"messages":%b,%b]' % (bytes(messages)[:-1], message), b'"continue_final_message":true')
    else:
        add.append(b'"prompt":%b%b' % (bytes(members["prompt"])[:-1], _encode(text)[1:]))
    dropped = _REPLACED | {"continue_final_message"}
    return Body(b"".join(body.rewritten(dropped, b",".join(add))))


def _limits(route: str, members: Mapping[str, msgspec.Raw], tokens: int) -> Iterator[tuple[str, int]]:
    """The client's limits on the answer's length, minus the tokens of the text so far."""
    for name in (*_LIMITS, "min_tokens"):
        value = _decode(members[name]) if name in members else None
        if value is None and name == "max_tokens" and route == COMPLETIONS:
            value = COMPLETION_TOKENS
        if isinstance(value, int):
            yield name, value - tokens


def _payloads(data: bytes) -> Iterator[bytes]:
    """The JSON of whole events; comments and blank lines are left out."""
    for event in data.split(b"\n\n"):
        if event.startswith(b"data:"):
            yield event[5:].strip()
