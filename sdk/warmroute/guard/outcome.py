"""Why a prompt with an intact prefix was not cached. These causes are on the server's side, not the client's.

A server has the KV of the turn before, unless it dropped that KV or another of its workers served that turn. Each
server decides how long it keeps a prompt, and how short a cached prompt may be (`Keeping`).
"""

from typing import Final, NamedTuple

from warmroute.guard.causes import Cause

ENOUGH: Final = 0.75
"""A prompt counts as cached if at least this share of it is: engines reuse only whole pages, and servers round more."""

PAGE_TOKENS: Final = 128
"""The largest step in which servers count cached tokens (OpenAI); a smaller difference is not a miss."""


class Keeping(NamedTuple):
    """The lifetime of a prompt in a server's cache, and the shortest prompt that is cached, as the server states them.
    0: unknown.
    """

    ttl_s: float
    min_tokens: int


UNKNOWN: Final = Keeping(0, 0)


def outcome(
    expected_tokens: int, cached_tokens: int | None, prompt_tokens: int, idle_s: float, keeping: Keeping
) -> Cause | None:
    """The cause of uncached tokens in an intact prompt; None if enough are cached, or if the count is unknown.

    `expected_tokens`: the tokens of the earlier prompt that this prompt repeats; 0 on the first turn.
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
