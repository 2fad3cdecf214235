"""The values of a scheduler: a request and its phase, the costs of steps, events, and counts for metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from warmroute_lab.engine.model.radix import Node


class Phase(Enum):
    """How far a request has come."""

    NEW = "new"
    WAITING = "waiting"
    ALLOCATED = "allocated"
    DELIVERED = "delivered"
    PREFILL = "prefill"
    DECODE = "decode"
    TRANSFER = "transfer"
    DONE = "done"


class Work(msgspec.Struct, eq=False):
    """One request as the scheduler sees it: sizes and page keys, no text.

    `keys` are the page keys of the prompt and, where the answer is kept, of prompt + answer. `width` is the number
    of sequences that share the prompt (`n`); `output_tokens` the length of the longest.
    """

    prompt_tokens: int
    output_tokens: int
    keys: Sequence[int]
    width: int = 1
    arrival_s: float = 0.0
    owner: Any = None
    phase: Phase = Phase.NEW
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    """Of `cached_tokens`, those loaded back from the host; what is neither host nor storage was on the device."""
    cached_storage_tokens: int = 0
    computed_tokens: int = 0
    generated: int = 0
    """Tokens so far. `finish` keeps it current; under `advance` it is set when the work ends."""
    first_token_s: float | None = None
    allocated_s: float | None = None
    delivered_s: float = 0.0
    reserved_pages: int = 0
    kept_pages: int = 0
    """Pages from the root that are in the cache on behalf of this work: matched or computed."""
    path: Node | None = None
    """What the work holds of the cache, by its last node."""
    last_step: int = 0
    """The scheduler's decode step that brings the last token."""


@dataclass(slots=True)
class Step:
    """One step that runs. `delivered` (decode role) got the token of its prefill engine at `start_s`."""

    start_s: float
    end_s: float
    prefill: list[tuple[Work, int]] = field(default_factory=list)
    decode: list[Work] = field(default_factory=list)
    delivered: list[Work] = field(default_factory=list)


Event = tuple[float, Work, bool]
"""What a router observes: the time, the work, and whether it ended (True) or got its first token (False)."""


@dataclass(slots=True)
class WorkTotals:
    """Counts since the start, for load and metrics."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0
    generated_tokens: int = 0
    prefill_uncached_tokens: int = 0
    prefill_busy_s: float = 0.0
    steps: int = 0

    @property
    def load_back_tokens(self) -> int:
        """Tokens that came back to the device from the host; those from storage came by the host."""
        return self.cached_host_tokens + self.cached_storage_tokens

    @property
    def prefetched_tokens(self) -> int:
        return self.cached_storage_tokens
