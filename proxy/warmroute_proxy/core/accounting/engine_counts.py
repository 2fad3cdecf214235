"""What an engine has itself counted, in spans of about an hour.

An engine counts requests and tokens since its start. The difference of two readings is what it has counted between
them. A *span* is the time from one reading to another in which these differences are added up. Spans of an engine
follow each other without a gap, so that each settled turn is in one of them: a span ends with the first reading after
its hour, and the next one begins there. If nothing was read for hours, because the proxy was stopped, one span covers
them.

A counter that goes back is that of an engine that has started again: it has counted from 0 since. What it had counted
between the last reading and its end is not known, so the span says that it has a restart. Where the clock of the proxy
goes back, or the engine has another role, the span ends as it was and another one begins.
"""

from typing import Final, NamedTuple

from warmroute_proxy.core.base.role import Role

HOUR_S: Final = 3_600


class EngineCounts(NamedTuple):
    """Requests that have ended, and tokens: of prompts, of prompts found in the cache, of answers."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "EngineCounts") -> "EngineCounts":
        return EngineCounts(*[one + two for one, two in zip(self, other, strict=True)])


class CounterReading(NamedTuple):
    """The counters of an engine, summed over its ranks, at a time in unix seconds."""

    engine: str
    role: Role
    at_s: float
    counts: EngineCounts


class Span(NamedTuple):
    """What an engine has counted from one reading to another, unix seconds."""

    engine: str
    role: Role
    began_s: float
    ended_s: float
    counts: EngineCounts = EngineCounts()
    restarts: int = 0

    @property
    def hour_s(self) -> int:
        """The hour in which it began, unix seconds."""
        return int(self.began_s) // HOUR_S * HOUR_S


def increase(before: EngineCounts, now: EngineCounts) -> tuple[EngineCounts, bool]:
    """What was counted between two readings, and whether the engine was started again between them."""
    if any(new < old for old, new in zip(before, now, strict=True)):
        return now, True
    return EngineCounts(*[new - old for old, new in zip(before, now, strict=True)]), False


def advance(open_span: Span | None, before: CounterReading | None, now: CounterReading) -> tuple[Span | None, Span]:
    """Take in a reading: the span that is open with what was counted, and the one that is open from now on.

    The first is None if the reading begins the first span, or cannot be compared with the one before.
    """
    fresh = Span(now.engine, now.role, now.at_s, now.at_s)
    if open_span is None or before is None or now.role != open_span.role or now.at_s < before.at_s:
        return None, fresh
    counted, restarted = increase(before.counts, now.counts)
    grown = open_span._replace(
        ended_s=now.at_s, counts=open_span.counts.plus(counted), restarts=open_span.restarts + restarted
    )
    return grown, fresh if fresh.hour_s > grown.hour_s else grown
