"""Keeps the places of refused sessions in the queue, so that a session that asks again in time gets its place back.

A place belongs to a session that could not begin, and is found by the session's key; keys differ between tenants. The
place is kept for `KEPT_S` after the refusal, or after the client left the queue.

Limit: `MAX_KEPT` places, divided by tenant (`warmroute.contract.shares`). The oldest place of the tenant that has most
is forgotten first.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from warmroute.contract.shares import Division
from warmroute_proxy.core.queue.dispatch_rate import DispatchRate

KEPT_S: Final = 300.0
MAX_KEPT: Final = 4096
OPENINGS_MEMORY_S: Final = 300.0
OPENINGS_PRIOR_PER_S: Final = 1 / 30


class _Refused(NamedTuple):
    asked_s: float
    until_s: float
    tenant: str


class RefusedSessions:
    """The refused sessions of one model, and how fast its sessions begin."""

    def __init__(self) -> None:
        self._refused: OrderedDict[int, _Refused] = OrderedDict()  # by session, in the order of `until_s`
        self._division: Division[int, _Refused] = Division(lambda _, refused: refused.tenant)
        self.openings = DispatchRate(OPENINGS_MEMORY_S, OPENINGS_PRIOR_PER_S)
        """The rate at which sessions begin whose first turn had to wait for memory."""

    def keep(self, session: int, asked_s: float, now_s: float, tenant: str = "") -> None:
        """Keep the place of a session that is refused after waiting since `asked_s`."""
        self._pop(session)
        self._refused[session] = _Refused(asked_s, now_s + KEPT_S, tenant)
        if self._division.begun or 2 * len(self._refused) > MAX_KEPT:
            self._division.stored(session, self._refused)
            if len(self._refused) > MAX_KEPT:
                self._pop(self._division.next_to_go())

    def take(self, session: int, now_s: float) -> float:
        """The time since which a session that asks now has waited. Its place is forgotten."""
        self._drop_old(now_s)
        found = self._pop(session)
        return now_s if found is None else found.asked_s

    def before(self, asked_s: float, now_s: float) -> int:
        """How many refused sessions, which may ask again, have waited longer than since `asked_s`."""
        self._drop_old(now_s)
        return sum(each.asked_s < asked_s for each in self._refused.values())

    def _drop_old(self, now_s: float) -> None:
        while self._refused:
            session = next(iter(self._refused))
            if self._refused[session].until_s > now_s:
                break
            self._pop(session)

    def _pop(self, session: int) -> _Refused | None:
        self._division.discard(session)
        return self._refused.pop(session, None)


def in_words(seconds: float) -> str:
    """Text such as `about 4 minutes` or `about 20 s`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {minutes} minutes" if minutes < 90 else f"about {round(seconds / 3600)} hours"
