"""Mock engines: they send the answers of an SGLang server at the cost of a write.

Each engine listens on a separate port. An engine counts four bytes of a body as a token, and reports all but the last
128 tokens as cached. A chat is answered at once (1 KB), or as a stream of chunks. The chunks come in a single write, or
one by one at an interval; the streams are then out of phase, or in step as those of an engine's batch. Each chunk has
` t=` and 19 digits: the monotonic clock in nanoseconds if chunks come at an interval, else the chunk's number.
"""

import json
import socket
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Final, NamedTuple

import httptools

from bench.loop import Loop, Wire, listen

MODEL: Final = "bench-model"
ANSWER_BYTES: Final = 1024
BYTES_PER_TOKEN: Final = 4
UNCACHED_TOKENS: Final = 128
ANSWER_TOKENS: Final = 100
_PLACES: Final = (111_111, 222_222, 333_333)
_PLACES_BYTES: Final = 18
_EVENT_BYTES: Final = len(b"data: \n\n")
_NS_PER_MS: Final = 1_000_000
_COMMON: Final = {"id": "3f7c1a9e4b6d4a0c8e2f5d7b9a1c3e5f", "created": 1763685000, "model": MODEL}


@dataclass(frozen=True)
class Plan:
    """How streams are answered."""

    chunks: int = 200
    interval_ms: float = 0  # 0: all chunks in one write
    same_step: bool = False  # whether all streams send chunks at the same multiples of the interval


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _usage(completion_tokens: int) -> dict[str, Any]:
    """A `usage` with places for the counts of a prompt."""
    return {
        "prompt_tokens": _PLACES[0],
        "total_tokens": _PLACES[1],
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": _PLACES[2]},
        "reasoning_tokens": 0,
    }


class Counting(NamedTuple):
    """Bytes that an engine sends, with places for the counts of a prompt."""

    template: bytes  # with places for the length that the head states, prompt tokens, all tokens and cached tokens
    bare_bytes: int  # that length without the digits of the counts

    def of(self, body_bytes: int, completion_tokens: int) -> bytes:
        """The bytes for a request body of `body_bytes`."""
        prompt = body_bytes // BYTES_PER_TOKEN
        counts = prompt, prompt + completion_tokens, max(0, prompt - UNCACHED_TOKENS)
        return self.template % (self.bare_bytes + len(b"%d%d%d" % counts), *counts)


def _counting(before: bytes, data: bytes, after: bytes, more: int = 0) -> Counting:
    """A `Counting` from bytes. `before` has the place for the length, which counts `data` and `more` bytes."""
    length = len(data) - _PLACES_BYTES + more
    for place in _PLACES:
        data = data.replace(b"%d" % place, b"%d")
    return Counting(before + data + after, length)


_HEAD: Final = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nserver: mock\r\ncontent-length: %b\r\n\r\n"


def _reply(status: bytes, body: bytes) -> bytes:
    return _HEAD % (status, b"%d" % len(body)) + body


def _answer() -> Counting:
    """A whole completion of about `ANSWER_BYTES`."""
    message = {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "matched_stop": 151645}
    body = {**_COMMON, "object": "chat.completion", "choices": [choice], "usage": _usage(ANSWER_TOKENS)}
    message["content"] = "x" * (ANSWER_BYTES - len(_dumps(body)))
    return _counting(_HEAD % (b"200 OK", b"%d"), _dumps(body), b"")


def _event(data: bytes) -> bytes:
    """One server-sent event as one chunk of HTTP."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + _EVENT_BYTES, data)


def _chunk(delta: dict[str, str], finish_reason: str | None) -> bytes:
    """A chunk with a place for a number of 19 digits."""
    digits = "#" * 19
    choice = {
        "index": 0,
        "delta": {**delta, "content": f" t={digits}"},
        "logprobs": None,
        "finish_reason": finish_reason,
        "matched_stop": 151645 if finish_reason else None,
    }
    body = {**_COMMON, "object": "chat.completion.chunk", "choices": [choice], "usage": None}
    return _event(_dumps(body)).replace(b"%", b"%%").replace(digits.encode(), b"%019d")


STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nserver: mock\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
FIRST: Final = _chunk({"role": "assistant"}, None)
MIDDLE: Final = _chunk({}, None)
LAST: Final = _chunk({}, "stop")
ANSWER: Final = _answer()
REFUSED: Final = _reply(b"400 Bad Request", b'{"object":"error","message":"mock","type":"BadRequest","code":400}')
NOTHING_HERE: Final = _reply(b"404 Not Found", b'{"detail":"Not Found"}')


def stream_ending(chunks: int) -> Counting:
    """The bytes after the last chunk of a stream: usage, `[DONE]`, and the end of the body."""
    usage = {**_COMMON, "object": "chat.completion.chunk", "choices": [], "usage": _usage(chunks)}
    return _counting(b"%x\r\ndata: ", _dumps(usage), b"\n\n\r\n" + _event(b"[DONE]") + b"0\r\n\r\n", _EVENT_BYTES)


def _burst(chunks: int) -> bytes:
    numbered = [(FIRST if i == 0 else LAST if i == chunks - 1 else MIDDLE) % i for i in range(chunks)]
    return STREAM_HEAD + b"".join(numbered)


# The answers to what routers ask an engine, apart from requests for tokens.
_SERVER = {
    "model_path": MODEL,
    "served_model_name": MODEL,
    "tokenizer_path": MODEL,
    "is_generation": True,
    "dp_size": 1,
    "tp_size": 1,
    "version": "0.5.6",
    "disaggregation_mode": "null",
    "max_total_num_tokens": 1_000_000,
    "max_running_requests": 1024,
}
_MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "mock"}]}
INFORMATION: Final[dict[bytes, bytes]] = {
    path.encode(): _reply(b"200 OK", _dumps(said))
    for path, said in {
        "/health": {},
        "/health_generate": {},
        "/ready": {},
        "/metrics": {},
        "/abort_request": {},
        "/v1/models": _MODELS,
        "/get_model_info": _SERVER,
        "/model_info": _SERVER,
        "/get_server_info": _SERVER,
        "/server_info": _SERVER,
        "/get_load": [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}],
        "/version": {"version": "0.12.0"},
    }.items()
}


class Engine:
    """One mock engine: its port, how it answers, and what it has counted."""

    def __init__(self, loop: Loop) -> None:
        self._listener = listen(loop, lambda sock: _Asked(loop, sock, self))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.follow(Plan())

    def follow(self, plan: Plan) -> None:
        """Answer by this plan from now on, and count from 0."""
        self.plan = plan
        self._ending = stream_ending(plan.chunks)
        self.burst = _burst(plan.chunks)
        self.chats = self.streams = self.aborted = 0

    def ending(self, body_bytes: int) -> bytes:
        """The bytes after the last chunk of the answer to a body of `body_bytes`."""
        return self._ending.of(body_bytes, self.plan.chunks)


class _Asked(Wire):
    """A connection from the proxy."""

    def __init__(self, loop: Loop, sock: socket.socket, engine: Engine) -> None:
        super().__init__(loop, sock)
        self._engine = engine
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser, when it is made, looks for this method
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._complete = False
        self._sent = 0  # chunks sent of the running stream
        self._streaming = False
        self.begin()

    def on_url(self, url: bytes) -> None:
        self._path = url.partition(b"?")[0]

    def on_message_complete(self) -> None:
        self._complete = True

    def received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # such as gRPC, which routers try
            self.close()
            return
        if self._complete:
            self._complete = False
            body = b"".join(self._pieces)
            self._pieces.clear()
            self._asked(body)

    def lost(self) -> None:
        self._engine.aborted += self._streaming

    def _asked(self, body: bytes) -> None:
        engine = self._engine
        if not self._path.endswith(b"/chat/completions"):
            self.send(INFORMATION.get(self._path, NOTHING_HERE))
            return
        engine.chats += 1
        if b'"user": "refused"' in body:
            self.send(REFUSED)
            return
        if b'"stream":true' not in body and b'"stream": true' not in body:
            self.send(ANSWER.of(len(body), ANSWER_TOKENS))
            return
        engine.streams += 1
        self._ending = engine.ending(len(body))
        interval_ns = int(engine.plan.interval_ms * _NS_PER_MS)
        if not interval_ns:
            self.send(engine.burst + self._ending)
            return
        self._sent, self._streaming = 0, True
        now_ns = monotonic_ns()
        self._due_ns = (now_ns // interval_ns + 1) * interval_ns if engine.plan.same_step else now_ns
        self._interval_ns = interval_ns
        self.loop.at(self._due_ns, self._step)

    def _step(self) -> None:
        """Send the next chunk. As in SGLang, the head goes out with the first chunk."""
        if not self.open:
            return
        chunks = self._engine.plan.chunks
        self._sent += 1
        if self._sent == chunks:
            self._streaming = False
            self.send(LAST % monotonic_ns() + self._ending)
            return
        self.send(STREAM_HEAD + FIRST % monotonic_ns() if self._sent == 1 else MIDDLE % monotonic_ns())
        self._due_ns += self._interval_ns
        self.loop.at(self._due_ns, self._step)
