"""Compares receipts with the engines' own counters, and finds how much of a difference has no known cause.

The prompt and cached tokens of each turn are compared with the counts of the engine that did the prefill, the tokens of
its answer with the counts of the engine that did the decode. Engines' counts are divided into spans of about an hour
(`engine_counts`). A turn counts in the span in which it was settled.

    difference = what the engine counted - what the receipts say

Some tokens are *uncertain*. An engine may count a turn when the turn begins or when it ends. So if a turn ran across
the edge of a span, or within `EDGE_S` of it, the engine may have counted the turn in the neighbouring span. If a client
left, the receipt has an estimate for each number that no engine reported. If a second engine continued a broken answer,
the first part of that answer was in the second engine's prompt. The tokens of all these turns are subtracted from a
difference before it is judged; the remainder is `unexplained`.

An engine counts more than the receipts say if other clients use it, if an attempt was given up and repeated, or if a
turn ended with an error. An engine counts less only if it restarted (what it had counted since the last reading is
lost), or if receipts state tokens that were not computed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from warmroute_proxy.core.accounting.engine_counts import EngineCounts, Span
from warmroute_proxy.core.base.role import Role

EDGE_S: Final = 1.0
"""The longest time between an engine's count of a turn and its settlement; also the longest duration of a reading."""

Kind = Literal["prompt_tokens", "cached_tokens", "completion_tokens"]
KINDS: Final[tuple[Kind, ...]] = ("prompt_tokens", "cached_tokens", "completion_tokens")
_COMPARED: Final[Mapping[Role, frozenset[Kind]]] = {
    "aggregated": frozenset(KINDS),
    "prefill": frozenset({"prompt_tokens", "cached_tokens"}),
    "decode": frozenset({"completion_tokens"}),
}
_NONE: Final = EngineCounts()


class SettledTurn(NamedTuple):
    """What a receipt says of a turn at one engine. Times are unix seconds. `counts`: only what that engine computed.

    `is_exact`: whether engines reported all numbers. `failed`: whether the turn did not complete.
    """

    engine: str
    opened_s: float
    settled_s: float
    counts: EngineCounts
    is_exact: bool
    attempts: int
    failed: bool


class Turns(NamedTuple):
    """How many turns a span has in all, and how many of each kind that can cause a difference."""

    all: int = 0
    at_edge: int = 0
    estimated: int = 0
    repeated: int = 0
    failed: int = 0


class Line:
    """A span of an engine, with sums over the receipts of the turns that were settled in it."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.receipts = _NONE
        self.uncertain = _NONE
        self.turns = Turns()

    def add(self, turn: SettledTurn, *, at_edge: bool) -> None:
        self.receipts = self.receipts.plus(turn.counts)
        now = self.turns
        self.turns = Turns(
            now.all + 1,
            now.at_edge + at_edge,
            now.estimated + (not turn.is_exact),
            now.repeated + (turn.attempts > 1),
            now.failed + turn.failed,
        )
        if at_edge or not turn.is_exact:
            self.uncertain = self.uncertain.plus(turn.counts)

    def add_neighbour(self, turn: SettledTurn) -> None:
        """Add a turn that was settled in another span, but that the engine may have counted in this one."""
        self.uncertain = self.uncertain.plus(turn.counts)
        self.turns = self.turns._replace(at_edge=self.turns.at_edge + 1)

    def compares(self, kind: Kind) -> bool:
        return kind in _COMPARED[self.span.role]

    def difference(self, kind: Kind) -> int:
        """The engine's count minus the receipts' count; 0 if this kind is not compared for the engine's role."""
        return _of(self.span.counts, kind) - _of(self.receipts, kind) if self.compares(kind) else 0

    def unexplained(self, kind: Kind) -> int:
        """The difference with its sign, brought closer to 0 by the uncertain tokens; 0 if a restart explains it."""
        found = self.difference(kind)
        size = max(0, abs(found) - _of(self.uncertain, kind))
        if found < 0:
            return 0 if self.span.restarts else -size
        return size

    def share(self, kind: Kind) -> float:
        """The unexplained part as a share of the engine's count or the receipts' count, whichever is larger."""
        larger = max(_of(self.span.counts, kind), _of(self.receipts, kind))
        return abs(self.unexplained(kind)) / larger if larger else 0.0

    def is_beyond(self, tolerance: float) -> bool:
        return any(self.share(kind) > tolerance for kind in KINDS)


class Reconciliation:
    """All spans, with the turns that were added to them. Turns may be added in any order."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._by_engine: dict[str, list[Line]] = {}
        for span in sorted(spans, key=lambda span: (span.engine, span.began_s)):
            self._by_engine.setdefault(span.engine, []).append(Line(span))
        self._ends = {engine: _ascending(lines) for engine, lines in self._by_engine.items()}
        self.outside: dict[str, int] = {}
        """Engine -> number of turns settled outside all its spans, while its counters were not read."""

    @property
    def engines(self) -> frozenset[str]:
        return frozenset(self._by_engine)

    def add(self, turn: SettledTurn) -> None:
        """Count a turn in the span of its engine in which it was settled."""
        lines = self._by_engine.get(turn.engine, [])
        first = bisect_left(self._ends.get(turn.engine, []), turn.opened_s - EDGE_S)
        near: list[Line] = []
        for line in lines[first:]:
            if line.span.began_s > turn.settled_s + EDGE_S:
                break
            near.append(line)
        home = next((line for line in near if line.span.began_s < turn.settled_s <= line.span.ended_s), None)
        if home is None:
            self.outside[turn.engine] = self.outside.get(turn.engine, 0) + 1
        for line in near:
            if line is home:
                edges = line.span.began_s > turn.opened_s - EDGE_S or line.span.ended_s < turn.settled_s + EDGE_S
                line.add(turn, at_edge=edges)
            else:
                line.add_neighbour(turn)

    def lines(self) -> Sequence[Line]:
        """The lines, sorted by engine and time, without those in which nothing was counted."""
        every = [line for lines in self._by_engine.values() for line in lines]
        return [line for line in every if line.turns.all or line.span.counts != _NONE]


def _of(counts: EngineCounts, kind: Kind) -> int:
    found: int = getattr(counts, kind)
    return found


def _ascending(lines: Sequence[Line]) -> list[float]:
    """The ends of spans, in ascending order: if a clock went back, an end is raised to the end before it."""
    ends: list[float] = []
    for line in lines:
        ends.append(max(line.span.ended_s, ends[-1] if ends else 0.0))
    return ends
