"""What a new request would wait for at a worker. Values stay valid until the worker's load changes."""

from warmroute_proxy.core.base.compiled import Frozen


class OthersAhead(Frozen, frozen=True):
    """Queue and slowdown if the load of other proxies is included, as it is until `until_s`."""

    until_s: float
    queue_s: float
    slowdown_s: float


class Ahead(Frozen, frozen=True):
    """What is ahead of a new request at one worker: all that differs between workers of one `Group`
    (`placement.costs`).

    `waits`: whether the request may have to wait. `slowdown_s`: the delay of each decode step. `inserted`: the tokens
    recently written to the cache (`WorkerLoad.inserted`). `queue_s`: the seconds of prefill of all queued prompts. The
    engine has been computing the oldest of these prompts since `since_s`; this takes `at_work_s` in all.
    """

    waits: bool
    slowdown_s: float
    inserted: float
    queue_s: float
    since_s: float
    at_work_s: float
    others: OthersAhead | None


def waits_s(ahead: Ahead, now_s: float) -> tuple[float, float]:
    """Seconds of prefill ahead of a new request, and seconds by which each of its output tokens is delayed."""
    queue_s, slowdown_s, others = ahead.queue_s, ahead.slowdown_s, ahead.others
    if others is not None and now_s < others.until_s:
        queue_s, slowdown_s = others.queue_s, others.slowdown_s
    done_s = now_s - ahead.since_s
    if done_s > ahead.at_work_s:  # noqa: PLR1730 - min() takes three times as long
        done_s = ahead.at_work_s
    if done_s > 0:  # if no prompt is ahead, `at_work_s` is 0, so this is false
        queue_s -= done_s
    return queue_s, slowdown_s
