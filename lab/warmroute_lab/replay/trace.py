"""A trace: requests as ids of blocks of tokens. A block's id stands for the whole prefix up to the end of the block.

In *open loop*, requests come at their recorded time whatever happens (chat of many users). In *closed loop*, a turn of
a session comes some time after the previous turn has ended (an agent that thinks and runs tools). A trace may have
both: a request either has a time, or follows another request.

Ids are mixed to 64 bits and salted by the trace's position on the command line. So two traces share nothing, and an id
reveals nothing of its neighbours, as in the index of a real proxy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

MAX_REQUESTS = 1_000_000
"""The maximum number of requests in a trace; each takes about 1 KB."""

MAX_ID_BYTES = 512 << 20
"""The maximum memory that the ids of a trace's blocks may take."""

_SLOT_BYTES, _ID_BYTES = 8, 32


class TraceError(ValueError):
    """A trace or a fleet that cannot be replayed; the message has the place and the reason."""


class Request(msgspec.Struct, eq=False, gc=False):
    """One request.

    `blocks` has the ids of the prompt's blocks and then, if the trace knows the answer, of the answer's blocks. The
    block in which the prompt ends may be partial; the answer then fills it. `tail` is the id of this partial block with
    the prompt's tokens alone; None if the prompt ends with a full block. `at_s` is the time of arrival or, if the
    request follows request `after` of the trace, the time from the end of `after`. `session` is a number within the
    trace; `turn` counts from 1. `continued_tokens`: how many tokens of the prompt the previous turn has already sent.
    """

    number: int
    at_s: float
    after: int | None
    session: int
    turn: int
    input_tokens: int
    output_tokens: int
    blocks: list[int]
    tail: int | None
    continued_tokens: int = 0


class IdCount:
    """Counts the ids of a trace before they are made, since a few bytes of a file may stand for millions of ids."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, slots: int, new: int) -> None:
        """Count the slots of a list, and its ids that are new in the trace. Raises: TraceError."""
        self._bytes += _SLOT_BYTES * slots + _ID_BYTES * new
        if self._bytes > MAX_ID_BYTES:
            raise TraceError(f"its blocks need more than {MAX_ID_BYTES >> 20} MiB of ids: replay a part of it")


@dataclass(slots=True, eq=False)
class Trace:
    """Requests, numbered by their place in the list."""

    name: str
    block_tokens: int
    requests: list[Request]
    sessions: int
    named_sessions: bool
    """Whether clients name their sessions; else a session is found only by the beginning that its prompts share."""

    def ceiling(self) -> float:
        """The hit ratio of one cache that never forgets, in file order. No policy can exceed this ratio."""
        seen: set[int] = set()
        hit = total = 0
        for request in self.requests:
            full = request.input_tokens // self.block_tokens
            matched = 0
            for block in request.blocks[:full]:
                if block not in seen:
                    break
                matched += 1
            complete = (request.input_tokens + request.output_tokens) // self.block_tokens
            seen.update(request.blocks[:complete])
            hit += min(matched * self.block_tokens, request.input_tokens - 1)
            total += request.input_tokens
        return hit / total if total else 0.0


def mixed(ids: "Sequence[int] | np.ndarray[Any, Any]", salt: int) -> list[int]:
    """Ids as 64-bit numbers that look random (finaliser of SplitMix64, Steele et al. 2014). Equal ids stay equal."""
    values = np.asarray(ids, dtype=np.uint64)
    with np.errstate(over="ignore"):
        values = values + np.uint64((salt + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: list[int] = (values ^ (values >> np.uint64(31))).tolist()
    return found


def concatenated(traces: Sequence[Trace]) -> Trace:
    """Traces one after the other, as one. Each begins at the last arrival of the trace before; in closed loop, at the
    last arrival of a request that follows no other.
    """
    first = traces[0]
    if len(traces) == 1:
        return first
    requests: list[Request] = []
    sessions, offset_s = 0, 0.0
    for trace in traces:
        if trace.block_tokens != first.block_tokens or trace.named_sessions != first.named_sessions:
            raise TraceError(f"{first.name} and {trace.name} are of different kinds: replay them one by one")
        base, last_s = len(requests), 0.0
        for request in trace.requests:
            request.number += base
            request.session += sessions
            if request.after is None:
                last_s = max(last_s, request.at_s)
                request.at_s += offset_s
            else:
                request.after += base
        requests += trace.requests
        sessions += trace.sessions
        offset_s += last_s
    name = " + ".join(trace.name for trace in traces)
    return Trace(name, first.block_tokens, requests, sessions, first.named_sessions)
