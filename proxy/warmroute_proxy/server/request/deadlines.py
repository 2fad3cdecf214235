"""Limits how long a request may take: in all, to its first token, and between tokens. Checked four times a second."""

from typing import Final

import msgspec

from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.server.base.config import Config, Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.failure import Failure, timed_out

LOST_IDLE_S: float = 2.0  # limit between tokens, if the engine answers no probes and another can continue its answer
COMMENT_EVERY_S: Final = 15.0
PROGRESS_EVERY_TOKENS: Final = 32


class RequestProgress(msgspec.Struct):
    """How far one request has come, and when. Times are read from the monotonic clock."""

    dispatched_s: float = 0.0
    last_data_s: float = 0.0
    comment_at_s: float = 0.0
    _swept_tokens: int = 0
    _reported_tokens: int = 0

    def dispatched(self, now_s: float) -> None:
        self.dispatched_s = self.last_data_s = now_s

    def restart(self) -> None:
        """Count tokens from 0 again, because another engine goes on with the answer."""
        self._reported_tokens = self._swept_tokens = 0

    def observe(self, tokens_seen: int, now_s: float) -> bool:
        """Record how many tokens have come so far. Returns whether enough of them are new to report to the router."""
        if tokens_seen == self._swept_tokens:
            return False
        self._swept_tokens = tokens_seen
        self.last_data_s = now_s
        if tokens_seen - self._reported_tokens < PROGRESS_EVERY_TOKENS:
            return False
        self._reported_tokens = tokens_seen
        return True


class Deadlines:
    def __init__(self, limits: Limits, engines: Engines) -> None:
        self.head_hold_s = limits.head_hold_s
        """How long the head of a stream is held back, in case the request has to be refused."""
        self._limits = limits
        self._engines = engines

    def replace(self, config: Config) -> None:
        """Use the limits of another config, from the next check on."""
        self._limits = config.limits
        self.head_hold_s = config.limits.head_hold_s

    def missed(
        self,
        attempt: Attempt,
        progress: RequestProgress,
        received_s: float,
        now_s: float,
        *,
        answering: bool,
        continued: bool,
        carried: bool,
    ) -> Failure | None:
        """The deadline that an attempt has missed, as a failure; None while it is in time.

        `answering`: content has come. `continued`: another engine may continue the answer. `carried`: a gateway holds
        the engine's connection. If a client reads slowly, its gateway stops reading the answer, and the engine looks
        silent. So behind a gateway, an engine counts as silent only if it answers no probes either.
        """
        limits, worker = self._limits, attempt.waits_for
        if now_s - received_s > limits.total_timeout_s:
            refusal = Refusal(504, f"no complete answer within {limits.total_timeout_s:g} s", code="deadline_exceeded")
            return Failure(refusal, (), False)
        lost = worker.engine in self._engines.lost
        if answering:
            idle_s = min(limits.idle_timeout_s, LOST_IDLE_S) if continued and lost else limits.idle_timeout_s
            slow = attempt.leg.paused or (carried and not lost)
            if not slow and now_s - progress.last_data_s > idle_s:
                return timed_out(worker, f"no token for {idle_s:g} s")
        elif now_s - progress.dispatched_s > limits.first_token_timeout_s:
            awaited = "first token" if attempt.leg.streamed else "answer"
            return timed_out(worker, f"no {awaited} within {limits.first_token_timeout_s:g} s")
        elif lost:
            refusal = Refusal(504, "the engine stopped answering", code="engine_timeout")
            return Failure(refusal, (worker.id,), True, cause=Cause.BROKEN)
        return None

    def comment_is_due(self, progress: RequestProgress, received_s: float, now_s: float) -> bool:
        """Whether a client that waits for its first token gets an SSE comment now, as a keep-alive."""
        if now_s < (progress.comment_at_s or received_s + self.head_hold_s):
            return False
        progress.comment_at_s = now_s + COMMENT_EVERY_S
        return True
