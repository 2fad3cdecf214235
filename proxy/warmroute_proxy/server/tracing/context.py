"""The W3C trace context of a request (w3.org/TR/trace-context), and whether the request is sampled. Pure.

A client's context names its trace. Whether its `sampled` flag counts is for the operator to say: a client could have
every request of its own traced. Where it does not count, a trace is sampled by its id, so that all proxies of a fleet
decide alike. Clients choose ids, so which of them are sampled follows from the fleet secret: the low bits of an id are
the number that is compared with the ratio, under a cipher. A proxy draws the number first and enciphers it, so that a
request that is not sampled costs nothing else.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1
_RANDOM_BITS: Final = 56
"""So many low bits of a trace id are random (W3C level 2); sampling reads no others."""

_HALF_BITS: Final = _RANDOM_BITS // 2
_HALF: Final = (1 << _HALF_BITS) - 1
_ROUNDS: Final = range(4)
"""Four rounds of a keyed function make a cipher (Luby and Rackoff, 1988)."""


class Context(NamedTuple):
    """A place in a trace. `sampled`: whether the side that sent it records the trace."""

    trace_id: int
    span_id: int
    sampled: bool


def read_context(value: str) -> Context | None:
    """The context in a `traceparent` header; None where it is not well formed."""
    found = _TRACEPARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = Context(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None


def written(trace_id: int, span_id: int) -> str:
    """The `traceparent` of a sampled span."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


class Sampler:
    """Decides which requests have a trace."""

    def __init__(self, ratio: float, *, follow_clients: bool, random_bits: Callable[[int], int], key: bytes) -> None:
        """`ratio`: the share of requests, 0 to 1. `follow_clients`: the flag of a client's context decides.

        `random_bits`: a source of so many random bits. `key`: the same in all proxies of a fleet, 64 bytes at most.
        """
        self._below = round(ratio * (1 << _RANDOM_BITS))
        self._follow_clients = follow_clients
        self.random_bits = random_bits
        self._key = key

    def new_trace(self) -> int | None:
        """The id of a new trace; None where the request has none."""
        low = self.random_bits(_RANDOM_BITS)
        if low >= self._below:
            return None
        return (self.random_bits(128 - _RANDOM_BITS) << _RANDOM_BITS | self._enciphered(low)) or 1

    def takes(self, context: Context) -> bool:
        """Whether a request with a context is traced."""
        if not context.sampled or self._follow_clients:
            return context.sampled
        return self._deciphered(context.trace_id & ((1 << _RANDOM_BITS) - 1)) < self._below

    def span_id(self) -> int:
        """The id of a new span."""
        return self.random_bits(64) or 1

    def _enciphered(self, number: int) -> int:
        high, low = number >> _HALF_BITS, number & _HALF
        for number_of_round in _ROUNDS:
            high, low = low, high ^ self._mixed(number_of_round, low)
        return high << _HALF_BITS | low

    def _deciphered(self, number: int) -> int:
        high, low = number >> _HALF_BITS, number & _HALF
        for number_of_round in reversed(_ROUNDS):
            high, low = low ^ self._mixed(number_of_round, high), high
        return high << _HALF_BITS | low

    def _mixed(self, number_of_round: int, half: int) -> int:
        message = bytes([number_of_round]) + half.to_bytes(4, "big")
        return int.from_bytes(hashlib.blake2b(message, digest_size=4, key=self._key).digest(), "big") & _HALF
