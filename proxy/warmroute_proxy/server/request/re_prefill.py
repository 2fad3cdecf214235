"""Moves the hottest prompts of a draining or lost engine: computes them on the engines that their sessions move to.

The sessions of a drained engine find no cache at their next request, and their clients would wait while the prompt is
computed. To spare them this wait, the proxy keeps recent prompts (`core.placement.hot_prompts`). For each kept prompt
of an engine that drains or has gone, the router chooses the engine that would get the session's next request now. This
new engine gets the prompt's body again, with the same cache salt and a limit of one output token. The router then knows
that the prompt is cached there, and sends the session's next request there.

A re-prefill delays no client's request noticeably, and nobody is charged for it:
- each engine computes one re-prefill at a time, and only if no request waits in the proxy's queue or at that engine;
- after a re-prefill, the engine gets no other one for a while, so that re-prefills use at most `SHARE` of its idle
  prefill time. The pause follows from the duration of the last re-prefill and the measured utilisation;
- prompts that the new engine has mostly cached, or that the old engine has lost, are skipped;
- a re-prefill has no ledger entry and no receipt: `/metrics` counts re-prefills and their tokens.

The copies of a prompt for an engine, and the answer, count for the memory of the prompt's tenant. Without memory, no
re-prefill begins.

Limits: those of `core.placement.hot_prompts`; at most `MAX_TRIED` prompts of an engine in one call of `sweep`;
`TIMEOUT_S` for each re-prefill.
"""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS
from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.hot_prompts import HotPrompt, HotPrompts
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.engine_headers import engine_headers
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.http.body_memory import BodyMemory, BodyReservation
from warmroute_proxy.server.intake.body import NO_BODY, Body
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.failure import Failure
from warmroute_proxy.server.request.open_requests import OpenRequests

log = logging.getLogger(__name__)

SHARE: Final = 0.5
MIN_GAIN_TOKENS: Final = 1024
MAX_TRIED: Final = 8
TIMEOUT_S: Final = 120.0
MAX_ANSWER_BYTES: Final = 1_048_576
EXPIRE_EVERY_S: Final = 5.0
LOOK_AGAIN_S: Final = 1.0
"""The wait after a call of `sweep` in which no re-prefill could begin."""

_NOT_OF_THE_PROMPT: Final = frozenset(
    {"max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "stream", "stream_options", "logprobs",
     "top_logprobs", "echo", "metadata"}
)  # fmt: skip


class RePrefills:
    """The prompts that are kept, and the re-prefills under way."""

    def __init__(
        self,
        kept_bytes: int,
        router: Router,
        engines: Engines,
        admission: Admission,
        open_requests: OpenRequests,
        metrics: Metrics,
        clock: Callable[[], float],
        memory: BodyMemory,
    ) -> None:
        """`kept_bytes`: the maximum size of all prompts that this process keeps."""
        self.prompts = HotPrompts(kept_bytes)
        self.min_bytes = self.prompts.min_bytes
        self.done = 0
        self.router = router
        self.engines = engines
        self.clock = clock
        self._admission = admission
        self._open_requests = open_requests
        self._metrics = metrics
        self._memory = memory
        self._under_way: dict[str, _RePrefill] = {}  # new engine -> its only re-prefill
        self._rests_until_s: dict[str, float] = {}  # by engine
        self._expired_s = 0.0
        self._looks_at_s = 0.0

    def keep(self, parsed: ParsedRequest, body: bytes, path: str, cache_worker: str) -> None:
        if parsed.several:
            return
        routing = msgspec.structs.replace(parsed.routing, may_forward=False, expected_output_tokens=1)
        model = parsed.model.name if parsed.alias else None
        prompt = HotPrompt(routing, body, path, parsed.salt, model, parsed.dropped, cache_worker)
        self.prompts.keep(prompt, self.clock())

    def waiting(self, engine_id: str) -> int:
        """How many kept prompts of an engine are not yet computed elsewhere, including the re-prefills under way."""
        under_way = sum(1 for one in self._under_way.values() if one.leaves == engine_id)
        return len(self.prompts.hottest(self._cache_workers(engine_id), 0.0)) + under_way

    def sweep(self, now_s: float) -> None:
        """Begin the re-prefills that may begin now; called several times a second."""
        if now_s - self._expired_s >= EXPIRE_EVERY_S:
            self._expired_s = now_s
            self.prompts.expire(now_s)
        if self._under_way or self.engines.leaving():
            try:
                self._go_on(now_s)
            except Exception as error:  # an error here must not stop the sweep of requests
                log.error("computing prompts elsewhere failed: %s", type(error).__name__)
                self._looks_at_s = now_s + LOOK_AGAIN_S

    def _go_on(self, now_s: float) -> None:
        for one in list(self._under_way.values()):
            one.sweep(now_s)
        if self._open_requests.closed or now_s < self._looks_at_s:
            return
        begun = sum([self._move_from(engine_id, now_s) for engine_id in self.engines.leaving()])
        self._looks_at_s = now_s if begun else now_s + LOOK_AGAIN_S

    def close(self) -> None:
        for one in list(self._under_way.values()):
            one.give_up()

    def ended(self, one: "_RePrefill", outcome: str, tokens: int, took_s: float) -> None:
        """Record that a re-prefill has ended. It is not retried: its prompt counts as the new engine's from the
        start."""
        self._under_way.pop(one.engine_id, None)
        idle = 1.0 - min(self.router.fleet.busy(self.clock()), 0.9)
        self._rests_until_s[one.engine_id] = self.clock() + took_s * (1 / (SHARE * idle) - 1)
        labels = (("outcome", outcome),)
        self._metrics.add(declared.RE_PREFILLS_TOTAL, 1, labels)
        self._metrics.add(declared.RE_PREFILLED_TOKENS_TOTAL, tokens, labels)
        self.done += outcome == "done"
        self._looks_at_s = 0.0
        self._admission.freed()

    def _move_from(self, engine_id: str, now_s: float) -> int:
        """Begin the re-prefills of one engine's prompts that may begin now. Returns their number."""
        begun = 0
        for prompt in self.prompts.hottest(self._cache_workers(engine_id), now_s)[:MAX_TRIED]:
            decision = self._placed(prompt, now_s)
            if decision is None:
                prompt.cache_worker = ""  # no engine is left that could compute it
            elif decision.other_worker_tokens - decision.predicted_cached_tokens < MIN_GAIN_TOKENS:
                prompt.cache_worker = decision.cache_worker  # the new engine has it, or no engine has it any more
            elif self._may_begin(prompt, decision, now_s):
                begun += self._begin(prompt, decision, engine_id)
        return begun

    def _cache_workers(self, engine_id: str) -> list[str]:
        return [worker.id for worker in self.engines.by_id[engine_id].workers()]

    def _placed(self, prompt: HotPrompt, now_s: float) -> Decision | None:
        try:
            return self.router.place(prompt.routing, now_s)
        except NoWorker:
            return None

    def _may_begin(self, prompt: HotPrompt, decision: Decision, now_s: float) -> bool:
        engine_id = decision.workers[0].engine
        return (
            engine_id not in self._under_way
            and now_s >= self._rests_until_s.get(engine_id, 0.0)
            and not self._admission.queue.requests
            and decision.reasons[0].queue_s <= 0.0
            and self.router.has_capacity(prompt.routing.model, decision, now_s)
        )

    def _begin(self, prompt: HotPrompt, decision: Decision, leaves: str) -> bool:
        """Begin a re-prefill, unless there is no memory for it. Returns whether it has begun."""
        memory = self._memory.reserve(prompt.routing.tenant, 0)
        if not memory.grow_by_own(len(prompt.body) * self._memory.copies):
            return False
        one = _RePrefill(self, prompt, decision, leaves, memory)
        self._under_way[one.engine_id] = one
        prompt.cache_worker = decision.cache_worker
        one.start()
        return True


class _Asked(NamedTuple):
    """The fields of a request that an attempt reads, besides the body."""

    wire_model: str | None
    salt: str
    model_name: str
    routing: RoutingRequest
    opaque: bool = True
    most_tokens: int = MAX_TOKENS
    demanded_tokens: int = 0
    session: str | None = None
    stream: bool = False
    keep_sglext: bool = False
    stream_options: Mapping[str, Any] = MappingProxyType({})
    metadata: dict[str, Any] | None = None
    prompts: int = 1
    choices: int = 1
    counts_first: bool = False
    dropped: frozenset[str] = frozenset()
    engine_priority: int = 0


class _RePrefill:
    """One re-prefill: the owner of an attempt without a client. `leaves`: the prompt's old engine."""

    def __init__(
        self, owner: RePrefills, prompt: HotPrompt, decision: Decision, leaves: str, memory: BodyReservation
    ) -> None:
        self.prompt = prompt
        self.leaves = leaves
        self.engine_id = decision.workers[0].engine
        self._owner = owner
        self._decision = decision
        self._rid = owner.engines.ids.rid()
        self._began_s = owner.clock()
        drop = _NOT_OF_THE_PROMPT | prompt.dropped
        self._body = Body(b"".join(Body(prompt.body).rewritten(drop, b'"max_tokens":1')))
        self._memory = memory
        self._asked = _Asked(prompt.wire_model, prompt.salt, prompt.routing.model, prompt.routing)
        self._attempt = Attempt(self, owner.engines, decision, self._rid, self._asked, MAX_ANSWER_BYTES, memory)
        self._ticket = owner.router.dispatched(prompt.routing, decision, self._began_s)

    def start(self) -> None:
        prompt, decision = self.prompt, self._decision
        tagged = self._owner.engines.tag(decision, self._rid, prompt.routing.chain)
        self._attempt.start(self._asked, self._body, engine_headers({}), prompt.path, tagged=tagged)

    def sweep(self, now_s: float) -> None:
        """Give up after `TIMEOUT_S`."""
        if now_s - self._began_s > TIMEOUT_S:
            self.give_up()

    def give_up(self) -> None:
        if not self._attempt.ended:
            self._attempt.abort()
            self._attempt.close()
            self._end("given up", ())

    def content(self, data: bytes) -> None:
        """Drop the answer."""

    def passthrough_target(self) -> None:
        """Always None, since a re-prefill has no client."""

    def prefilled(self, now_s: float) -> None:
        self._owner.router.first_token(self._ticket, now_s)

    def finished(self, now_s: float) -> None:
        self.prefilled(now_s)
        self._end("done", ())

    def failed(self, failure: Failure) -> None:
        """Give up the attempt; the next request of the session will compute the prompt."""
        self._attempt.abort()
        self._attempt.close()
        self._end("failed", failure.at_fault if failure.pair is None else ())

    def crashed(self) -> None:
        self._attempt.close()
        self._end("failed", ())

    def _end(self, outcome: str, at_fault: tuple[str, ...]) -> None:
        """Release the router's load by `failed`, not by `settled`, even if all went well: a re-prefill is not a turn of
        a client. It shows only that tokens are cached.
        """
        owner, now_s = self._owner, self._owner.clock()
        self._body = NO_BODY
        self._memory.close()
        owner.router.failed(self._ticket, now_s, at_fault)
        usage = self._attempt.usage or {}
        tokens = usage.get("prompt_tokens")
        counted = tokens if isinstance(tokens, int) and outcome == "done" else 0
        owner.engines.settled(self._decision, self._rid, counted)
        computed = self._decision.prompt_tokens_est - self._decision.predicted_cached_tokens if counted else 0
        owner.ended(self, outcome, computed, now_s - self._began_s)
