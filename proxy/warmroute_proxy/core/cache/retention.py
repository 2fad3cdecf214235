"""How long each cache keeps what a conversation left there, learned from what engines report as cached.

An engine does not report evictions, unless it publishes KV events. A home that has evicted a conversation is no home:
the conversation's next turn has no reason to wait there, and its prompt is work that delays others unforeseen.

A cache that drops what was used least lately keeps a block until so many other tokens were used after it as it can
hold. That *distance* of a conversation that ended a turn at time w, now, is

    distance = tokens in use by others at w + tokens computed there since w
             + of histories that were used again since, the share that is older than w

The first are used last when they end, after w. The third is not known for each w; for one that is as old as what is
kept at most, a history whose own distance was d moves ahead of it with probability d / kept.

`kept_tokens` is the distance that is kept. It is not configured, and no size of a cache is needed: a turn that finds
its history gone at a smaller distance lowers it, one that finds it at a larger distance raises it. It starts as
infinite. Raising is immediate and lowering is slow: a conversation that is moved for nothing computes its whole history
again, and of those that are taken to be evicted few come back to where the mistake would show.

Not learned: of engines that never report anything as cached, of engines whose events report evictions, of workers with
a host tier or a store, of other regions.
"""

import math
from typing import Final

MIN_TOKENS: Final = 1024
MIN_SHARE: Final = 1 / 8
"""A shorter history, or a smaller share of its prompt, teaches nothing: pages and errors of estimates are as long."""
LOWERED: Final = 0.1
"""How far each history that was gone lowers `kept_tokens`: a share of the difference to its distance."""
FIRST: Final = 2.0
"""The first history that was gone sets `kept_tokens` to its distance times this factor."""


class Retention:
    """The distance that one cache keeps."""

    __slots__ = ("has_events", "kept_tokens", "reports", "used_tokens")

    def __init__(self) -> None:
        self.used_tokens = 0.0  # since it began
        self.kept_tokens = math.inf
        self.reports = False  # has reported anything as cached: an engine that never does teaches nothing
        self.has_events = False  # KV events report each eviction

    def used_again(self, tokens: int, distance: float) -> None:
        """Count the tokens of a history that was used again at `distance`."""
        if distance > 0:
            self.used_tokens += tokens * min(1.0, distance / self.kept_tokens)

    def observe(self, distance: float, prompt_tokens: int, own_tokens: int, cached_tokens: int) -> None:
        """Learn from a prompt with `own_tokens` that only its conversation uses and that were expected in the cache.

        The engine found `cached_tokens` of them.
        """
        if own_tokens < MIN_TOKENS or own_tokens < MIN_SHARE * prompt_tokens or not self.reports:
            return
        if 2 * cached_tokens > own_tokens:
            self.kept_tokens = max(self.kept_tokens, distance)
        elif distance < self.kept_tokens:
            if self.kept_tokens == math.inf:
                self.kept_tokens = FIRST * distance
            else:
                self.kept_tokens += LOWERED * (distance - self.kept_tokens)
