"""The tenants of a replay: the sessions and the figures of each tenant."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from warmroute_lab.replay.fleet import ReplayTurn
from warmroute_lab.replay.results import percentiles
from warmroute_lab.replay.trace import mixed


def tenants_of(sessions: int, shares: Sequence[float]) -> list[int]:
    """The tenant of each session, numbered from 0 and drawn at random with `shares` as weights. Equal calls have equal
    results."""
    bounds = [bound / sum(shares) for bound in accumulate(shares)][:-1]
    return [sum(drawn / 2.0**64 >= bound for bound in bounds) for drawn in mixed(range(sessions), 4)]


def by_tenant(turns: Sequence[ReplayTurn], shares: Sequence[float]) -> list[dict[str, Any]]:
    """The figures of each tenant; empty without several tenants."""
    if len(shares) < 2:
        return []
    of_session = tenants_of(1 + max((turn.request.session for turn in turns), default=0), shares)
    return [_figures([turn for turn in turns if of_session[turn.request.session] == n]) for n in range(len(shares))]


def _figures(turns: Sequence[ReplayTurn]) -> dict[str, Any]:
    new = [turn.first_token_s - turn.arrived_s for turn in turns if turn.request.turn == 1]
    others = [turn.first_token_s - turn.arrived_s for turn in turns if turn.request.turn > 1]
    tokens = sum(turn.request.input_tokens for turn in turns)
    new_p50_s, new_p90_s = percentiles(new, 50, 90)
    others_p90_s, others_p99_s = percentiles(others, 90, 99)
    sessions = len({turn.request.session for turn in turns})
    return {
        "sessions": sessions,
        "hit": sum(turn.cached_tokens for turn in turns) / (tokens or 1),
        "new_p50_s": new_p50_s,
        "new_p90_s": new_p90_s,
        "others_p90_s": others_p90_s,
        "others_p99_s": others_p99_s,
        "session_s": sum(turn.ended_s - turn.arrived_s for turn in turns) / (sessions or 1),
    }
