"""The event loop of a fleet that is split into prefill and decode workers (PD), as SGLang does it.

A turn is sent to a pair of workers. First the decode worker reserves KV pages, in order of arrival; only then may the
prefill worker compute the turn's prompt. When the whole prompt is computed, its KV is transferred, at a cost for each
token (`Costs.transfer_s`; links are not shared). The KV stays on the prefill worker until the transfer has ended.
The turn then joins the decode worker's batch at the next step and has its first token.
"""

from functools import partial
from math import inf

from warmroute_lab.engine.model.model import Work
from warmroute_lab.replay.fleet import ReplayTurn, Worker
from warmroute_lab.replay.simulation import Simulation


class SplitSimulation(Simulation):
    """A `Simulation` with prefill and decode workers."""

    def _land(self, turn: ReplayTurn, work: Work, now_s: float) -> None:
        assert turn.worker is not None
        turn.decode = decode = self.policy.choose_decode(turn, turn.worker, now_s)
        decode.requests += 1
        decode.tokens += turn.request.input_tokens
        turn.decode_work = Work(work.prompt_tokens, work.output_tokens, (), owner=turn)
        decode.scheduler.advance(now_s)
        decode.scheduler.add(turn.decode_work, now_s)
        self._grant(decode, now_s)

    def _grant(self, decode: Worker, now_s: float) -> None:
        """Start the prefill of the turns that get pages on the decode worker now."""
        for granted in decode.scheduler.allocate(now_s):
            turn: ReplayTurn = granted.owner
            assert turn.worker is not None
            assert turn.work is not None
            self._add(turn.worker, turn.work, now_s)

    def _observe(self, worker: Worker, now_s: float) -> None:
        worker.next_s = inf
        freed = False
        for at_s, work, ended in worker.scheduler.advance(now_s):
            if worker.role == "prefill":
                transfer_s = worker.scheduler.costs.transfer_s(work.prompt_tokens)
                self.at(at_s + transfer_s, partial(self._hand_over, work.owner))
            elif ended:
                freed = True
                self._ended(work.owner, at_s)
            else:
                self._started(work.owner, at_s)
        if freed:
            self._grant(worker, now_s)
        self._schedule(worker)

    def _hand_over(self, turn: ReplayTurn, now_s: float) -> None:
        prefill, decode = turn.worker, turn.decode
        assert prefill is not None
        assert decode is not None
        assert turn.work is not None
        assert turn.decode_work is not None
        prefill.requests -= 1
        prefill.tokens -= turn.request.input_tokens
        prefill.scheduler.advance(now_s)
        prefill.scheduler.release(turn.work, now_s)
        self._schedule(prefill)
        decode.scheduler.advance(now_s)
        decode.scheduler.deliver(turn.decode_work, turn.work.cached_tokens, now_s)
        self._schedule(decode)

    def _release(self, turn: ReplayTurn) -> None:
        assert turn.decode is not None
        turn.decode.requests -= 1
        turn.decode.tokens -= turn.request.input_tokens
