"""Recognises forks: prompts with a common beginning (the head) that arrive almost at once, as those of sub-agents do.

Prompts of a fork arrive within the time that computing the head takes. The price of a shared prefix (`prices`) assumes
conversations that come one by one: sooner or later they need a second copy of the prefix anyway, and the copy serves
all later conversations. But the prompts of a fork (its branches) come together. They all find the head in the cache or
the queue of one worker. For each branch, placement has to choose at once: wait for the head there and compute the
branch's own part after the other branches, fetch the head from a store, or compute the head again elsewhere. So in a
fork

- the time to compute the head is not spread over later prompts, but counts wholly as the request's own time;
- the head may be computed again N times: N is the sum of the branches' own tokens, divided by the head's tokens and
  rounded. As long as this sum is too small for the next copy, the head is priced as if only this prompt used it. Once
  the sum is large enough, the head is priced as shared by the branches that have come so far. For example, of 43
  sub-agents with 2,000 tokens of their own, two compute a head of 40,000 tokens again; of eight such sub-agents, not
  one does;
- `churn` (the price of joining a worker that has lately written much to its cache) is left out. The worker that has the
  head has lately written most, so `churn` would drive branches away from it;
- no branch counts as a known conversation, which stays at its worker (`placement`), although all branches may continue
  one turn that the proxy knows.

A fork is identified by the prefix hash at the cut (position) at which its prompts leave the cached prefix. While the
head is still being computed for the first prompt, `Forks` has no entry. During this time the prompts in the workers'
queues are searched for branches (`branches_under_way`).

Identical prompts (several answers to one question) do not fork, nor do prompts with a short head.

Limit: the latest forks are kept, at least `MAX_FORKS` and at most twice that number; a fork matters only for seconds.
Each process counts only the branches that it sends itself.
"""

from typing import Final

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.ticket import Ticket
from warmroute_proxy.core.prompt.chain import Chain

MAX_FORKS: Final = 4096
MIN_HEAD_TOKENS: Final = 4096
MIN_OWN_TOKENS: Final = 32

LASTS_S: Final = 0.5
LASTS_HEADS: Final = 0.25
"""A fork ends `LASTS_S` after its last prompt, or `LASTS_HEADS` times its head's compute time if that is longer."""

MAX_LOOKED_AT: Final = 8
"""How many of the newest prompts in each worker's queue are searched for branches."""


class Fork(Frozen, frozen=True):
    """The prompts that have branched off a head so far: their number, their own tokens, and how often the head was
    recomputed.

    `at_s`: when the last of these prompts was sent.
    """

    branches: int
    own_tokens: int
    copies: int
    at_s: float

    def covers_a_copy(self, head_tokens: float, own_tokens: float) -> bool:
        """Whether the head may be computed once more. `own_tokens`: those of the prompt that is being placed."""
        return (self.copies + 0.5) * head_tokens <= self.own_tokens + own_tokens


class Forks:
    """The latest forks, by the prefix hash at which they branch."""

    def __init__(self, max_forks: int = MAX_FORKS) -> None:
        self._max_forks = max_forks
        self._recent: dict[int, Fork] = {}
        self._older: dict[int, Fork] = {}

    def of(self, cut: int, head_s: float, now_s: float) -> Fork | None:
        """The fork at a cut; None if no prompt has branched off there lately. `head_s`: seconds to compute the head."""
        fork = self._recent.get(cut) or self._older.get(cut)
        if fork is not None and now_s - fork.at_s > max(LASTS_S, LASTS_HEADS * head_s):
            return None
        return fork

    def sent(self, cut: int, own_tokens: int, copies: bool, before: Fork | None, now_s: float) -> None:
        """Add a prompt that branches off at a cut to the fork `before`. `copies`: whether it recomputes the head."""
        if before is None:
            fork = Fork(1, own_tokens, int(copies), now_s)
        else:
            fork = Fork(before.branches + 1, before.own_tokens + own_tokens, before.copies + copies, now_s)
        if len(self._recent) >= self._max_forks:
            self._older, self._recent = self._recent, {}
        self._recent[cut] = fork


def branches_under_way(workers: tuple[WorkerState, ...], mask: int, at: int, cut: int, now_s: float) -> Fork | None:
    """The fork of queued prompts that compute the head up to `cut` and continue after it; None without such prompts.

    `at`: the position of `cut` in the chains of these prompts. Only workers whose slot is in `mask` are searched.
    """
    branches = 0
    for worker in workers:
        queue = worker.load.prefills
        if queue.tokens >= MIN_HEAD_TOKENS and mask >> worker.slot & 1:
            for each in queue.newest(MAX_LOOKED_AT):
                if isinstance(each, Ticket) and each.from_cut <= at and _has(each.chain, at, cut):
                    branches += 1
    return Fork(branches, 0, branches - 1, now_s) if branches else None


def _has(chain: Chain, at: int, cut: int) -> bool:
    return at + 1 < len(chain.hashes) and chain.hashes[at] == cut
