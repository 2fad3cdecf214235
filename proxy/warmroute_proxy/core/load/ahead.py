"""What a new request at a worker would wait for, valid until the worker's load changes."""

from warmroute_proxy.core.base.compiled import Frozen


class OthersAhead(Frozen, frozen=True):
    """Queue and slowdown including the load of other proxies, which counts until `until_s`."""

    until_s: float
    queue_s: float
    slowdown_s: float


class Ahead(Frozen, frozen=True):
    """All that differs between the workers of one `Group`: what is ahead of a new request at one worker.

    `waits`: whether the request may have to wait. `slowdown_s`: the delay of each decode step. `inserted`: the tokens
    recently written to the cache (`WorkerLoad.inserted`). `queue_s`: the seconds of prefill of all prompts sent; the
    oldest of these has been at work since `since_s` and takes `at_work_s`.
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
    if done_s > 0:  # false if no prompt is ahead: then none is at work
        queue_s -= done_s
    return queue_s, slowdown_s
