"""What the clients of a trace say of when their sessions return, which a proxy cannot know by itself.

With a turn, how soon the next one comes; and after the last turn, that the session is over.
"""

from typing import Final

from warmroute_lab.replay.trace import Trace, mixed
from warmroute_proxy.core.cache.return_times import OVER, PERSON, TOOLS

SOON_S: Final = 20.0
"""Between tools and people: what a hint tells apart."""


class Hints:
    """By turns' numbers, drawn for some turns and some sessions of a trace."""

    __slots__ = ("by_turn", "last_turns")

    def __init__(self, trace: Trace, hinting_share: float, ending_share: float) -> None:
        """`hinting_share`: of the turns, those that say how they end; `ending_share`: of the sessions, that they do."""
        self.by_turn = _by_turn(trace, hinting_share)
        self.last_turns = _last_turns(trace, ending_share)


def _by_turn(trace: Trace, share: float) -> dict[int, int]:
    if not share:
        return {}
    found = {}
    for request in trace.requests:
        found[request.number] = OVER
        if request.after is not None:
            found[request.after] = TOOLS if request.at_s <= SOON_S else PERSON
    limit = share * 2.0**64
    return {number: kind for number, kind in found.items() if mixed([number], 4)[0] < limit}


def _last_turns(trace: Trace, share: float) -> frozenset[int]:
    if not share:
        return frozenset()
    limit = share * 2.0**64
    last_turns = {request.session: request.number for request in trace.requests}
    return frozenset(number for session, number in last_turns.items() if mixed([session], 5)[0] < limit)
