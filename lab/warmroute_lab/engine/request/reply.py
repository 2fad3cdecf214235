"""Sends the answers of requests, streamed or whole.

The HTTP head of a stream goes out with the first token; only `/generate` sends it at once. A chat stream is a role-only
chunk per choice, a chunk per token, a finish chunk per choice, and `[DONE]`. If requested, an `sglext` chunk and a
usage chunk (both with `choices: []`) come before `[DONE]`.

If a job fails after it was accepted, a stream has status 200, an error event, the usage chunk and `[DONE]`, as in
SGLang, even if nothing was sent before. A whole answer has the error's status. Each prompt of a batch is a job of its
own: a whole answer waits for all jobs, and a stream mixes their chunks. The first job that fails ends the answer.

The chunk of one token is the hot path: its fixed parts are encoded once for each choice, only the text for each token.
"""

from collections.abc import Sequence

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.http1 import EngineExchange
from warmroute_lab.engine.request import api
from warmroute_lab.engine.request.api import Json, encode
from warmroute_lab.engine.request.job import Job, Reply
from warmroute_lab.engine.request.text import CALL_ARGUMENTS, CALL_HEAD, CONTENT, Piece

DONE = b"data: [DONE]\n\n"
_WHOLE = {"chat": api.chat_body, "completion": api.completion_body, "generate": api.generate_body}


def reply_to(jobs: Sequence[Job], exchange: EngineExchange) -> Reply:
    request = jobs[0].request
    if not request.stream:
        return WholeReply(jobs, exchange)
    return {"chat": ChatStream, "completion": CompletionStream, "generate": GenerateStream}[request.kind](
        jobs, exchange
    )


class WholeReply:
    """One JSON body at the end."""

    __slots__ = ("_aborted", "_exchange", "_jobs", "_open")

    def __init__(self, jobs: Sequence[Job], exchange: EngineExchange) -> None:
        self._jobs = jobs
        self._exchange = exchange
        self._open = len(jobs)
        self._aborted: frozenset[Job] = frozenset()

    def token(self, job: Job) -> None:
        pass

    def finish(self, job: Job) -> None:
        del job
        self._open -= 1
        if not self._open:
            self._exchange.respond(200, _WHOLE[self._jobs[0].request.kind](self._jobs, self._aborted))

    def abort(self, job: Job) -> None:
        self._aborted |= {job}
        self.finish(job)

    def fail(self, job: Job, refusal: Refusal) -> None:
        self._exchange.respond(refusal.status, refusal.body(native=job.request.kind == "generate"))


class _Stream:
    """What the streams have in common: the chunks before and after the tokens, and errors."""

    __slots__ = ("_exchange", "_first", "_jobs", "_open", "_started")
    _OBJECT = ""

    def __init__(self, jobs: Sequence[Job], exchange: EngineExchange) -> None:
        self._jobs = jobs
        self._exchange = exchange
        self._started = False
        self._open = len(jobs)
        self._first = {job: i * len(job.answers) for i, job in enumerate(jobs)}
        """The index of each job's first choice."""

    def token(self, job: Job) -> None:
        raise NotImplementedError

    def finish(self, job: Job) -> None:
        self._close(job, aborted=False)

    def abort(self, job: Job) -> None:
        self._start()
        self._close(job, aborted=True)

    def fail(self, job: Job, refusal: Refusal) -> None:
        del job
        if not self._started:
            self._started = True
            self._exchange.start_stream()
        self._exchange.send(refusal.event())
        self._tail()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._exchange.start_stream()
            self._head()

    def _head(self) -> None:
        """Send the chunks that come before the first token."""

    def _close(self, job: Job, *, aborted: bool) -> None:
        self._end(job, aborted=aborted)
        self._open -= 1
        if not self._open:
            self._tail()

    def _end(self, job: Job, *, aborted: bool) -> None:
        raise NotImplementedError

    def _tail(self) -> None:
        extension = api.sglext(self._jobs)
        if extension is not None:
            self._event({**self._chunk_object(self._jobs[0], 0, []), "usage": None, "sglext": extension})
        if self._jobs[0].request.include_usage:
            self._event({**self._chunk_object(self._jobs[0], 0, []), "usage": self._usage()})
        self._exchange.send(DONE)
        self._exchange.end()

    def _usage(self) -> Json:
        return api.usage(self._jobs)

    def _chunk_object(self, job: Job, number: int, choices: list[Json]) -> Json:
        return {
            "id": job.ids[number],
            "object": self._OBJECT,
            "created": job.created,
            "model": job.request.model,
            "choices": choices,
        }

    def _event(self, value: Json) -> None:
        self._exchange.send(b"data: %b\n\n" % encode(value))


class ChatStream(_Stream):
    """`chat.completion.chunk` events. A chat has one prompt."""

    __slots__ = ("_calls", "_fast", "_job", "_plain")
    _OBJECT = "chat.completion.chunk"

    def __init__(self, jobs: Sequence[Job], exchange: EngineExchange) -> None:
        super().__init__(jobs, exchange)
        self._job = jobs[0]
        request = self._job.request
        self._plain = request.logprobs is None and not request.continuous_usage
        self._calls = [-1] * len(self._job.answers)
        self._fast = [self._halves(i) for i in range(len(self._job.answers))] if self._plain else []

    def token(self, job: Job) -> None:
        if not self._started:
            self._start()
        at = job.work.generated - 1
        for number, answer in enumerate(job.answers):
            if at >= len(answer.pieces):
                continue
            piece = answer.pieces[at]
            if self._plain and piece.kind == CONTENT:
                if piece.text:
                    head, tail = self._fast[number]
                    self._exchange.send(head + encode(piece.text) + tail)
            else:
                self._slow(number, piece)

    def _head(self) -> None:
        for number in range(len(self._job.answers)):
            self._chunk(number, {"reasoning_content": None, "role": "assistant", "content": ""})

    def _slow(self, number: int, piece: Piece) -> None:
        if piece.kind in (CALL_HEAD, CALL_ARGUMENTS):
            self._call(number, piece)
        elif piece.text:
            content = piece.kind == CONTENT
            delta = {"reasoning_content": None, "content": piece.text} if content else {"reasoning_content": piece.text}
            top = self._job.request.logprobs
            logprobs = None if top is None else {"content": [api.chat_logprob(piece, top)]}
            self._chunk(number, delta, counted=True, logprobs=logprobs)

    def _call(self, number: int, piece: Piece) -> None:
        """Send a piece of a tool call. Only the first piece has the name and the id."""
        first = piece.kind == CALL_HEAD
        self._calls[number] += first
        call = self._calls[number]
        function = {"name": piece.text if first else None, "arguments": "" if first else piece.text}
        call_id = api.call_id(self._job, number, call) if first else None
        delta: Json = {
            "role": None,
            "content": None,
            "reasoning_content": None,
            "tool_calls": [{"id": call_id, "index": call, "type": "function", "function": function}],
        }
        self._chunk(number, delta, counted=True)

    def _end(self, job: Job, *, aborted: bool) -> None:
        for number, answer in enumerate(job.answers):
            self._chunk(number, {"reasoning_content": None}, **api.ending(answer, aborted=aborted))

    def _chunk(self, number: int, delta: Json, *, counted: bool = False, **choice: object) -> None:
        """Send a chunk of one choice. A `counted` chunk has the usage so far if the request asked for it."""
        chunk = self._chunk_object(self._job, number, [{**self._choice(number, delta), **choice}])
        if counted and self._job.request.continuous_usage:
            chunk["usage"] = api.choice_usage(self._job, number, cache_report=True)
        self._event(chunk)

    def _choice(self, number: int, delta: Json) -> Json:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}

    def _halves(self, number: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a content chunk."""
        mark = "\0"
        delta = {"reasoning_content": None, "content": mark}
        event = encode(self._chunk_object(self._job, number, [self._choice(number, delta)]))
        head, tail = event.rsplit(encode(mark), 1)
        return b"data: " + head, tail + b"\n\n"


class CompletionStream(_Stream):
    """`text_completion` events. The finish reason comes with the last text; every event has a `usage` member."""

    __slots__ = ("_ended",)
    _OBJECT = "text_completion"

    def __init__(self, jobs: Sequence[Job], exchange: EngineExchange) -> None:
        super().__init__(jobs, exchange)
        self._ended: set[tuple[Job, int]] = set()

    def token(self, job: Job) -> None:
        self._start()
        at = job.work.generated - 1
        for number, answer in enumerate(job.answers):
            if at >= len(answer.pieces):
                continue
            piece = answer.pieces[at]
            ending: Json = {}
            if at + 1 == len(answer.pieces):
                self._ended.add((job, number))
                ending = api.ending(answer, aborted=False)
            self._chunk(job, number, piece.text, logprobs=api.completion_logprobs(job, [piece]), **ending)

    def _end(self, job: Job, *, aborted: bool) -> None:
        for number, answer in enumerate(job.answers):
            if (job, number) not in self._ended:
                self._chunk(job, number, "", **api.ending(answer, aborted=aborted))

    def _chunk(self, job: Job, number: int, text: str, **choice: object) -> None:
        plain = {"index": self._first[job] + number, "text": text, "logprobs": None}
        chunk = self._chunk_object(job, number, [{**plain, "finish_reason": None, "matched_stop": None, **choice}])
        counted = job.request.continuous_usage
        self._event({**chunk, "usage": api.choice_usage(job, number, cache_report=False) if counted else None})

    def _usage(self) -> Json:
        return {name: value for name, value in super()._usage().items() if value is not None}


class GenerateStream(_Stream):
    """`/generate` events: each holds the whole text so far."""

    __slots__ = ()

    def __init__(self, jobs: Sequence[Job], exchange: EngineExchange) -> None:
        super().__init__(jobs, exchange)
        self._start()

    def token(self, job: Job) -> None:
        at = job.work.generated
        for number, answer in enumerate(job.answers):
            if at <= len(answer.pieces):
                self._item(job, number, "planned" if at == len(answer.pieces) else None)

    def fail(self, job: Job, refusal: Refusal) -> None:
        reason = {"type": "abort", "status_code": refusal.status, "message": refusal.message}
        for number in range(len(job.answers)):
            self._item(job, number, "abort", reason)
        self._tail()

    def _end(self, job: Job, *, aborted: bool) -> None:
        if aborted:
            for number in range(len(job.answers)):
                self._item(job, number, "abort")

    def _item(self, job: Job, number: int, ended: str | None, reason: Json | None = None) -> None:
        item = api.generate_item(job, number, ended)
        if reason is not None:
            item["meta_info"]["finish_reason"] = reason
        if job.request.batch or len(job.answers) > 1:
            item["index"] = self._first[job] + number
        self._event(item)

    def _tail(self) -> None:
        self._exchange.send(DONE)
        self._exchange.end()
