"""Divides an engine's own counts of requests and tokens into spans of about an hour.

An engine counts requests and tokens from its start on. The difference of two readings is its count between them. A
*span* is the time between two readings over which these differences are added up. The spans of an engine follow each
other without a gap, so that each settled (billed) turn belongs to one span. A span ends with the first reading after
the clock hour in which it began, and the next span begins there. If nothing is read for hours because the proxy is
stopped, one span covers all these hours.

If a counter goes back, the engine has restarted and counts from 0. What the engine counted between the last reading and
the restart is unknown, so the span records a restart. If the clock of the proxy goes back, or the engine gets another
role or URL, the span ends without this reading, and another span begins: at another URL, another engine counts.
"""

from typing import Final, NamedTuple

from warmroute_proxy.core.base.role import Role

HOUR_S: Final = 3_600


class EngineCounts(NamedTuple):
    """How many requests have ended, and their prompt tokens, cached prompt tokens and answer tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "EngineCounts") -> "EngineCounts":
        return EngineCounts(*[one + two for one, two in zip(self, other, strict=True)])


class CounterReading(NamedTuple):
    """The counters of an engine at one time (unix seconds), summed over its ranks."""

    engine: str
    url: str
    role: Role
    at_s: float
    counts: EngineCounts


class Span(NamedTuple):
    """The counts of an engine from one reading to another. Times are unix seconds."""

    engine: str
    role: Role
    began_s: float
    ended_s: float
    counts: EngineCounts = EngineCounts()
    restarts: int = 0

    @property
    def hour_s(self) -> int:
        """The start of the hour in which the span began, in unix seconds."""
        return int(self.began_s) // HOUR_S * HOUR_S


def increase(before: EngineCounts, now: EngineCounts) -> tuple[EngineCounts, bool]:
    """The counts between two readings, and whether the engine restarted between them."""
    if any(new < old for old, new in zip(before, now, strict=True)):
        return now, True
    return EngineCounts(*[new - old for old, new in zip(before, now, strict=True)]), False


def advance(open_span: Span | None, before: CounterReading | None, now: CounterReading) -> tuple[Span | None, Span]:
    """Take in a reading. Returns the open span with its new counts, and the span that is open from now on (often the
    same span).

    The first item is None if this reading begins the first span, or cannot be compared with the previous reading.
    """
    fresh = Span(now.engine, now.role, now.at_s, now.at_s)
    if open_span is None or before is None or now.at_s < before.at_s:
        return None, fresh
    if now.role != open_span.role or now.url != before.url:
        return None, fresh
    counted, restarted = increase(before.counts, now.counts)
    grown = open_span._replace(
        ended_s=now.at_s, counts=open_span.counts.plus(counted), restarts=open_span.restarts + restarted
    )
    return grown, fresh if fresh.hour_s > grown.hour_s else grown
