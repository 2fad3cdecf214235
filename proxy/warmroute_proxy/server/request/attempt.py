"""One attempt at a request: one engine, or a prefill and a decode engine at the same time.

A leg is the request to one engine. The answering leg (to an aggregated or a decode engine) carries the client's answer.
The prefill leg is watched too, because neither leg can finish without the other. An attempt calls its owner with
content, any number of times, and with exactly one end, `finished` or `failed`:

    content(data)           bytes for the client; after the first bytes the answer cannot be taken back
    passthrough_target()    asks where more content may be written unparsed (`engines/passthrough.py`)
    finished()              the answer is complete: `account` and, unless streamed, `answer` can be read
    failed(failure)         the answer failed: whose fault it was, the refusal, and whether another attempt may help

If one leg's failure makes its partner fail, the partner is not at fault. But the partner's failure may be noticed
first: a decode engine that loses its prefill engine answers 5xx a moment before or after the prefill connection breaks.
So a decode failure is reported only after `PARTNER_WAIT_S`, in which the prefill leg may turn out to be at fault.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from warmroute_proxy.core.accounting.plausible import is_sure
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.dialects.chunk_view import decoded, read_view
from warmroute_proxy.server.base.engine_refusals import NO_WAITS, Waits, refusal_from_engine, status_of_engine_error
from warmroute_proxy.server.base.engine_text import names_hand_over
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.carrier import Carrier
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.leg import Leg, in_parts
from warmroute_proxy.server.engines.passthrough import Stream, Write
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyReservation
from warmroute_proxy.server.http.header_lines import Line
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.request.answer import Answer, AnswerBound, own_usage, prefill_usage, usage_of
from warmroute_proxy.server.request.believed import Asked, believed
from warmroute_proxy.server.request.dispatch import (
    Parts,
    answering_body,
    left_out,
    own_fields,
    prefill_body,
    provider_body,
    with_thoughts,
)
from warmroute_proxy.server.request.failure import Failure, not_connected, refused_by
from warmroute_proxy.server.request.prefill_leg import PrefillLeg
from warmroute_proxy.server.request.states import ATTEMPT, ATTEMPT_ENDED, AttemptEvent, AttemptState, next_state

log = logging.getLogger(__name__)

PARTNER_WAIT_S: float = 0.1
TRAILER_S: float = 2.0  # after an error or `[DONE]`, how long an engine may take to end its answer
ABORTED: Final = "the engine aborted the request"  # by an operator, for a full queue, or for a failed KV transfer
MAX_HELD_BYTES: Final = 1_048_576  # the limit of what a stream sends before its first content (roles, comments)
_EVENTS: Final = "text/event-stream"
_NONE: Final[frozenset[str]] = frozenset()
# Looked up only once here: each access to a member of an enum costs 900 instructions in Python 3.11.
_NEW, _SENT, _STOPPING = AttemptState.NEW, AttemptState.SENT, AttemptState.STOPPING
_SEND, _CONTENT, _FINISH = AttemptEvent.SEND, AttemptEvent.CONTENT, AttemptEvent.FINISH
_NOT_STREAMED: Final = UsageTracker(keep_sglext=False)  # shared by all non-streaming attempts; never fed


class AttemptOwner(Protocol):
    def content(self, data: bytes) -> None: ...
    def passthrough_target(self) -> Write | None: ...
    def prefilled(self, now_s: float) -> None: ...
    def finished(self, now_s: float) -> None: ...
    def failed(self, failure: Failure) -> None: ...
    def crashed(self) -> None: ...


class Attempt:
    """The legs of one dispatch; receives the data of the answering leg. Create, then `start`."""

    # Defaults on the class make construction cheap but reads slower. Most attempts neither change nor read these.
    answer: Answer | None = None
    _status = 0
    _waits = NO_WAITS
    _is_stream = False
    _answers = 1  # how many answers the stream has: choices times prompts
    unsupported: frozenset[str] = frozenset()  # what the engine does not take (`dialects.unsupported`)
    left_out: frozenset[str] = frozenset()  # the members of the chat that are left out for it
    _more_bytes = 0  # bytes of the prompt besides those that the client sent
    _size = 0
    _reserved_bytes = 0  # memory reserved for bytes of the answer that wait here
    _pending: Failure | None = None  # while the state is FAILING

    def __init__(
        self,
        owner: AttemptOwner,
        engines: Engines,
        decision: Decision,
        rid: str,
        asked: Asked,
        max_answer_bytes: int,
        memory: BodyReservation | None,
    ) -> None:
        """`memory`: counts the bytes of an answer that is gathered here; if None, only `max_answer_bytes` bounds it."""
        self.state = _NEW
        self.rid = rid
        self._asked = asked
        self.decision = decision
        self._owner = owner
        self._engines = engines
        self._bound = AnswerBound(max_answer_bytes, memory)
        answering = decision.worker or decision.decode
        assert answering is not None
        self._answering: Worker = answering
        self.engine = engines.of(answering)
        self.leg = Leg(self, streamed=asked.stream)
        self.scanner = _NOT_STREAMED
        self._prefill: PrefillLeg | None = None
        self._trailer: asyncio.TimerHandle | None = None
        self._gathered: list[bytes] = []  # the part of a stream before its content, or the whole answer
        if asked.stream:
            self._answers = asked.choices * asked.prompts
            keep_usage = asked.counts_first or bool(asked.stream_options.get("continuous_usage_stats"))
            self.scanner = UsageTracker(keep_sglext=asked.keep_sglext, keep_usage=keep_usage, rid=rid)

    def _advance(self, event: AttemptEvent) -> None:
        self.state = next_state(ATTEMPT, self.state, event)

    @property
    def tenant(self) -> str:
        """The tenant of the request; empty if there is only one tenant."""
        return self._asked.routing.tenant

    @property
    def ended(self) -> bool:
        """Whether the attempt has reported its end, or was given up."""
        return self.state in ATTEMPT_ENDED

    # -- the owner's side

    def start(
        self,
        asked: Asked,
        body: AnyBody,
        headers: str,
        path: str,
        *,
        tagged: bool,
        carrier: object | None = None,
        lacks: frozenset[str] = _NONE,
    ) -> None:
        """Send the leg, or both legs at once. `tagged`: the engine's KV events shall name the rid. `carrier`: takes the
        answering leg to its engine; if None, the proxy's own connection does. `lacks`: what the engine has refused of
        this request.
        """
        self._advance(_SEND)
        engine, prefill = self.engine, self.decision.prefill
        sign = engine.info.priority_sign
        priority = asked.engine_priority * sign if sign else 0
        own = own_fields(self.rid, asked.salt, tagged=tagged, priority=priority) if engine.is_sglang else ""
        rank = self._answering.dp_rank if engine.info.dp_size > 1 else None
        unsupported = lacks
        if engine.unsupported:
            unsupported |= engine.unsupported.get((asked.salt, asked.model_name), _NONE)
        if unsupported:
            self.unsupported, self.left_out = unsupported, left_out(unsupported, body)
        if prefill is None:
            parts = (
                answering_body(asked, body, own, rank, None, unsupported)
                if engine.is_sglang
                else with_thoughts(provider_body(asked, body, engine.config, unsupported), engine.thoughts)
            )
            self._send(engine.head(path, headers, asked.session), parts, carrier)
            return
        source = self._engines.of(prefill)
        bootstrap = {
            "bootstrap_host": source.config.bootstrap_host or source.upstream.host,
            "bootstrap_port": source.info.bootstrap_port,
            "bootstrap_room": self._engines.ids.bootstrap_room(prefill.dp_rank, source.info.dp_size, asked.prompts),
        }
        prefill_rank = prefill.dp_rank if source.info.dp_size > 1 else None
        self._prefill = PrefillLeg(self, self._owner.crashed, self._bound.memory)
        prompt = prefill_body(asked, body, own, prefill_rank, bootstrap, unsupported)
        source.upstream.send_with(source.head(path, headers), prompt, self._prefill.leg)
        parts = answering_body(asked, body, own, rank, bootstrap, unsupported)
        self._send(engine.head(path, headers), parts, carrier)

    def _send(self, head: bytes, parts: Parts, carrier: object | None) -> None:
        if carrier is None:
            self.engine.upstream.send_with(head, parts, self.leg)
        else:
            assert isinstance(carrier, Carrier)
            carrier.send_with(self.decision, head, parts, self.leg)

    def moved(self, decision: Decision) -> None:
        """Record that a gateway has sent the request to the engine of `decision` instead of the chosen one."""
        answering = decision.worker or decision.decode
        assert answering is not None
        self.decision = decision
        self._answering = answering
        self.engine = self._engines.of(answering)

    @property
    def usage(self) -> dict[str, Any] | None:
        return own_usage(self.answer, self.scanner)

    def account(self) -> tuple[Usage, dict[str, Any] | bytes | None]:
        """The reported tokens, and the answering engine's usage object: parsed, or as JSON bytes if it is known to
        state the same tokens. Counts that cannot be true are left out, and counted against the engine.
        """
        usage, reported = usage_of(self.answer, self.scanner, self._prefill)
        if is_sure(usage, self.decision.prompt_tokens_est, self._asked.most_tokens):
            return usage, reported
        found = believed(usage, reported, self._asked, self.decision, self.answer, self.scanner, self._more_bytes)
        for name in found.doubted:
            stated = getattr(usage, name)
            self._engines.watching.miscounted(self._answering.id, name, stated, self._engines.clock())
        return found.usage, found.reported

    def follows(self, size: int) -> None:
        """Record that the prompt also holds another engine's broken-off answer, `size` bytes at most."""
        self._more_bytes = size

    def prefill_usage(self) -> dict[str, Any] | None:
        return prefill_usage(self._prefill)

    def abort(self) -> None:
        """Stop every engine that takes part. A leg that was not sent yet is never sent."""
        self._advance(AttemptEvent.ABORT)
        for leg in (self.leg, self._prefill.leg if self._prefill is not None else None):
            if leg is not None and not leg.sent:
                leg.close()
        for worker in self.decision.workers:
            self._engines.of(worker).abort(self.rid)

    def close(self) -> None:
        """Give up the attempt: close the connections, and call the owner no more."""
        self._advance(AttemptEvent.CLOSE)
        self._close_legs()

    def pass_by(self, prefill_s: float) -> None:
        """Give up only the answering leg. Its engine goes on, and for that needs the prefill leg, which is closed
        `prefill_s` seconds later.
        """
        self._advance(AttemptEvent.CLOSE)
        self.leg.close()
        if self._prefill is not None and not self._prefill.leg.done:
            self._trailer = asyncio.get_running_loop().call_later(prefill_s, self._guard, self._prefill.close)

    def _close_legs(self) -> None:
        self.leg.close()
        if self._prefill is not None:
            self._prefill.close()

    # -- the answering leg

    def holds(self, size_bytes: int) -> bool:
        """Reserve memory for the bytes of the answer that wait here: an unfinished event, what came before the content,
        and `size_bytes` more. Returns whether there was enough memory; if not, the attempt has failed.
        """
        memory, scanner = self._bound.memory, self.scanner
        waiting = size_bytes + scanner.held_bytes + (self._size if self._is_stream and not scanner.started else 0)
        if memory is None or self.ended or waiting <= self._reserved_bytes:
            return True
        more = waiting - self._reserved_bytes + UNCOUNTED_BYTES  # in steps, since an event may come in small pieces
        if not memory.add_answer(more):
            self._fail_by(Failure(memory.refusal(), (), False))
            return False
        self._reserved_bytes += more
        return True

    def streams(self) -> Stream | None:
        """This attempt if its answer is a stream, else None."""
        return self if self._is_stream else None

    def passthrough_target(self) -> Write | None:
        """The function to which chunks may be written unparsed, now that the first content was sent."""
        return None if self.ended else self._owner.passthrough_target()

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self._status = status
        if status != 200:
            self._waits = Waits.of(headers)
        elif self.leg.streamed:  # an answer that is not a stream is read whole: it may be an error
            self._is_stream = headers.get("content-type", _EVENTS).lower().startswith(_EVENTS)

    def on_body(self, data: bytes) -> None:
        if self.ended:
            return
        if self._is_stream:
            self._take_events(data)
            return
        self._size += len(data)
        max_bytes, memory = self._bound
        if self._size > max_bytes:
            self._fail(502, f"the engine's answer exceeds {max_bytes} bytes", None, retryable=False)
            return
        if memory is not None and not memory.add_answer(len(data)):
            self._fail_by(Failure(memory.refusal(), (), False))
            return
        self._gathered.append(data)

    def _take_events(self, data: bytes) -> None:
        scanner = self.scanner
        try:
            out = scanner.feed(data)
        except ValueError as error:
            self._fail(502, f"the engine's stream is broken: {error}", self._answering, retryable=False)
            return
        if scanner.held_bytes <= UNCOUNTED_BYTES or self.holds(0):
            self._take_passed(out)

    def _take_passed(self, out: bytes) -> None:
        """Pass on the bytes for the client, and end the attempt if the stream has ended."""
        scanner = self.scanner
        if scanner.started:
            if self._gathered:
                out = b"".join(self._gathered) + out
                self._gathered.clear()
            if out:
                self._pass(out)
        elif out:
            self._gathered.append(out)
            self._size += len(out)
            if self._size > MAX_HELD_BYTES:
                self._fail(502, "the engine's stream has no content", self._answering, retryable=True)
                return
            if self._size > UNCOUNTED_BYTES and not self.holds(0):
                return
        if scanner.done:
            self._stream_done()
        elif scanner.error is not None:
            self._close_later()

    def _note_thoughts(self, name: str) -> None:
        """Remember the name of the JSON member in which the server writes its reasoning. Clients send the reasoning
        back in later turns, and the server reads it under this name.
        """
        if name:
            self.engine.thoughts = name

    def _stream_done(self) -> None:
        if self.scanner.error is not None:
            self._fail_by_event()
        elif self.scanner.aborted and self.state is not _STOPPING:
            self._fail(503, ABORTED, self._answering, retryable=True)
        elif not self.ended:
            if self._gathered:
                self._pass(b"".join(self._gathered))  # a stream without content is still an answer
            if not self.engine.is_sglang:
                self._note_thoughts(self.scanner.thoughts)
            self._advance(_FINISH)
            self._close_later()
            self._owner.finished(self._engines.clock())

    def _pass(self, data: bytes) -> None:
        if self.state is _SENT:
            self._advance(_CONTENT)
        self._owner.content(data)

    def on_end(self) -> None:
        self._cancel_trailer()
        if self._is_stream:
            self._stream_end()
        elif not self.ended:
            self._whole_end()

    def _stream_end(self) -> None:
        scanner = self.scanner
        if not self.ended:
            self._take_passed(scanner.end())
        if self.ended:
            return
        if scanner.error is not None:
            self._fail_by_event()
        elif scanner.ended_choices >= self._answers:
            self._stream_done()  # all choices have ended, although no [DONE] came
        else:
            self._fail(502, "the engine ended its stream early", self._answering, retryable=True)

    def on_whole(self, lines: list[Line], body: bytes, now_s: float) -> None:
        if self.leg.streamed or len(body) > min(UNCOUNTED_BYTES, self._bound.max_bytes):
            in_parts(self, lines, body)
            return
        if self._trailer is not None:
            self._cancel_trailer()
        if not self.ended:
            self._answered(body, now_s)

    def _whole_end(self) -> None:
        data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
        if self._status != 200:
            self._fail_by(self._refused(self._answering, self._status, data))
        elif self.leg.streamed:
            self._fail_by_answer(data, "the engine did not answer with an event stream")
        else:
            self._answered(data, self._engines.clock())

    def _answered(self, data: bytes, now_s: float) -> None:
        """Take a complete answer with status 200 that is not streamed."""
        try:
            self.answer = Answer(data, self.rid)
        except Refusal:
            self._fail_by_answer(data, "the engine's answer is not a JSON object")
            return
        if self.answer.aborted and self.state is not _STOPPING:
            self._fail(503, ABORTED, self._answering, retryable=True)
            return
        if not self.answer.is_one:
            self.answer = None
            self._fail_by_answer(data, "the engine's answer has no choices")
            return
        if not self.engine.is_sglang:
            self._note_thoughts(self.answer.thoughts)
        self._advance(_FINISH)
        if self._prefill is not None or not self.leg.done:
            self._close_later()
        self._owner.finished(now_s)

    def on_fail(self, cause: Cause, reason: str) -> None:
        if cause is Cause.OURS:
            self._conclude(not_connected(reason))
            return
        refusal = Refusal(502, reason, code="engine_error")
        self._fail_by(Failure(refusal, self._ranks_of(self._answering), True, cause=cause))

    def on_crash(self) -> None:
        self.close()
        self._owner.crashed()

    def _fail_by_event(self) -> None:
        error = self.scanner.error or {}
        self._fail_by(self._refused(self._answering, status_of_engine_error(error), error))

    def _fail_by_answer(self, data: bytes, problem: str) -> None:
        """Fail because of a 200 that is not an answer. Reports the error in its body, or `problem` without one."""
        view = read_view(data)
        fault = None if view is None else view.fault()
        if fault is None:
            self._fail(502, problem, self._answering, retryable=True)
            return
        found = decoded(data) if fault is True else fault
        error = found if isinstance(found, dict) else {"message": str(found)}
        self._fail_by(self._refused(self._answering, status_of_engine_error(error), error))

    # -- the prefill leg

    def prefill_answered(self, status: int, body: bytes, waits: Waits) -> None:
        self._cancel_trailer()
        if self.ended:
            return
        if status == 200:
            self._owner.prefilled(self._engines.clock())
            self._conclude_pending()  # the prefill leg is not at fault
            return
        worker = self.decision.prefill
        assert worker is not None
        self._waits = waits
        self._conclude(self._refused(worker, status, body))

    def prefill_failed(self, cause: Cause, reason: str) -> None:
        worker = self.decision.prefill
        if cause is Cause.OURS:
            self._conclude(not_connected(reason))
        elif not self.ended and not self.scanner.started and worker is not None:
            refusal = Refusal(502, f"prefill: {reason}", code="engine_error")
            self._conclude(Failure(refusal, self._ranks_of(worker), True, cause=cause))
        else:
            self._conclude_pending()

    # -- the end

    def _fail(self, status: int, message: str, worker: Worker | None, *, retryable: bool) -> None:
        refusal = Refusal(status, message, code="engine_error")
        self._fail_by(Failure(refusal, (worker.id,) if worker else (), retryable))

    def _fail_by(self, failure: Failure) -> None:
        if self.ended or self.state is AttemptState.FAILING:
            return
        if self._prefill is None or self._prefill.leg.done or not failure.at_fault:
            self._conclude(failure)
            return
        self._advance(AttemptEvent.LEG_FAILED)
        self._pending = failure
        asyncio.get_running_loop().call_later(PARTNER_WAIT_S, self._guard, self._conclude_pending)

    def _refused(self, worker: Worker, status: int, error: bytes | object) -> Failure:
        """What an engine's error means. `error`: the body of the answer, or the decoded error object."""
        found = refusal_from_engine(status, error, self._waits, time.time())
        engine = self._engines.of(worker)
        if engine.refusals.is_logged(status, self._engines.clock()):
            log.warning("worker %s answered %d to request %s: %s", worker.id, status, self.rid, found.refusal.internals)
        failure = refused_by(worker, found, engine.config.kind)
        prefill, decode = self.decision.prefill, self.decision.decode
        if prefill is None or decode is None or not failure.at_fault:
            return failure
        return failure._replace(pair=(prefill, decode)) if names_hand_over(found.refusal.internals or "") else failure

    def _ranks_of(self, worker: Worker) -> tuple[str, ...]:
        """The ids of all workers (ranks) of an engine, since a broken connection is not the fault of one rank alone."""
        return tuple(other.id for other in self._engines.of(worker).workers())

    def _conclude_pending(self) -> None:
        """Report the failure that waited, because the prefill leg has ended well or has not failed in time."""
        if self._pending is not None:
            self._conclude(self._pending)

    def _conclude(self, failure: Failure) -> None:
        if not self.ended:
            self._advance(AttemptEvent.FAIL)
            self._owner.failed(failure)

    @property
    def waits_for(self) -> Worker:
        prefill = self.decision.prefill
        if prefill is None or self._prefill is None or self._prefill.leg.done:
            return self._answering
        return prefill

    def _close_later(self) -> None:
        """Close the connections after `TRAILER_S`, unless the engines end their answers before that."""
        if not self.leg.ends or (self._prefill is not None and not self._prefill.leg.ends):
            self._trailer = asyncio.get_running_loop().call_later(TRAILER_S, self._guard, self._end_trailer)

    def _cancel_trailer(self) -> None:
        """Cancel the timer once both legs have ended, since it would keep the whole request in memory."""
        if self._trailer is not None and self.leg.done and (self._prefill is None or self._prefill.leg.done):
            self._trailer.cancel()
            self._trailer = None

    def _end_trailer(self) -> None:
        if not self.leg.done and self.scanner.error is not None:
            self._fail_by_event()
        self._close_legs()

    def _guard(self, step: Callable[[], None]) -> None:
        """Run what a timer calls. The client gets an answer even if that fails."""
        try:
            step()
        except Exception as error:
            log.error("a timer of an attempt failed: %s", type(error).__name__)
            self.close()
            self._owner.crashed()
