"""Tells a job to its client, streamed or whole.

A stream's head goes out with the first token, not before. A chat stream is: a role-only chunk per choice, a chunk per
token, a finish chunk per choice, an `sglext` chunk and a usage chunk (both with `choices: []`, when asked for),
`[DONE]`. A job that fails after it was accepted answers a stream with 200 and an error event, then the usage chunk and
`[DONE]`, as engines of this protocol do, even when nothing was sent before; a whole answer gets the status.

The chunk of one token is the hot path: its fixed parts are encoded once per choice, and nothing but the text is
encoded per token.
"""

from warmroute_backend.engine import api
from warmroute_backend.engine.api import Json, encode
from warmroute_backend.engine.errors import Refusal
from warmroute_backend.engine.http1 import Exchange
from warmroute_backend.engine.job import Job, Reply
from warmroute_backend.engine.text import CALL_ARGUMENTS, CALL_HEAD, CONTENT, REASONING, Piece

_DONE = b"data: [DONE]\n\n"
_WHOLE = {"chat": api.chat_body, "completion": api.completion_body, "generate": api.generate_body}


def reply_to(job: Job, exchange: Exchange) -> Reply:
    """The reply that the request asked for."""
    if not job.ask.stream:
        return WholeReply(job, exchange)
    return {"chat": ChatStream, "completion": CompletionStream, "generate": GenerateStream}[job.ask.kind](job, exchange)


class WholeReply:
    """One JSON body at the end."""

    __slots__ = ("_exchange", "_job")

    def __init__(self, job: Job, exchange: Exchange) -> None:
        self._job = job
        self._exchange = exchange

    def token(self) -> None:
        pass

    def finish(self) -> None:
        self._exchange.respond(200, _WHOLE[self._job.ask.kind](self._job, aborted=False))

    def abort(self) -> None:
        self._exchange.respond(200, _WHOLE[self._job.ask.kind](self._job, aborted=True))

    def fail(self, refusal: Refusal) -> None:
        self._exchange.respond(refusal.status, refusal.body(native=self._job.ask.kind == "generate"))


class _Stream:
    """What the streams have in common: head, tail, errors."""

    __slots__ = ("_exchange", "_job", "_started")
    _OBJECT = ""

    def __init__(self, job: Job, exchange: Exchange) -> None:
        self._job = job
        self._exchange = exchange
        self._started = False

    def token(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self._end(aborted=False)

    def abort(self) -> None:
        self._start()
        self._end(aborted=True)

    def fail(self, refusal: Refusal) -> None:
        if not self._started:
            self._started = True
            self._exchange.start_stream()
        self._event({"error": refusal.flat()})
        self._tail()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._exchange.start_stream()
            self._open()

    def _open(self) -> None:
        """What comes before the first token."""

    def _end(self, *, aborted: bool) -> None:
        raise NotImplementedError

    def _tail(self) -> None:
        ask = self._job.ask
        if ask.cached_details:
            self._event({**self._frame([]), "sglext": api.sglext(self._job)})
        if ask.include_usage:
            self._event({**self._frame([]), "usage": api.usage(self._job)})
        self._exchange.send(_DONE)
        self._exchange.end()

    def _frame(self, choices: list[Json]) -> Json:
        job = self._job
        return {
            "id": job.rid,
            "object": self._OBJECT,
            "created": job.created,
            "model": job.model,
            "choices": choices,
        }

    def _chunk(self, choice: Json) -> None:
        frame = self._frame([choice])
        if self._job.ask.continuous_usage:
            frame["usage"] = api.usage(self._job)
        self._event(frame)

    def _event(self, value: Json) -> None:
        self._exchange.send(b"data: %b\n\n" % encode(value))


class ChatStream(_Stream):
    """`chat.completion.chunk` events."""

    __slots__ = ("_calls", "_fast", "_plain")
    _OBJECT = "chat.completion.chunk"

    def __init__(self, job: Job, exchange: Exchange) -> None:
        super().__init__(job, exchange)
        self._plain = job.ask.logprobs is None and not job.ask.continuous_usage
        self._calls = [-1] * len(job.answers)
        self._fast = [self._halves(i) for i in range(len(job.answers))] if self._plain else []

    def token(self) -> None:
        if not self._started:
            self._start()
        job = self._job
        at = job.work.generated - 1
        for index, answer in enumerate(job.answers):
            if at >= len(answer.pieces):
                continue
            piece = answer.pieces[at]
            if self._plain and piece.kind == CONTENT:
                if piece.text:
                    head, tail = self._fast[index]
                    self._exchange.send(head + encode(piece.text) + tail)
            else:
                self._slow(index, piece)

    def _open(self) -> None:
        for index in range(len(self._job.answers)):
            self._chunk(self._choice(index, {"role": "assistant", "content": ""}))

    def _slow(self, index: int, piece: Piece) -> None:
        delta: Json
        if piece.kind == CONTENT:
            delta = {"content": piece.text, "reasoning_content": None}
        elif piece.kind == REASONING:
            delta = {"reasoning_content": piece.text}
        elif piece.kind == CALL_HEAD:
            self._calls[index] += 1
            delta = {"reasoning_content": None, "tool_calls": [self._call_head(index, piece.text)]}
        elif piece.kind == CALL_ARGUMENTS:
            call = {"index": self._calls[index], "id": None, "type": "function"}
            delta = {
                "reasoning_content": None,
                "tool_calls": [{**call, "function": {"name": None, "arguments": piece.text}}],
            }
        else:
            return
        top = self._job.ask.logprobs
        choice = self._choice(index, delta)
        if top is not None:
            choice["logprobs"] = {"content": [api.chat_logprob(piece, top)]}
        self._chunk(choice)

    def _call_head(self, index: int, name: str) -> Json:
        number = self._calls[index]
        return {
            "index": number,
            "id": api.call_id(self._job, index, number),
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }

    def _end(self, *, aborted: bool) -> None:
        for index, answer in enumerate(self._job.answers):
            choice = self._choice(index, {"reasoning_content": None})
            self._chunk({**choice, **api.ending(answer, aborted=aborted)})
        self._tail()

    def _choice(self, index: int, delta: Json) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}

    def _halves(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a content chunk."""
        mark = "\0"
        event = encode(self._frame([self._choice(index, {"content": mark, "reasoning_content": None})]))
        head, tail = event.rsplit(encode(mark), 1)
        return b"data: " + head, tail + b"\n\n"


class CompletionStream(_Stream):
    """`text_completion` events; the finish reason comes with the last text."""

    __slots__ = ("_ended",)
    _OBJECT = "text_completion"

    def __init__(self, job: Job, exchange: Exchange) -> None:
        super().__init__(job, exchange)
        self._ended = [False] * len(job.answers)

    def token(self) -> None:
        self._start()
        job = self._job
        at = job.work.generated - 1
        for index, answer in enumerate(job.answers):
            if at >= len(answer.pieces):
                continue
            piece = answer.pieces[at]
            self._ended[index] = at + 1 == len(answer.pieces)
            ending = api.ending(answer, aborted=False) if self._ended[index] else {}
            logprobs = api.completion_logprobs(job, [piece])
            self._chunk({**self._choice(index, piece.text), "logprobs": logprobs, **ending})

    def _end(self, *, aborted: bool) -> None:
        for index, answer in enumerate(self._job.answers):
            if not self._ended[index]:
                self._chunk({**self._choice(index, ""), **api.ending(answer, aborted=aborted)})
        self._tail()

    def _choice(self, index: int, text: str) -> Json:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None, "matched_stop": None}


class GenerateStream(_Stream):
    """`/generate` events: each holds the whole text so far."""

    __slots__ = ()

    def token(self) -> None:
        self._start()
        job = self._job
        at = job.work.generated
        for index, answer in enumerate(job.answers):
            if at <= len(answer.pieces):
                self._event(api.generate_item(job, index, "planned" if at == len(answer.pieces) else None))

    def fail(self, refusal: Refusal) -> None:
        if not self._started:
            self._started = True
            self._exchange.start_stream()
        for index in range(len(self._job.answers)):
            item = api.generate_item(self._job, index, "abort")
            item["meta_info"]["finish_reason"].update(status_code=refusal.status, message=refusal.message)
            self._event(item)
        self._tail()

    def _end(self, *, aborted: bool) -> None:
        if aborted:
            for index in range(len(self._job.answers)):
                self._event(api.generate_item(self._job, index, "abort"))
        self._tail()

    def _tail(self) -> None:
        self._exchange.send(_DONE)
        self._exchange.end()
