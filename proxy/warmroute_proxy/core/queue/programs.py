"""Chooses which of one tenant's requests is next: fairly between its programs, and by the requests' priorities.

A *program* is a session and all sub-agents that it has started, whatever an agent program calls them. A sub-agent with
its own session names its parent session, and counts for the parent's program (`Roots`). A sub-agent that uses its
parent's session key belongs to the parent's program anyway. A client may also name a program
(`x-gateway-inference-fairness-id`).

The next request of a tenant is, in this order,

    a late request, the earliest due first, so that no request starves
    a request of the highest priority
    a request of the program that was served the fewest tokens (start-time fair queueing, as between tenants)
    the request that is due first

`admission` says when a request is due. It is late when `LATE_SHARE` of `queue_timeout_s` has passed since it was due.
So after at most three quarters of `queue_timeout_s` a request goes before all others of its tenant. Programs and
priorities of one tenant do not change anything for another tenant.

Limit: `Roots` remembers `MAX_ROOTS` sessions that another session has started, divided by tenant
(`warmroute.contract.shares`). The oldest of the tenant that has most is forgotten first; this session then counts as a
program of its own.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from warmroute.contract.shares import Division

INTERACTIVE: Final = 0
NORMAL: Final = 1
BACKGROUND: Final = 2
"""The numbers of the three priorities. The lowest number goes first."""

Priority = Literal["interactive", "normal", "background"]
"""The names of the priorities, in the order of their numbers."""

LATE_SHARE: Final = 0.25
MAX_ROOTS: Final = 20_000
_TAGS_KEPT: Final = 64


class Ranked(Protocol):
    """A request that waits. `program`: the number of its program."""

    due_s: float
    program: int
    priority: int


R = TypeVar("R", bound=Ranked)
Rank = tuple[bool, int, int, float]


class ProgramQueue(Generic[R]):
    """The requests of one tenant in one line, by key, then by priority and program, then in the order of due times.

    `_served`: the position of each program, in tokens served. `_passed`: the position of the program that was served
    last.
    """

    __slots__ = ("_by_key", "_passed", "_served")

    def __init__(self) -> None:
        self._by_key: dict[str, dict[tuple[int, int], list[R]]] = {}
        self._served: dict[int, int] = {}
        self._passed = 0

    def add(self, key_id: str, request: R) -> None:
        groups = self._by_key.setdefault(key_id, {})
        insort(groups.setdefault((request.priority, request.program), []), request, key=_due)

    def remove(self, key_id: str, request: R) -> None:
        groups = self._by_key[key_id]
        group = groups[request.priority, request.program]
        group.remove(request)
        if not group:
            del groups[request.priority, request.program]
            if not groups:
                del self._by_key[key_id]

    def key_ids(self) -> list[str]:
        return list(self._by_key)

    def __iter__(self) -> Iterator[R]:
        """All requests, in no particular order."""
        for groups in self._by_key.values():
            for group in groups.values():
                yield from group

    def next(self, key_id: str, late_s: float) -> tuple[Rank, R] | None:
        """The next request of a key, and its rank among other keys' next requests. Requests that were due at `late_s`
        or before are late.
        """
        best: tuple[Rank, R] | None = None
        for (priority, program), group in self._by_key.get(key_id, {}).items():
            request = group[0]
            due_s = request.due_s
            if due_s <= late_s:
                rank = (False, 0, 0, due_s)
            else:
                rank = (True, priority, max(self._served.get(program, 0), self._passed), due_s)
            if best is None or rank < best[0]:
                best = rank, request
        return best

    def charge(self, program: int, tokens: int) -> None:
        """Count the `tokens` of a dispatched request for its program."""
        began = max(self._served.get(program, 0), self._passed)
        self._passed = began
        self._served[program] = began + tokens
        if len(self._served) > _TAGS_KEPT:
            self._served = {each: served for each, served in self._served.items() if served > began}

    def before(self, request: Ranked, due_s: float) -> int:
        """How many requests are likely to go before `request`, which is due at `due_s`. All requests of a higher
        priority count. Of its own priority and program, those that are due earlier count. Every other program of this
        priority counts with at most one request more than the program of `request`.
        """
        own, higher, others = 0, 0, []
        for groups in self._by_key.values():
            for (priority, program), group in groups.items():
                if priority < request.priority:
                    higher += len(group)
                elif priority == request.priority and program == request.program:
                    own += bisect_right(group, due_s, key=_due)
                elif priority == request.priority:
                    others.append(len(group))
        return own + higher + sum(min(count, own + 1) for count in others)


def by_turns(requests: list[R]) -> list[R]:
    """Sort a tenant's requests by priority; within a priority, the first of each program, then the second of each."""
    counts: dict[tuple[int, int], int] = {}
    ranked = []
    for at, request in enumerate(sorted(requests, key=_due)):
        group = request.priority, request.program
        counts[group] = turn = counts.get(group, 0) + 1
        ranked.append((request.priority, turn, at, request))
    ranked.sort(key=_rank)
    return [request for *_, request in ranked]


class Roots:
    """Finds the root of a session: the session that started it, directly or through others."""

    def __init__(self, max_roots: int = MAX_ROOTS) -> None:
        self._max_roots = max_roots
        self._roots: dict[int, tuple[int, str]] = {}  # session -> its root, and its tenant
        self._division: Division[int, tuple[int, str]] = Division(lambda _, root: root[1])

    def started(self, session: int, parent: int, tenant: str) -> None:
        """Record that a session was started by the session `parent`."""
        root = self.of(parent)
        if session in self._roots or session == root:
            return
        self._roots[session] = root, tenant
        if 2 * len(self._roots) > self._max_roots:
            self._division.stored(session, self._roots)
            if len(self._roots) > self._max_roots:
                first = self._division.next_to_go()
                del self._roots[first]
                self._division.discard(first)

    def of(self, session: int) -> int:
        """The root of a session; the session itself if no parent is known."""
        found = self._roots.get(session)
        return session if found is None else found[0]


def _due(request: Ranked) -> float:
    return request.due_s


def _rank(ranked: tuple[Any, ...]) -> tuple[Any, ...]:
    return ranked[:3]
