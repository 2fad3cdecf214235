"""How long each cache keeps what a conversation left there, learned from what engines report as cached.

An engine evicts without telling, unless it publishes KV events. A home that has evicted a conversation is no home: its
next turn has no reason to wait there, and what it has to compute is work that others would wait for unforeseen.

A cache that drops what was used least lately keeps a block until so many other tokens were used after it as it can
hold. That *distance* of a conversation that ended a turn at time w, now, is

    distance = tokens in use by others at w + tokens computed there since w
             + of histories that were used again since, the share that is older than w

The first are used last when they end, after w. The third is not known of each w; for one that is as old as what is
kept at most, a history whose own distance was d moves ahead of it with probability d / kept.

`kept` is the distance that is kept. It is not set, and no size of a cache is needed: a turn that finds its history
gone at a smaller distance lowers it, one that finds it at a larger distance raises it. It starts as infinite. Raising
is at once and lowering is slow, for a conversation that is moved for nothing computes its whole history again, and of
those that are taken to be gone few come back to where it would show.

Not learned: of engines that never report anything as cached, of engines whose events say what they evict, of workers
with a host tier or a store, of other regions.
"""

import math
from typing import Final

MIN_TOKENS: Final = 1024
MIN_SHARE: Final = 1 / 8
"""A history of less, or of less of its prompt, says too little: pages, and errors of estimates, are as long."""
LOWERED: Final = 0.1
"""The share of the way to a distance at which a history was gone."""
FIRST: Final = 2.0
"""Times the first distance at which one was gone: where lowering starts."""


class Retention:
    """What one cache keeps."""

    __slots__ = ("kept_tokens", "reports", "told", "used_tokens")

    def __init__(self) -> None:
        self.used_tokens = 0.0  # since it began
        self.kept_tokens = math.inf
        self.reports = False  # anything as cached: an engine that never does is not believed
        self.told = False  # of each eviction, by events

    def used_again(self, tokens: int, distance: float) -> None:
        """A history of so many tokens was used again."""
        if distance > 0:
            self.used_tokens += tokens * min(1.0, distance / self.kept_tokens)

    def found(self, distance: float, prompt_tokens: int, own_tokens: int, cached_tokens: int) -> None:
        """Of a prompt's tokens that only its conversation uses and that were expected there, so many were cached."""
        if own_tokens < MIN_TOKENS or own_tokens < MIN_SHARE * prompt_tokens or not self.reports:
            return
        if 2 * cached_tokens > own_tokens:
            self.kept_tokens = max(self.kept_tokens, distance)
        elif distance < self.kept_tokens:
            if self.kept_tokens == math.inf:
                self.kept_tokens = FIRST * distance
            else:
                self.kept_tokens += LOWERED * (distance - self.kept_tokens)
