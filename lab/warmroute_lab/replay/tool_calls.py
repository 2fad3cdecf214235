"""Made-up tool calls: short sessions of requests at given times (open loop), which share prompts of tools.

A few prompts are used by most and most by few (Zipf), like the templates behind an API for tools. A session is one
request or some more, each of which appends to the one before. What a model answered is not found again, as in
Mooncake's traces.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from warmroute_lab.replay.agents import BLOCK_TOKENS
from warmroute_lab.replay.trace import Request, Trace, mixed


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Sizes in tokens, times in seconds. Lognormal where median and sigma are given.

    With `wave_s` time runs faster and slower in turn: arrivals are up to `swing_s` early or late.
    """

    sessions: int = 7400
    within_s: float = 1770.0
    templates: int = 60
    zipf: float = 1.1
    template_median: float = 3500.0
    template_sigma: float = 0.7
    own_median: float = 1500.0
    own_sigma: float = 1.6
    more_share: float = 0.38
    """The chance that another request follows."""
    pause_median_s: float = 25.0
    pause_sigma: float = 1.0
    new_median: float = 900.0
    new_sigma: float = 1.2
    output_median: float = 80.0
    output_sigma: float = 1.1
    wave_s: float = 0.0
    swing_s: float = 0.0
    limit_tokens: int = 120_000
    seed: int = 1


def tool_calls_trace(calls: ToolCalls, name: str) -> Trace:
    """The trace of these requests; those after the end of the time are left out."""
    random = np.random.default_rng(calls.seed)
    shares = 1 / np.arange(1, calls.templates + 1) ** calls.zipf
    sizes = np.clip(_drawn(random, calls.template_median, calls.template_sigma, calls.templates), 512, 20_000)
    templates = [
        mixed(np.arange(size // BLOCK_TOKENS, dtype=np.uint64) + np.uint64(number << 32 | 1 << 63), 0)
        for number, size in enumerate(sizes.tolist())
    ]
    chosen = random.choice(calls.templates, calls.sessions, p=shares / shares.sum())
    starts_s = np.sort(random.random(calls.sessions)) * calls.within_s
    requests: list[Request] = []
    for session in range(calls.sessions):
        _add_session(requests, calls, session, float(starts_s[session]), templates[int(chosen[session])], random)
    requests.sort(key=lambda request: request.at_s)
    for number, request in enumerate(requests):
        request.number = number
    return Trace(name, BLOCK_TOKENS, requests, calls.sessions, named_sessions=False)


def _add_session(
    requests: list[Request],
    calls: ToolCalls,
    session: int,
    at_s: float,
    template: list[int],
    random: "np.random.Generator",
) -> None:
    turns = int(random.geometric(1 - calls.more_share))
    new = _drawn(random, calls.new_median, calls.new_sigma, turns).tolist()
    outputs = _drawn(random, calls.output_median, calls.output_sigma, turns).tolist()
    pauses_s = random.lognormal(np.log(calls.pause_median_s), calls.pause_sigma, turns).tolist()
    tokens = len(template) * BLOCK_TOKENS + int(_drawn(random, calls.own_median, calls.own_sigma, 1)[0])
    base = np.uint64(session << 24)
    blocks = template + mixed(np.arange(calls.limit_tokens // BLOCK_TOKENS + 1, dtype=np.uint64) + base, 0)
    tails = mixed(np.arange(turns, dtype=np.uint64) + base + np.uint64(1 << 20), 0)
    seen = 0
    for turn in range(turns):
        if tokens > calls.limit_tokens or at_s > calls.within_s:
            return
        full = tokens // BLOCK_TOKENS
        tail = tails[turn] if tokens % BLOCK_TOKENS else None
        chain = blocks[:full] if tail is None else [*blocks[:full], tail]
        warped_s = at_s
        if calls.wave_s:
            warped_s += calls.swing_s * (1 + float(np.sin(2 * np.pi * at_s / calls.wave_s)))
        requests.append(Request(
            number=0, at_s=warped_s, after=None, session=session, turn=turn + 1, input_tokens=tokens,
            output_tokens=min(outputs[turn], 2000), blocks=chain, tail=tail, continued_tokens=seen,
        ))  # fmt: skip
        seen = full * BLOCK_TOKENS
        at_s += pauses_s[turn]
        tokens += new[turn]


def _drawn(random: "np.random.Generator", median: float, sigma: float, count: int) -> "np.ndarray[Any, Any]":
    return np.maximum(1, random.lognormal(np.log(median), sigma, count)).astype(int)
