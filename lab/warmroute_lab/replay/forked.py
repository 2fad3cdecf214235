"""Made-up forks: an agent starts many sub-agents at once, which send the agent's context with a task of their own.

All branches come within `SPREAD_S`, and then go on as closed-loop agents for some turns. *Warm*: the agent's own turn
was served half a minute before, so that some worker has the head. *Cold*: no worker has it.
"""

from typing import Final, NamedTuple

import numpy as np

from warmroute_lab.replay.trace import Request, Trace, mixed

BLOCK_TOKENS: Final = 512
SPREAD_S: Final = 0.4
BEFORE_S: Final = 30.0
TURNS: Final = 5
OWN_BLOCKS: Final = 4
NEW_BLOCKS: Final = 3
OUTPUT_TOKENS: Final = 200
THINK_S: Final = (8.0, 12.0)
_IDS_OF_A_BRANCH: Final = 1 << 12


class Fork(NamedTuple):
    """How many sub-agents over a head of how many tokens, and whether a worker has it."""

    branches: int
    head_tokens: int
    cold: bool = False


def fork_trace(fork: Fork, name: str, seed: int = 1) -> Trace:
    """The trace of one fork: equal for equal seeds."""
    random = np.random.default_rng(seed)
    head = mixed(np.arange(fork.head_tokens // BLOCK_TOKENS, dtype=np.uint64) + np.uint64(1 << 63), 0)
    requests: list[Request] = []
    if not fork.cold:
        requests.append(Request(0, 0.0, None, 0, 1, len(head) * BLOCK_TOKENS, OUTPUT_TOKENS, head, None))
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
            requests.append(Request(number, at_s, before, session, turn + 1, tokens, OUTPUT_TOKENS, blocks, None, seen))
            before, seen = number, tokens
    return Trace(name, BLOCK_TOKENS, requests, fork.branches + (not fork.cold), named_sessions=True)
