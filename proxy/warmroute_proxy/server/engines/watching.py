"""Watches engines: keeps the last two reports of each worker, and judges conditions of workers and of the region.

A condition is a lasting problem, such as a worker that answers nothing. The memory is bounded: it has reports and
counts for each worker, and one state per condition for each worker and for the region.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from warmroute_proxy.core.cache.occupancy import Occupancy
from warmroute_proxy.core.load.conditions import Condition, Phase, Watched
from warmroute_proxy.core.load.signs import (
    LEAST_REPEATED_TOKENS,
    AcceptLengths,
    EngineReport,
    Sign,
    empty_answers,
    hand_overs,
    missing_hits,
    no_hits,
    retractions,
    starving_side,
    transfers,
    unexplained,
)
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.queue.shortage import Shortage
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import GaugeRow, Labels, Metrics

log = logging.getLogger(__name__)

WATCH_EVERY_S: Final = 5.0
PAGE: Final = "docs/reference/conditions.md"
_QUEUES: Final = ("waiting", "bootstrap_queue", "prealloc_queue", "transfer_queue")


class Reported(NamedTuple):
    """A worker with its last two reports."""

    worker: Worker
    before: EngineReport
    now: EngineReport


class Raised(NamedTuple):
    """A condition that holds, since a time of the monotonic clock."""

    condition: Condition
    subject: str
    phase: Phase
    since_s: float
    detail: str


class Watching:
    """The reports and conditions of one region. `region`: the subject of conditions that are not about one worker."""

    def __init__(self, region: str, metrics: Metrics, unix_clock: Callable[[], float]) -> None:
        self._region = region
        self._metrics = metrics
        self._reported: dict[str, Reported] = {}
        self._accept_lengths: dict[str, AcceptLengths] = {}
        self._watched: dict[tuple[Condition, str], Watched] = {}
        self.answers: Counter[str] = Counter()
        """How many requests each worker has answered since its answers were last judged."""

        self._empty_answers: Counter[str] = Counter()
        self._hand_overs: dict[str, tuple[int, str]] = {}  # worker -> failed transfers of KV in a row, the last `words`
        self.reports_hits: Callable[[str], bool] = lambda _worker_id: True
        """Returns whether a worker has reported any token as cached since it started."""

        self.of_others: Callable[[], list[Raised]] = list
        """Returns what holds by what other processes of this proxy observe."""

        self._present: set[str] = set()
        self._evicted_tokens = 0
        self._repeats: Counter[str] = Counter()
        self._unknown_tokens = 0
        self._prompt_tokens = 0
        self._hits = (0, 0, 0, 0)
        self._miscounted: Counter[str] = Counter()
        self._read_at_s: dict[str, float] = {}
        self._unix_clock = unix_clock
        self.shortage = Shortage()
        """The shortage of KV memory that admission observes."""

    def is_due(self, engine_id: str, now_s: float) -> bool:
        """Whether it is time to read an engine's metrics or, with an empty id, to judge the region.

        If so, the interval to the next time begins now.
        """
        if now_s - self._read_at_s.get(engine_id, -WATCH_EVERY_S) < WATCH_EVERY_S:
            return False
        self._read_at_s[engine_id] = now_s
        return True

    def observe(self, workers: list[Worker], reports: dict[int, EngineReport], now_s: float) -> None:
        """Take the reports of one engine, by rank. If a report counts fewer prompt tokens than before, the engine has
        restarted.
        """
        for worker in workers:
            now = reports.get(worker.dp_rank)
            if now is None:
                continue
            known = self._reported.get(worker.id)
            before = now if known is None or known.now.prompt_tokens > now.prompt_tokens else known.now
            self._reported[worker.id] = reported = Reported(worker, before, now)
            if known is not None:
                self._observe_worker(reported, now_s)

    def absent(self, workers: list[Worker]) -> None:
        """Forget the reports of workers whose engine is down, and the conditions that follow from a report."""
        for worker in workers:
            self._reported.pop(worker.id, None)
            for condition in (Condition.ACCEPT_LENGTH, Condition.RETRACTIONS, Condition.TRANSFERS):
                self._watched.pop((condition, worker.id), None)

    def answered_nothing(self, worker_id: str, model: str) -> None:
        """Count a worker's answer that has neither text nor tool calls."""
        self._empty_answers[worker_id] += 1
        labels = (("worker", worker_id), ("model", model))
        self._metrics.add(declared.EMPTY_ANSWERS_TOTAL, labels=labels)

    def not_handed_over(self, worker_id: str, words: str) -> None:
        """Count a failed transfer of KV. `words`: between which engines it was, and what other transfers show."""
        failed, _ = self._hand_overs.get(worker_id, (0, ""))
        self._hand_overs[worker_id] = (failed + 1, words)

    def handed_over(self, *worker_ids: str) -> None:
        if self._hand_overs:
            for worker_id in worker_ids:
                if worker_id in self._hand_overs:
                    self._hand_overs[worker_id] = (0, "")

    def lost(self, worker_id: str, loss: Mapping[str, int], cached_tokens: int, occupancy: Occupancy) -> None:
        """Record a turn that found fewer cached tokens than expected. `loss`: the missing tokens by reason."""
        unknown = loss.get("unknown", 0)
        if unknown >= LEAST_REPEATED_TOKENS and not cached_tokens and not occupancy.reports:
            self._repeats[worker_id] += 1
        if occupancy.has_events:  # a worker with KV events reports what it evicts, so nothing should be unknown
            self._unknown_tokens += unknown

    def miscounted(self, worker_id: str, name: str, stated: int, now_s: float) -> None:
        """Count an impossible number of tokens in a worker's report."""
        self._miscounted[worker_id] += 1
        self._metrics.add(declared.IMPOSSIBLE_COUNTS_TOTAL, labels=(("worker", worker_id), ("count", name)))
        self._sign(Condition.MISCOUNTED, worker_id, Sign(True, f"{stated:,} {name} were reported"), now_s)

    def observe_region(self, workers: list[Worker], now_s: float) -> None:
        """Judge the region and its workers' counts. Forget all workers but `workers`, which are present."""
        ids = {worker.id for worker in workers}
        for gone in self._reported.keys() - ids:
            del self._reported[gone]
            self._accept_lengths.pop(gone, None)
        for key in [key for key in self._watched if key[1] not in ids and key[1] != self._region]:
            del self._watched[key]
        self._observe_answers(ids, now_s)
        self._hand_overs = {id_: found for id_, found in self._hand_overs.items() if id_ in ids}
        for worker_id, found in self._hand_overs.items():
            self._sign(Condition.HAND_OVERS, worker_id, hand_overs(*found), now_s)
        sides: dict[str, dict[str, EngineReport]] = {"prefill": {}, "decode": {}, "aggregated": {}}
        for worker_id, reported in self._reported.items():
            sides[reported.worker.role][worker_id] = reported.now
        self._sign(Condition.STARVING_SIDE, self._region, starving_side(sides["prefill"], sides["decode"]), now_s)
        now = self._totals()
        evicted, reported_tokens, drops, unknown = [new - old for new, old in zip(now, self._hits, strict=True)]
        if ids != self._present:  # then the totals fall
            self._metrics.keep_workers(ids)
            self._present, now = ids, self._totals()
        self._hits, self._evicted_tokens = now, self._evicted_tokens + evicted
        self._sign(Condition.MISSING_HITS, self._region, missing_hits(evicted + unknown, reported_tokens, drops), now_s)
        self._observe_causes(ids, now_s)
        lacking = self.shortage.sign(self._evicted_tokens, self._unix_clock())
        self._sign(Condition.WORKING_SET, self._region, lacking, now_s)

    def _totals(self) -> tuple[int, int, int, int]:
        total = self._metrics.total
        return (
            total(declared.LOSS_TOKENS_TOTAL, ("class", "evicted")),
            total(declared.CACHED_TOKENS_TOTAL),
            total(declared.KV_INDEX_DROPS_TOTAL),
            total(declared.LOSS_TOKENS_TOTAL, ("class", "unknown")),
        )

    def forget(self, engine_id: str) -> None:
        """Forget an engine that is gone. `observe_region` later drops the reports and counters of its workers."""
        self._read_at_s.pop(engine_id, None)

    def own(self) -> list[Raised]:
        """The conditions that hold now by what this process observes."""
        return [
            Raised(each.condition, each.subject, each.phase, each.since_s, each.detail)
            for each in self._watched.values()
            if each.is_raised
        ]

    def raised(self) -> list[Raised]:
        """The conditions that hold now in any process of this proxy, ordered by name and subject."""
        found = {(each.condition, each.subject): each for each in (*self.of_others(), *self.own())}
        return [found[key] for key in sorted(found)]

    def as_dict(self, now_s: float) -> dict[str, Any]:
        """The answer of `/admin/conditions`."""
        rows = [
            {
                "condition": watched.condition,
                "subject": watched.subject,
                "phase": watched.phase,
                "for_s": round(now_s - watched.since_s, 1),
                "detail": watched.detail,
                "page": f"{PAGE}#{watched.condition}",
            }
            for watched in self.raised()
        ]
        return {"region": self._region, "raised": rows, "known": list(Condition)}

    def gauges(self) -> Iterator[GaugeRow]:
        raised = {(each.condition, each.subject) for each in self.raised()}
        for key in sorted(self._watched.keys() | raised):
            yield declared.CONDITION, (("condition", key[0]), ("subject", key[1])), float(key in raised)
        for worker_id, reported in self._reported.items():
            labels: Labels = (("worker", worker_id), ("role", reported.worker.role))
            yield from _rows(labels, reported.before, reported.now)

    def _observe_worker(self, reported: Reported, now_s: float) -> None:
        worker_id, before, now = reported.worker.id, reported.before, reported.now
        lengths = self._accept_lengths.setdefault(worker_id, AcceptLengths())
        self._sign(Condition.ACCEPT_LENGTH, worker_id, lengths.sign(before, now), now_s)
        self._sign(Condition.RETRACTIONS, worker_id, retractions(before, now), now_s)
        if reported.worker.role != "aggregated":
            self._sign(Condition.TRANSFERS, worker_id, transfers(before, now), now_s)

    def _observe_answers(self, ids: set[str], now_s: float) -> None:
        """Judge the answers of each worker that has answered often enough since the last judgement."""
        for worker_id, answers in list(self.answers.items()):
            sign = empty_answers(answers, self._empty_answers[worker_id])
            if sign.bad is not None and worker_id in ids:
                self._sign(Condition.EMPTY_ANSWERS, worker_id, sign, now_s)
                if not self._miscounted[worker_id] and (Condition.MISCOUNTED, worker_id) in self._watched:
                    self._sign(Condition.MISCOUNTED, worker_id, Sign(False), now_s)
            if sign.bad is not None or worker_id not in ids:
                del self.answers[worker_id], self._empty_answers[worker_id], self._miscounted[worker_id]

    def _observe_causes(self, ids: set[str], now_s: float) -> None:
        """Judge the workers that report no cache hits, and the cached tokens that were lost without a known cause."""
        for worker_id in list(self._repeats):
            if self.reports_hits(worker_id):
                self._repeats[worker_id] = 0  # those before say nothing of the engine's next start
            sign = no_hits(self._repeats[worker_id], self.reports_hits(worker_id))
            if worker_id not in ids:
                del self._repeats[worker_id]
            elif sign.bad is not None:
                self._sign(Condition.NO_HITS, worker_id, sign, now_s)
        prompt_tokens = self._metrics.total(declared.PROMPT_TOKENS_TOTAL)
        sign = unexplained(self._unknown_tokens, prompt_tokens - self._prompt_tokens)
        if sign.bad is not None:
            self._sign(Condition.UNEXPLAINED, self._region, sign, now_s)
            self._unknown_tokens, self._prompt_tokens = 0, prompt_tokens

    def _sign(self, condition: Condition, subject: str, sign: Sign, now_s: float) -> None:
        key = condition, subject
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = Watched(condition, subject)
        change = watched.observe(sign.bad, sign.detail, now_s)
        if change is not None and change.raised:
            log.warning("condition %s of %s is raised: %s (%s)", condition, subject, change.detail, PAGE)
        elif change is not None:
            log.warning("condition %s of %s is cleared", condition, subject)


def _rows(labels: Labels, before: EngineReport, now: EngineReport) -> Iterator[GaugeRow]:
    """One worker's reports as gauges. Totals are counted by the engine, since its start."""
    if now.accept_length > 0.0:
        yield declared.WORKER_ACCEPT_LENGTH, labels, now.accept_length
    yield declared.WORKER_KV_USAGE_RATIO, (*labels, ("tier", "device")), now.token_usage
    if now.host_total_tokens > 0.0:
        share = now.host_used_tokens / now.host_total_tokens
        yield declared.WORKER_KV_USAGE_RATIO, (*labels, ("tier", "host")), share
    for queue in _QUEUES:
        name = queue.removesuffix("_queue")
        yield declared.WORKER_ENGINE_QUEUE_REQUESTS, (*labels, ("queue", name)), getattr(now, queue)
    yield declared.WORKER_RETRACTED_REQUESTS, labels, now.retracted
    yield declared.WORKER_FAILED_TRANSFERS, labels, now.failed_transfers
    count = now.transfer_ms_count - before.transfer_ms_count
    if count > 0.0:
        mean_s = (now.transfer_ms_sum - before.transfer_ms_sum) / count / 1_000
        yield declared.WORKER_TRANSFER_S, labels, mean_s
