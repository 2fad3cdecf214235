"""The W3C trace context of a request (w3.org/TR/trace-context), and whether the request is sampled. Pure.

A client's context names its trace. Its `sampled` flag could have all requests of the client traced, so the operator
decides whether the flag counts. If it does not, a hash of the trace id is compared with the ratio, so all proxies of a
fleet decide alike. The hash is keyed with the fleet secret, so no client can choose ids that are sampled.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1
_HASH_BYTES: Final = 8


class Context(NamedTuple):
    """A span in a trace. `sampled`: whether the sender of this context records the trace."""

    trace_id: int
    span_id: int
    sampled: bool


def read_context(value: str) -> Context | None:
    """The context in a `traceparent` header; None if it is not well formed."""
    found = _TRACEPARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = Context(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None


def written(trace_id: int, span_id: int) -> str:
    """The `traceparent` header of a sampled span."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


class Sampler:
    def __init__(self, ratio: float, *, follow_clients: bool, random_bits: Callable[[int], int], key: bytes) -> None:
        """`ratio`: the share of requests to sample, 0 to 1. `follow_clients`: the client's `sampled` flag decides.

        `random_bits`: draws a given number of bits. `key`: the same in all proxies of a fleet, 64 bytes at most.
        """
        self._below = round(ratio * (1 << 8 * _HASH_BYTES))
        self._follow_clients = follow_clients
        self.random_bits = random_bits
        self._key = key

    def new_trace(self) -> int | None:
        """Draw the id of a new trace; None if the request is not sampled."""
        trace_id = self.random_bits(128) or 1
        return trace_id if self._takes_id(trace_id) else None

    def takes(self, context: Context) -> bool:
        if not context.sampled or self._follow_clients:
            return context.sampled
        return self._takes_id(context.trace_id)

    def span_id(self) -> int:
        return self.random_bits(64) or 1

    def _takes_id(self, trace_id: int) -> bool:
        hashed = hashlib.blake2b(trace_id.to_bytes(16, "big"), digest_size=_HASH_BYTES, key=self._key).digest()
        return int.from_bytes(hashed, "big") < self._below
