"""Reads the W3C trace context of a request (w3.org/TR/trace-context), and decides whether to sample it. Does no I/O.

A client's context names its trace. With the context's `sampled` flag, a client could have all its requests traced, so
the operator decides whether the flag is followed. If not, a hash of the trace id is compared with the sampling ratio,
so that all proxies of a fleet decide alike. The hash is keyed with the fleet secret, so a client cannot choose ids that
are sampled.
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
    """A span in a trace, as its sender names it. `sampled`: whether the sender records the trace."""

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
        """`ratio`: the share of requests to sample, 0 to 1. `follow_clients`: a client's `sampled` flag decides.

        `random_bits`: returns a given number of random bits. `key`: one key for all proxies of a fleet, 64 bytes at
        most.
        """
        self._below = round(ratio * (1 << 8 * _HASH_BYTES))
        self._follow_clients = follow_clients
        self.random_bits = random_bits
        self._key = key

    def new_trace(self) -> int | None:
        """Return a random id for a new trace, or None if the request is not sampled."""
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
