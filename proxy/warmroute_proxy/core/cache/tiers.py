"""The tiers of a KV cache, and what it costs to use a prefix from each.

    device    in GPU memory: costs nothing
    host      in the worker's own memory: copied over PCIe when a prompt needs it
    storage   in a store that several workers share: fetched to the host, then copied

A block may be in several tiers; a prompt uses it from the fastest one. An engine first uses what it finds on the
device, then continues that prefix with blocks from the host, then with blocks from storage. So a prompt begins with
tokens from the device, followed by tokens from the host, from storage, and finally those that must be computed.

The seconds per token of a load (from the host) and of a fetch (from storage) are learned from what engines publish:
time spent and tokens moved, or bytes per second and bytes per token. The learned values are exponential averages,
weighted by tokens and bounded by what hardware can do. The priors are for 70 KB of KV a token (MLA in bf16). Host: one
PCIe 5 link at 35 GB/s. Storage: one 100 Gb/s link or a fast SSD at 7 GB/s.
"""

from typing import Final, Literal, NamedTuple

Tier = Literal["device", "host", "storage"]

LOAD_S_PER_TOKEN_PRIOR: Final = 2e-6
FETCH_S_PER_TOKEN_PRIOR: Final = 1e-5
MOVE_S_PER_TOKEN_MIN: Final = 1e-8
MOVE_S_PER_TOKEN_MAX: Final = 0.01
MOVE_WEIGHT_TOKENS: Final = 20_000
"""This number of newly moved tokens weighs as much as everything that was learned before."""

MIN_FETCH_TOKENS: Final = 256
"""Engines do not fetch shorter prefixes from storage, but compute them: SGLang's `prefetch_threshold`."""


class Held(NamedTuple):
    """The cached tokens of a prompt, by the tier from which each is used."""

    device: int
    host: int
    storage: int

    def within(self, most: int) -> "Held":
        """These tokens cut to `most`; the slowest tiers are cut first."""
        device = min(self.device, most)
        host = min(self.host, most - device)
        return Held(device, host, min(self.storage, most - device - host))


NOTHING_HELD: Final = Held(0, 0, 0)


def cacheable_tokens(prompt_tokens: int, page_tokens: int) -> int:
    """The maximum number of a prompt's tokens that can be cached: whole pages, and never the last token."""
    before_last = prompt_tokens - 1
    return before_last - before_last % page_tokens if before_last > 0 else 0


class MoveRates:
    """How many seconds one worker takes to move a token to the device, from each slower tier."""

    __slots__ = ("fetch_s_per_token", "load_s_per_token")

    def __init__(self) -> None:
        self.load_s_per_token = LOAD_S_PER_TOKEN_PRIOR
        self.fetch_s_per_token = FETCH_S_PER_TOKEN_PRIOR

    def seconds(self, held: Held) -> float:
        """Seconds until all of `held` is on the device."""
        return held.host * self.load_s_per_token + held.storage * self.fetch_s_per_token

    def observe_load(self, tokens: int, seconds: float) -> None:
        """Learn that copying `tokens` from the host took `seconds`."""
        self.load_s_per_token = _learned(self.load_s_per_token, tokens, seconds)

    def observe_fetch(self, tokens: int, seconds: float) -> None:
        """Learn that fetching `tokens` from storage took `seconds`."""
        self.fetch_s_per_token = _learned(self.fetch_s_per_token, tokens, seconds)


def _learned(known: float, tokens: int, seconds: float) -> float:
    if tokens <= 0 or seconds <= 0:
        return known
    observed = min(max(seconds / tokens, MOVE_S_PER_TOKEN_MIN), MOVE_S_PER_TOKEN_MAX)
    return known + tokens / (tokens + MOVE_WEIGHT_TOKENS) * (observed - known)
