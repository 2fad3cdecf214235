"""The places of sessions that could not begin and were refused: who asks again in time is where it was in the line.

A place is that of one session, by its key, which differs between tenants. It is kept for `KEPT_S` after the refusal, or
after the client left. Limit: `MAX_KEPT`, divided by tenant
(`warmroute.contract.shares`): of the tenant that has most, the oldest refusal is forgotten first.
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
    """Those of one model, and how fast sessions begin there."""

    def __init__(self) -> None:
        self._refused: OrderedDict[int, _Refused] = OrderedDict()  # by session, in the order in which they end
        self._division: Division[int, _Refused] = Division(lambda _, refused: refused.tenant)
        self.openings = DispatchRate(OPENINGS_MEMORY_S, OPENINGS_PRIOR_PER_S)
        """Of sessions whose first turn had waited for memory."""

    def keep(self, session: int, asked_s: float, now_s: float, tenant: str = "") -> None:
        """A session that has waited since `asked_s` is refused."""
        self._pop(session)
        self._refused[session] = _Refused(asked_s, now_s + KEPT_S, tenant)
        if self._division.begun or 2 * len(self._refused) > MAX_KEPT:
            self._division.stored(session, self._refused)
            if len(self._refused) > MAX_KEPT:
                self._pop(self._division.next_to_go())

    def take(self, session: int, now_s: float) -> float:
        """Since when a session that asks now has waited."""
        self._drop_old(now_s)
        found = self._pop(session)
        return now_s if found is None else found.asked_s

    def before(self, asked_s: float, now_s: float) -> int:
        """How many sessions that may ask again have waited for longer."""
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
    """`about 4 minutes`, or `about 20 s`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {minutes} minutes" if minutes < 90 else f"about {round(seconds / 3600)} hours"
