"""Synthetic agents: sessions whose context grows turn by turn, closed loop (a turn comes after the previous answer).

A session begins with tools and a system prompt that it shares with others, and a prefix of its own. Each turn appends
the last answer and something new (a tool's output, a person's words). So if the previous turn is cached, with its
answer, only what is new must be computed.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from warmroute_lab.replay.trace import Request, Trace, mixed

BLOCK_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Agents:
    """Sizes in tokens, times in seconds.

    A value with a mean and a median (or sigma) is lognormal; one with a mean alone is exponential. Each of the `kinds`
    of agents has a shared prompt of its own. With `waves`, the time `starts_within_s` is divided into that number of
    equal parts, and sessions start in bursts: each in the first twentieth of a part.
    """

    sessions: int = 1200
    starts_within_s: float = 3600.0
    shared_tokens: int = 12_288
    own_mean: float = 6000.0
    own_sigma: float = 0.6
    least_turns: int = 20
    most_turns: int = 60
    new_mean: float = 1500.0
    new_median: float = 700.0
    output_mean: float = 400.0
    human_share: float = 0.2
    tool_mean_s: float = 8.0
    human_mean_s: float = 60.0
    limit_tokens: int = 200_000
    kinds: int = 1
    waves: int = 0
    seed: int = 1


def agents_trace(agents: Agents, name: str) -> Trace:
    random = np.random.default_rng(agents.seed)
    count = agents.shared_tokens // BLOCK_TOKENS
    prompts = [
        mixed(np.arange(count, dtype=np.uint64) + np.uint64(kind << 32 | 1 << 63), 0) for kind in range(agents.kinds)
    ]
    requests: list[Request] = []
    for session in range(agents.sessions):
        _add_session(requests, agents, session, prompts[session % agents.kinds], random)
    return Trace(name, BLOCK_TOKENS, requests, agents.sessions, named_sessions=True)


def _add_session(
    requests: list[Request], agents: Agents, session: int, shared: list[int], random: "np.random.Generator"
) -> None:
    turns = int(random.integers(agents.least_turns, agents.most_turns + 1))
    start_s = float(random.random()) * agents.starts_within_s
    if agents.waves:
        wave_s = agents.starts_within_s / agents.waves
        start_s = int(random.integers(agents.waves)) * wave_s + start_s / agents.starts_within_s * wave_s / 20
    own = _lognormal(random, np.log(agents.own_mean) - agents.own_sigma**2 / 2, agents.own_sigma, 1)[0]
    sigma = float(np.sqrt(2 * np.log(agents.new_mean / agents.new_median)))
    new = _lognormal(random, np.log(agents.new_median), sigma, turns)
    outputs = np.maximum(1, random.exponential(agents.output_mean, turns)).astype(int).tolist()
    human = random.random(turns) < agents.human_share
    think_s = random.exponential(np.where(human, agents.human_mean_s, agents.tool_mean_s)).tolist()
    count = agents.limit_tokens // BLOCK_TOKENS + 2
    base = np.uint64(session << 24)
    blocks = shared + mixed(np.arange(count, dtype=np.uint64) + base, 0)
    tails = mixed(np.arange(turns, dtype=np.uint64) + base + np.uint64(1 << 20), 0)
    tokens, before, seen = agents.shared_tokens + own, None, 0
    for turn in range(turns):
        if tokens + outputs[turn] > agents.limit_tokens:
            return
        tail = tails[turn] if tokens % BLOCK_TOKENS else None
        at_s = start_s if before is None else think_s[turn]
        known = blocks[: (tokens + outputs[turn]) // BLOCK_TOKENS + 1]
        number = len(requests)
        requests.append(Request(
            number=number, at_s=at_s, after=before, session=session, turn=turn + 1, input_tokens=tokens,
            output_tokens=outputs[turn], blocks=known, tail=tail, continued_tokens=seen,
        ))  # fmt: skip
        before, seen = number, tokens
        tokens += outputs[turn] + new[turn]


def _lognormal(random: "np.random.Generator", mean: Any, sigma: float, count: int) -> list[int]:
    drawn: list[int] = np.maximum(1, random.lognormal(mean, sigma, count)).astype(int).tolist()
    return drawn
