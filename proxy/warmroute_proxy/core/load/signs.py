"""Judges by engines' reports and predictions whether a lasting fault (a condition) is there. All functions are pure.

Each function returns a `Sign`: whether the observed interval is bad, good or says nothing, and its figures in words.
Most functions compare two reports of one rank (a data-parallel process of an engine). An idle rank counts as good if
idleness rules the condition out.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class EngineReport(NamedTuple):
    """What one rank reports. Totals grow until a restart; a value that is not reported is 0."""

    accept_length: float = 0.0
    token_usage: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    bootstrap_queue: float = 0.0
    prealloc_queue: float = 0.0
    transfer_queue: float = 0.0
    prompt_tokens: float = 0.0
    lower_hit_tokens: float = 0.0
    """Prompt tokens that came from the host or from storage."""
    retracted: float = 0.0
    failed_transfers: float = 0.0
    transfers: float = 0.0
    transfer_gb_s_sum: float = 0.0
    transfer_ms_sum: float = 0.0
    transfer_ms_count: float = 0.0
    host_used_tokens: float = 0.0
    host_total_tokens: float = 0.0


class Sign(NamedTuple):
    """`bad`: whether an observation shows the condition; None if it shows nothing. `detail`: its figures in words."""

    bad: bool | None
    detail: str = ""


HIT_SHARE: Final = 0.2
"""An interval has hits of lower tiers (host, storage) if at least this share of its prompt tokens came from them."""
ACCEPT_SHARE: Final = 0.8
"""If hits of lower tiers reduce the accept length (of speculative decoding) to less than this share, it is bad.
sglang#31600 and sglang#28771 report accept lengths that fall to a half and less.
"""
LEARN: Final = 0.3

FAILED_TRANSFERS: Final = 2
SLOW_GB_S: Final = 3.0
"""Slower transfers are bad. RDMA at 100 Gbit/s reaches 12 GB/s, NVLink hundreds, TCP in practice only one or two."""

RETRACTED: Final = 8
RETRACTED_SHARE: Final = 0.1
"""Fewer retractions than this share of the running requests are good: a full engine retracts some by design."""

MISSING_SHARE: Final = 0.5
LEAST_EXPECTED: Final = 2_000

STARVING_QUEUE: Final = 4.0
"""A side of PD (prefill or decode) is short if at least this number of requests waits for each of its engines."""
IDLE_QUEUE: Final = 1.0
IDLE_USAGE: Final = 0.5


LEAST_ANSWERS: Final = 8
EMPTY_SHARE: Final = 0.25
"""From this share of empty answers on, a worker is bad. A sound model has a few; MoonshotAI/Kimi-K2#128 has 13 of
15.
"""


LEAST_REPEATS: Final = 3
LEAST_REPEATED_TOKENS: Final = 1_024
"""A prompt counts as repeated from this number of known tokens on: providers cache no shorter prompts."""

UNKNOWN_SHARE: Final = 0.01
"""If a larger share of prompt tokens was not cached and the cause is unknown, the proxy has an error: engines with KV
events report evictions."""
LEAST_PROMPTS: Final = 20_000


class AcceptLengths:
    """Learns a rank's accept length without hits of lower tiers, and compares it with intervals that have such hits."""

    __slots__ = ("_plain",)

    def __init__(self) -> None:
        self._plain = 0.0

    def sign(self, before: EngineReport, now: EngineReport) -> Sign:
        prompts = now.prompt_tokens - before.prompt_tokens
        if now.accept_length <= 0.0 or prompts <= 0.0:
            return Sign(None)
        share = (now.lower_hit_tokens - before.lower_hit_tokens) / prompts
        if share < HIT_SHARE:
            self._plain += (now.accept_length - self._plain) * (LEARN if self._plain else 1.0)
            return Sign(False)
        if not self._plain:
            return Sign(None)
        words = f"accept length {now.accept_length:.2f} with {share:.0%} of prompts from host or storage, "
        return Sign(now.accept_length < ACCEPT_SHARE * self._plain, f"{words}{self._plain:.2f} without")


def transfers(before: EngineReport, now: EngineReport) -> Sign:
    """Whether transfers of KV fail, or are as slow as TCP."""
    failed = now.failed_transfers - before.failed_transfers
    count = now.transfers - before.transfers
    if failed >= FAILED_TRANSFERS:
        return Sign(True, f"{failed:.0f} transfers have failed")
    if count <= 0.0:
        return Sign(False)
    gb_s = (now.transfer_gb_s_sum - before.transfer_gb_s_sum) / count
    return Sign(0.0 < gb_s < SLOW_GB_S, f"{count:.0f} transfers at {gb_s:.2g} GB/s each")


def retractions(before: EngineReport, now: EngineReport) -> Sign:
    """Whether a rank keeps retracting requests from its pool."""
    retracted = now.retracted - before.retracted
    bad = retracted >= RETRACTED and retracted >= RETRACTED_SHARE * now.running
    return Sign(bad, f"{retracted:.0f} requests were retracted, {now.running:.0f} run, pool {now.token_usage:.0%} full")


def empty_answers(answers: int, empty: int) -> Sign:
    """Whether too many answers of a worker are empty. Unknown for fewer than `LEAST_ANSWERS`."""
    if answers < LEAST_ANSWERS:
        return Sign(None)
    return Sign(empty >= EMPTY_SHARE * answers, f"{empty} of {answers} answers have neither text nor calls")


def hand_overs(failed: int, words: str) -> Sign:
    """Whether an engine's hand-overs of KV fail. `failed`: how many failed in a row; `words`: between which engines.

    A single failure proves nothing. An engine that gets no more attempts stays bad.
    """
    return Sign(failed > 1 if failed != 1 else None, f"{failed} hand-overs in a row: {words}")


def no_hits(repeats: int, reports_hits: bool) -> Sign:
    """Whether a worker has reported no cached tokens since it started, although prompts were repeated."""
    if repeats < LEAST_REPEATS:
        return Sign(False if reports_hits else None)
    return Sign(not reports_hits, f"{repeats} prompts repeated earlier ones, and no token was reported as cached")


def unexplained(unknown_tokens: int, prompt_tokens: int) -> Sign:
    """Whether too many prompt tokens are lost without a known cause, although the engines report evictions."""
    if prompt_tokens < LEAST_PROMPTS:
        return Sign(None)
    words = f"{unknown_tokens:,} of {prompt_tokens:,} prompt tokens were expected to be cached, and no cause was seen"
    return Sign(unknown_tokens > UNKNOWN_SHARE * prompt_tokens, words)


def missing_hits(evicted_tokens: int, reported_tokens: int, lost_events: int) -> Sign:
    """Whether KV events were lost, or most of the tokens that workers had computed were gone when they were needed
    again.

    The arguments are sums over an interval. `evicted_tokens`: the tokens that were no longer cached because of an
    eviction or for an unknown cause. A comparison with predictions cannot show this condition: if an engine keeps less
    than it says, the index learns that within seconds, and then does not predict these tokens any more.
    """
    if lost_events > 0:
        return Sign(True, f"KV events were lost {lost_events} times")
    expected = evicted_tokens + reported_tokens
    if expected < LEAST_EXPECTED:
        return Sign(None)
    words = f"{expected:,} cached tokens were expected where they had been computed, {reported_tokens:,} reported"
    return Sign(reported_tokens < MISSING_SHARE * expected, words)


def starving_side(prefills: Mapping[str, EngineReport], decodes: Mapping[str, EngineReport]) -> Sign:
    """Whether one side of PD has a queue while the other side has little to do. Unknown if a side has no engines.

    Requests in a prefill engine's bootstrap queue wait for memory of a decode engine, so they count as queued for
    decode.
    """
    if not prefills or not decodes:
        return Sign(None)
    prefill_queue = sum(report.waiting for report in prefills.values()) / len(prefills)
    waits = [report.prealloc_queue + report.waiting for report in decodes.values()]
    decode_queue = (sum(waits) + sum(report.bootstrap_queue for report in prefills.values())) / len(decodes)
    decode_usage = sum(report.token_usage for report in decodes.values()) / len(decodes)
    queues = f"{prefill_queue:.1f} requests wait for each prefill engine, {decode_queue:.1f} for each decode engine"
    if prefill_queue >= STARVING_QUEUE and decode_queue < IDLE_QUEUE and decode_usage < IDLE_USAGE:
        return Sign(True, f"{queues}: prefill is short; flip a decode engine, or plan with more prefill GPUs")
    if decode_queue >= STARVING_QUEUE and prefill_queue < IDLE_QUEUE:
        return Sign(True, f"{queues}: decode is short; flip a prefill engine, or plan with more decode GPUs")
    return Sign(False)
