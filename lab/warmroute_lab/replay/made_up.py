"""Makes traces from a name and a seed, to check whether results from published traces also hold for other traffic.

`toolagent` resembles the published figures of the Mooncake trace of that name: 60 shared prompts with tool definitions,
two thirds of the sessions with one request, a mean prompt of 8,000 tokens. `bursty` is `toolagent` in waves, with fewer
shared tokens. The other traces have agents: in `inference-day` all share a prompt of 42,000 tokens, `short` has
sessions of few turns and twenty kinds of agents, and in `waves` sessions start in twelve bursts. In `fork-43-40k` 43
sub-agents that share a context of 40,000 tokens start at once; in `fork-43-40k-cold` no worker has this context.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from warmroute_lab.replay.agents import BLOCK_TOKENS, Agents, agents_trace
from warmroute_lab.replay.trace import Request, Trace, mixed

# Made-up tool calls: short sessions of requests at given times (open loop), which share prompts with tool definitions.
#
# Most sessions use a few of the prompts, and most prompts have few sessions (Zipf), like the templates behind an API
# for tools. A session is one request or a few, each of which appends to the one before. As in Mooncake's traces, later
# prompts do not contain the answers.


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Sizes are in tokens, times in seconds. Values with a median and a sigma are lognormal.

    With `wave_s`, arrivals come in waves of this period: each arrival is delayed by at most twice `swing_s`.
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
    """The chance that a session goes on after a request."""
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
    """The trace of these tool calls, without requests that would come after `within_s`."""
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


# Made-up forks: an agent starts many sub-agents at once. Each sends the agent's context with its own prompt after it.
#
# All branches start within `SPREAD_S`, and then go on as closed-loop agents for some turns. *Warm*: the agent's own
# turn was served half a minute before, so one worker has the context. *Cold*: no worker has it.


SPREAD_S: Final = 0.4
BEFORE_S: Final = 30.0
TURNS: Final = 5
OWN_BLOCKS: Final = 4
NEW_BLOCKS: Final = 3
OUTPUT_TOKENS: Final = 200
THINK_S: Final = (8.0, 12.0)
_IDS_OF_A_BRANCH: Final = 1 << 12


class Fork(NamedTuple):
    """`branches` sub-agents that share a context of `head_tokens`; `cold`: no worker has this context."""

    branches: int
    head_tokens: int
    cold: bool


def fork_trace(fork: Fork, name: str, seed: int) -> Trace:
    """The trace of one fork, equal for equal seeds."""
    random = np.random.default_rng(seed)
    head = mixed(np.arange(fork.head_tokens // BLOCK_TOKENS, dtype=np.uint64) + np.uint64(1 << 63), 0)
    requests: list[Request] = []
    if not fork.cold:
        requests.append(Request(
            number=0, at_s=0.0, after=None, session=0, turn=1, input_tokens=len(head) * BLOCK_TOKENS,
            output_tokens=OUTPUT_TOKENS, blocks=head, tail=None,
        ))  # fmt: skip
    for branch in range(fork.branches):
        session = branch + (not fork.cold)
        count = OWN_BLOCKS + (TURNS - 1) * NEW_BLOCKS
        own = mixed(np.arange(count, dtype=np.uint64) + np.uint64(branch * _IDS_OF_A_BRANCH), 0)
        start_s = BEFORE_S + float(random.random()) * SPREAD_S
        think_s = random.uniform(*THINK_S, TURNS).tolist()
        before, seen = None, 0
        for turn in range(TURNS):
            blocks = head + own[: OWN_BLOCKS + turn * NEW_BLOCKS]
            tokens, number = len(blocks) * BLOCK_TOKENS, len(requests)
            at_s = start_s if before is None else think_s[turn]
            requests.append(Request(
                number=number, at_s=at_s, after=before, session=session, turn=turn + 1, input_tokens=tokens,
                output_tokens=OUTPUT_TOKENS, blocks=blocks, tail=None, continued_tokens=seen,
            ))  # fmt: skip
            before, seen = number, tokens
    return Trace(name, BLOCK_TOKENS, requests, fork.branches + (not fork.cold), named_sessions=True)


_INFERENCE_DAY: Final = Agents(
    sessions=700, shared_tokens=42_000, own_mean=9000, own_sigma=0.8, least_turns=3, most_turns=40,
    new_mean=1440, new_median=700, output_mean=250,
)  # fmt: skip
_SHORT: Final = Agents(
    sessions=3000, shared_tokens=3000, own_mean=4000, own_sigma=0.8, least_turns=1, most_turns=6,
    new_mean=990, new_median=600, output_mean=300, kinds=20,
)  # fmt: skip
_WAVES: Final = Agents(
    sessions=400, shared_tokens=8000, own_mean=8000, own_sigma=0.8, least_turns=5, most_turns=60,
    new_mean=1850, new_median=900, output_mean=300, kinds=4, waves=12,
)  # fmt: skip
_BURSTY: Final = ToolCalls(
    sessions=5000, templates=300, template_median=1500, own_median=4000, own_sigma=1.3, more_share=0.6,
    pause_median_s=40, output_median=250, wave_s=180, swing_s=25,
)  # fmt: skip


MADE_UP: Final[Mapping[str, Callable[[int], Trace]]] = {
    "toolagent": lambda seed: tool_calls_trace(ToolCalls(seed=seed), "toolagent (made up)"),
    "bursty": lambda seed: tool_calls_trace(replace(_BURSTY, seed=seed), "bursty (made up)"),
    "inference-day": lambda seed: agents_trace(replace(_INFERENCE_DAY, seed=seed), "inference-day (made up)"),
    "short": lambda seed: agents_trace(replace(_SHORT, seed=seed), "short (made up)"),
    "waves": lambda seed: agents_trace(replace(_WAVES, seed=seed), "waves (made up)"),
    **{
        f"fork-{branches}-{thousands}k{suffix}": partial(
            fork_trace,
            Fork(branches, thousands * 1024, cold=bool(suffix)),
            f"fork-{branches}-{thousands}k{suffix} (made up)",
        )
        for branches in (8, 43, 128)
        for thousands in (10, 40, 100)
        for suffix in ("", "-cold")
    },
}


def made_up(name: str, seed: int = 1) -> Trace:
    """The trace of that name, equal for equal seeds."""
    return MADE_UP[name](seed)
