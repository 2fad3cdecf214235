"""What a new request at a worker would have to wait for: a value that is valid until the worker's load changes."""

from warmroute_proxy.core.base.compiled import Frozen


class OthersAhead(Frozen, frozen=True):
    """The queue and the slowdown with the load of other proxies, which counts until `until_s`."""

    until_s: float
    queue_s: float
    slowdown_s: float


class Ahead(Frozen, frozen=True):
    """What is ahead of a new request at one worker.

    `waits`: whether the request may have to wait. `slowdown_s`: by how much each decode step is slowed. `inserted`:
    the tokens that were written to the cache lately (`WorkerLoad.inserted`). `queue_s`: the seconds of prefill that
    were sent; the oldest prompt of them is at work since `since_s` and takes `at_work_s`.
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
    if done_s > 0:  # false if nothing is ahead: then nothing is at work
        queue_s -= done_s
    return queue_s, slowdown_s
