"""Made-up traces by name, all from a seed: to see whether what holds on published traces holds elsewhere.

`toolagent` resembles what is published of the Mooncake trace of that name (60 prompts of tools, two thirds of the
sessions one request, mean prompt of 8,000 tokens); `bursty` is it in waves, with fewer tokens shared. The others are
agents: `inference-day` with a prompt of 42,000 tokens that all share, `short` with sessions of few turns and twenty
kinds of agents, `waves` with starts in twelve bursts. `fork-43-40k` are 43 sub-agents that begin at once over a context
of 40,000 tokens, `fork-43-40k-cold` the same where no worker has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.forked import Fork, fork_trace
from warmroute_lab.replay.tool_calls import ToolCalls, tool_calls_trace
from warmroute_lab.replay.trace import Trace

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


def _fork(fork: Fork, name: str, seed: int) -> Trace:
    return fork_trace(fork, name, seed)


MADE_UP: Final[Mapping[str, Callable[[int], Trace]]] = {
    "toolagent": lambda seed: tool_calls_trace(ToolCalls(seed=seed), "toolagent (made up)"),
    "bursty": lambda seed: tool_calls_trace(replace(_BURSTY, seed=seed), "bursty (made up)"),
    "inference-day": lambda seed: agents_trace(replace(_INFERENCE_DAY, seed=seed), "inference-day (made up)"),
    "short": lambda seed: agents_trace(replace(_SHORT, seed=seed), "short (made up)"),
    "waves": lambda seed: agents_trace(replace(_WAVES, seed=seed), "waves (made up)"),
    **{
        f"fork-{branches}-{thousands}k{suffix}": partial(
            _fork,
            Fork(branches, thousands * 1024, cold=bool(suffix)),
            f"fork-{branches}-{thousands}k{suffix} (made up)",
        )
        for branches in (8, 43, 128)
        for thousands in (10, 40, 100)
        for suffix in ("", "-cold")
    },
}


def made_up(name: str, seed: int = 1) -> Trace:
    """The trace of that name: equal for equal seeds."""
    return MADE_UP[name](seed)
