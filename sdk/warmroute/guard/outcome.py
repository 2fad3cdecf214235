"""Why a prompt with an intact prefix was not cached: what is told apart from the client's own breaks.

A server has what it computed for the turn before, unless it dropped it or the turn went elsewhere. How long it keeps a
prompt, and from how many tokens on, is its own (`Keeping`).
"""

from typing import Final, NamedTuple

from warmroute.guard.causes import Cause

ENOUGH: Final = 0.75
"""A share of the expected tokens that is cached counts as found: engines reuse whole pages, and servers round more."""

PAGE_TOKENS: Final = 128
"""The largest step in which servers count cached tokens (OpenAI); a smaller difference is not a miss."""


class Keeping(NamedTuple):
    """The properties that a server states about its cache. 0: not known."""

    ttl_s: float
    min_tokens: int


UNKNOWN: Final = Keeping(0, 0)


def outcome(
    expected_tokens: int, cached_tokens: int | None, prompt_tokens: int, idle_s: float, keeping: Keeping
) -> Cause | None:
    """The cause of uncached tokens in an intact prompt; None without such tokens, or without a report.

    `expected_tokens`: the tokens of the earlier prompt that it repeats, 0 on the first turn.
    """
    if cached_tokens is None or prompt_tokens <= 0:
        return None
    if expected_tokens <= 0:
        return Cause.FIRST_TURN if cached_tokens < ENOUGH * prompt_tokens else None
    repeated = min(expected_tokens, prompt_tokens)
    if cached_tokens >= ENOUGH * repeated or repeated - cached_tokens < PAGE_TOKENS:
        return None
    if expected_tokens < keeping.min_tokens:
        return Cause.TOO_SHORT
    if keeping.ttl_s and idle_s > keeping.ttl_s:
        return Cause.IDLE
    return Cause.PROVIDER_MISS
