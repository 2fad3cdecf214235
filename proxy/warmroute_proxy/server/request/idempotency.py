"""Serves retries with an `Idempotency-Key`: one request runs, and its answer goes to all clients that send the key.

A call is a request with a key. It writes its answer to a `SharedExchange`, as if that were the connection of a client.
The shared exchange records the answer (`core/accounting/idempotency.py`) and passes it on to its readers: all clients
that sent the key. A late client reads the recording from the first byte, at its own pace, and then the stream.

- The engine is slowed down only while every reader is slow: the fastest reader sets the pace, and the others read the
  recording. If the answer gets too long to record, the fastest reader stays, and the others get an error.
- When the last reader leaves, the request goes on for `outlive_s`. If no other reader joins by then, it ends as if the
  client had left.
- Only a complete answer with status 200 is kept, for a tenant that may be served in this region. If all clients left,
  the call may be charged, and only its key is remembered. Any other call was not charged, and is forgotten.
- If proxies share markers of calls in Redis (`call_markers`), a request begins only if no other process has its key.

Keys are kept only as hashes that a secret protects.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest

from warmroute_proxy.core.accounting.idempotency import IdempotencyBounds, IdempotencyKeys, IdempotentCall
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal, error_event
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.http.answer_reader import AnswerReader
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.http.exchange import Exchange, Problem
from warmroute_proxy.server.redis.call_markers import CallMarkers, body_differs

MAX_KEY_CHARS: Final = 256
MAX_KEYS: Final = 65_536
KEYS_EACH: Final = 64  # keys that each tenant may always have, regardless of the number of tenants
REMEMBER_KEY_S: Final = 600.0  # the timeout of OpenAI's clients, after which they retry
NO_RETRY: Final = (("x-should-retry", "false"),)  # without it, OpenAI's clients retry after a 409


def bounds_of(limits: Limits) -> IdempotencyBounds:
    answer_bytes, total_bytes, replay_s = limits.keyed_answer_bytes, limits.keyed_total_bytes, limits.keyed_replay_s
    return IdempotencyBounds(answer_bytes, total_bytes, MAX_KEYS, replay_s, REMEMBER_KEY_S, KEYS_EACH)


class ServedRequest(Protocol):
    @property
    def id(self) -> str:
        """The id of the request's receipt."""

    @property
    def waiter(self) -> object | None:
        """The request's place in the queue; None once it was dispatched."""


class _Claim:
    """Stands for a request that has not begun, since it waits for Redis to mark its key as taken."""

    id = ""
    waiter = True


class SharedExchange(Exchange):
    """The exchange of a running request with a key: it has readers instead of a client's connection."""

    __slots__ = (
        "_first",
        "_idempotent_calls",
        "_keeps_answer",
        "_may_keep",
        "_parts",
        "_readers",
        "_slow",
        "call",
        "served",
    )

    def __init__(
        self, idempotent_calls: "IdempotentCalls", call: IdempotentCall, first: Exchange, *, may_keep: bool = True
    ) -> None:
        """`may_keep`: whether the answer may be kept after it has ended."""
        self._idempotent_calls = idempotent_calls
        self._may_keep = may_keep
        self.call = call
        self._parts = call.recording.chunks if call.recording is not None else []
        self._readers = [AnswerReader(first, call.recording, self)]
        self._slow = False
        self._keeps_answer = False  # whether the answer is kept if it is completed
        self.served: ServedRequest | None = None
        self.request = first.request
        self.started = False
        self.ended = False
        self._first: Exchange | None = None
        if first.translates:
            self._first, self.translates = first, True
            first.on_unreadable = self._unreadable

    # -- the side of the request

    def unreadable(self, answer: bytes | None) -> Problem | None:
        return None if self._first is None else self._first.unreadable(answer)

    def _unreadable(self, problem: Problem) -> None:
        if self.on_unreadable is not None:
            self.on_unreadable(problem)

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        if self.ended:
            return
        headers = list(headers)
        recording = self.call.recording
        if recording is not None and status == 200:
            recording.status, recording.headers = status, headers
            self._idempotent_calls.calls.add(self.call, body, self._idempotent_calls.clock())
        self.started = True
        for reader in self._finish(keep_answer=status == 200):
            reader.let_go().respond(status, headers, body)
        self._drop_unless_it_may_keep()

    def answer(self, lines: bytes, body: bytes) -> None:
        pairs = [line.partition(": ") for line in lines.decode("latin-1").split("\r\n")[:-1]]
        self.respond(200, [(name, value) for name, _, value in pairs], body)

    def start(self, status: int, headers: Iterable[tuple[str, str]], data: bytes = b"") -> None:
        headers = list(headers)
        self.started = True
        self._keeps_answer = status == 200
        recording = self.call.recording
        if recording is not None:
            recording.status, recording.headers, recording.streamed = status, headers, True
        for reader in self._readers:
            reader.exchange.start(status, headers)
        self.write(data)

    def write(self, data: bytes) -> None:
        if self.ended or not data:
            return
        if self.call.recording is None:
            for reader in self._readers:  # at most one, since nothing is recorded
                reader.exchange.write(data)
        elif self._idempotent_calls.calls.add(self.call, data, self._idempotent_calls.clock()):
            for reader in self._readers:
                if not reader.paused:
                    reader.at += 1
                    reader.exchange.write(data)
        else:
            self._outgrown()

    def passthrough_target(self) -> None:
        """Always None, since all bytes pass through here to be recorded."""

    def end(self, data: bytes = b"") -> None:
        if self.ended:
            return
        if self.call.recording is None:
            last_data = data
        else:
            self.write(data)
            last_data = b""
        for reader in self._finish(keep_answer=self._keeps_answer):
            if reader.recording is not None and reader.at < len(self._parts):
                reader.owner = _Replay(self._idempotent_calls, self.call)  # the reader reads the rest of the answer
            else:
                reader.let_go().end(last_data)
        self._drop_unless_it_may_keep()

    def abort(self, data: bytes = b"") -> None:
        """End an incomplete streamed answer at once, even for readers that have not read all of it."""
        if self.ended:
            return
        for reader in self._finish(keep_answer=False):
            reader.let_go().abort(data)

    # -- the readers' side

    def join(self, exchange: Exchange) -> None:
        self._idempotent_calls.orphans.pop(self, None)
        reader = AnswerReader(exchange, self.call.recording, self)
        self._readers.append(reader)
        reader.catch_up()
        self.paced()

    def paced(self) -> None:
        """Pause the request while all readers are paused. A reader that is not paused has read the whole recording."""
        slow = bool(self._readers) and all(reader.paused for reader in self._readers)
        if slow != self._slow:
            self._slow = slow
            if self.on_pause is not None:
                self.on_pause(slow)

    def left(self, reader: AnswerReader) -> None:
        """Remove the reader of a client that has left. After the last one, wait `outlive_s` for another reader."""
        self._readers.remove(reader)
        self.paced()
        if self._readers:
            return
        if self.call.recording is None or not self._idempotent_calls.outlive_s:
            self.give_up()
        else:
            self._idempotent_calls.orphans[self] = self._idempotent_calls.clock() + self._idempotent_calls.outlive_s

    def give_up(self) -> None:
        """End as if the client had left, unless there are readers. A queued call cost nothing, so it is forgotten."""
        if self._readers or self.ended:
            return
        on_gone = self.on_gone
        if self.served is not None and self.served.waiter is not None:
            self._finish(keep_answer=False)
        else:
            self._idempotent_calls.calls.lost(self.call, self._idempotent_calls.clock())
            self._finish(keep_answer=None)
        if on_gone is not None:
            on_gone()

    def lost(self) -> None:
        """End, since the client whose gateway connection carried the answer has left. Other readers get an error."""
        if self.ended:
            return
        on_gone, refusal = self.on_gone, left_gateway()
        for reader in self._finish(keep_answer=False):
            exchange = reader.let_go()
            if exchange.started:
                exchange.abort(error_event(refusal.status, refusal.message, refusal.code))
            else:
                exchange.refuse(refusal)
        if on_gone is not None:
            on_gone()

    def _outgrown(self) -> None:
        """Keep only the fastest reader, since the recording that slower readers need was dropped."""
        parts, self._parts = self._parts, []
        if not self._readers:
            self._idempotent_calls.orphans[self] = 0.0  # the next sweep gives up: here the request is still writing
            return
        stays = max(reversed(self._readers), key=lambda reader: reader.at)  # among equally fast readers, the newest
        others = [reader for reader in self._readers if reader is not stays]
        self._readers = [stays]
        stays.recording = None
        stays.exchange.write(b"".join(parts[stays.at :]))
        for reader in others:
            problem = "the answer is longer than those kept for retries, and another request with this key reads it"
            reader.let_go().abort(error_event(409, problem, "idempotency_key_spent"))
        self.paced()

    def _drop_unless_it_may_keep(self) -> None:
        """Drop the answer if it may not be kept. Readers that are not done hold the recording themselves."""
        if not self._may_keep:
            self._idempotent_calls.calls.drop_unqueued(self.call, self._idempotent_calls.clock())

    def _finish(self, *, keep_answer: bool | None) -> list[AnswerReader]:
        """Mark the request as ended; returns the readers, whose answers the caller has to end.

        `keep_answer`: True keeps the answer, False forgets the call, None remembers only the key.
        """
        idempotent_calls, call, markers = self._idempotent_calls, self.call, self._idempotent_calls.markers
        if markers is not None:
            if keep_answer is False or self.served is None:
                markers.dropped(call)
            else:
                markers.ended(call, self.served.id)
        self.ended = True
        self.on_gone = self.on_pause = self.on_unreadable = self.served = self._first = None
        idempotent_calls.orphans.pop(self, None)
        idempotent_calls.live.pop(call.key, None)
        if keep_answer:
            idempotent_calls.calls.ended(call, idempotent_calls.clock(), may_keep=self._may_keep)
        elif keep_answer is not None:
            idempotent_calls.calls.failed(call)
        readers, self._readers = self._readers, []
        return readers


class _Replay:
    """The owner of one reader of an answer that has ended."""

    __slots__ = ("_call", "_idempotent_calls")

    def __init__(self, idempotent_calls: "IdempotentCalls", call: IdempotentCall) -> None:
        self._idempotent_calls = idempotent_calls
        self._call = call
        idempotent_calls.calls.acquire(call)

    def paced(self) -> None:
        """Do nothing: no request waits for the reader."""

    def left(self, reader: AnswerReader) -> None:  # noqa: ARG002 - it is the only one
        self._idempotent_calls.calls.release(self._call, self._idempotent_calls.clock())


class IdempotentCalls:
    def __init__(
        self,
        bounds: IdempotencyBounds,
        outlive_s: float,
        clock: Callable[[], float],
        metrics: Metrics,
        memory: BodyMemory,
        markers: CallMarkers | None = None,
    ) -> None:
        """`outlive_s`: how long a request goes on without a reader. `markers`: None if keys are not shared in Redis."""
        self.markers = markers
        self.calls = IdempotencyKeys(bounds)
        self.live: dict[bytes, SharedExchange] = {}  # calls under way
        self.orphans: dict[SharedExchange, float] = {}  # running calls without a reader, and until when they wait
        self.outlive_s = outlive_s
        self.clock = clock
        self._metrics = metrics
        self._memory = memory
        self._secret = os.urandom(32) if markers is None else markers.secret

    def join(self, tenant: str, key: str, exchange: Exchange, count: Callable[[], None]) -> IdempotentCall | None:
        """Answer a request whose key is known, or return a new call for an unknown key.

        `count` counts a request that reads the answer of another request. Raises: Refusal, if the key is invalid or
        `count` raises it.
        """
        if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
            problem = f"Idempotency-Key must be 1 to {MAX_KEY_CHARS} printable ASCII characters"
            raise Refusal(400, problem, code="invalid_idempotency_key")
        request = exchange.request
        scoped = f"{tenant}\0{request.path}\0{key}".encode()
        name = blake2b(scoped, digest_size=16, key=self._secret).digest()
        body = xxh3_64_intdigest(request.body)
        call = self.calls.find(name, self.clock())
        if call is None:
            return IdempotentCall(name, body, self._memory.reserve(tenant, 0), tenant)
        request.drop_body()  # this request reads the answer of another one
        if call.body != body:
            exchange.refuse(body_differs(), NO_RETRY)
        elif call.recording is None:
            exchange.refuse(_spent(call), NO_RETRY)
        else:
            count()
            self._metrics.add(declared.JOINS_TOTAL)
            shared = self.live.get(name)
            if shared is not None:
                shared.join(exchange)
            else:
                AnswerReader(exchange, call.recording, _Replay(self, call)).catch_up()
        return None

    def share(self, call: IdempotentCall, exchange: Exchange, *, may_keep: bool = True) -> SharedExchange:
        """Return the exchange for a new call. `exchange`: its first client's; `may_keep`: see `SharedExchange`."""
        if not self.calls.begin(call, self.clock()):
            problem = "too many of your requests with an Idempotency-Key are running"
            raise Refusal(503, problem, code="overloaded", retry_after_s=1)
        shared = self.live[call.key] = SharedExchange(self, call, exchange, may_keep=may_keep)
        return shared

    def begin(self, shared: SharedExchange, make: Callable[[], None]) -> None:
        """Begin the request of a call by `make`: at once, or as soon as Redis has confirmed that no other process has
        its key.
        """
        if self.markers is None:
            make()
            return
        shared.served = _Claim()
        self.markers.claim(shared.call, partial(self._claimed, shared, make))

    def _claimed(self, shared: SharedExchange, make: Callable[[], None], refusal: Refusal | None) -> None:
        markers = self.markers
        if shared.ended:  # its clients left before Redis answered
            if markers is not None and refusal is None:
                markers.dropped(shared.call)
        elif refusal is not None:
            shared.refuse(refusal, () if refusal.retry_after_s else NO_RETRY)
        else:
            make()

    def sweep(self) -> None:
        """Drop expired answers, and give up calls without a reader; called several times a second."""
        now = self.clock()
        self.calls.expire(now)
        for shared in [shared for shared, until_s in self.orphans.items() if until_s <= now]:
            shared.give_up()

    def shut_down(self) -> None:
        """End calls without a reader now, and the other calls when their last reader leaves."""
        self.outlive_s = 0.0
        for shared in list(self.live.values()):
            shared.give_up()


def left_gateway() -> Refusal:
    """The refusal for readers of an answer that came over the gateway connection of another client, which has left."""
    problem = "the request that computed this answer has left its gateway; try again in 1 s"
    return Refusal(503, problem, code="overloaded", retry_after_s=1)


def _spent(call: IdempotentCall) -> Refusal:
    why = "is longer than the answers kept for retries" if call.under_way else "is not kept any more"
    problem = f"the answer under this Idempotency-Key {why}; send a new key to have it computed, and charged, again"
    return Refusal(409, problem, code="idempotency_key_spent")
