"""The data of a scheduler: requests and their phases, steps, events, and totals for metrics."""

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

    `keys` are the page keys of the prompt, or of prompt and answer if the cache keeps the answer. `width` sequences
    (`n` of the request) share the prompt; `output_tokens` is the length of the longest answer.
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
    """The part of `cached_tokens` loaded back from the host. What came from neither host nor storage was on the
    device."""
    cached_storage_tokens: int = 0
    computed_tokens: int = 0
    generated: int = 0
    """Tokens generated so far. `finish` updates the count at each step, `advance` only when the work ends."""
    first_token_s: float | None = None
    allocated_s: float | None = None
    delivered_s: float = 0.0
    reserved_pages: int = 0
    kept_pages: int = 0
    """Number of leading pages of `keys` that the cache has for this work: matched or computed."""
    path: Node | None = None
    """The last node of the cache path that this work holds."""
    last_step: int = 0
    """The number of the scheduler's decode step that produces the last token."""


@dataclass(slots=True)
class Step:
    """One step of a scheduler. The works in `delivered` (decode role) got their prefill engine's token at `start_s`."""

    start_s: float
    end_s: float
    prefill: list[tuple[Work, int]] = field(default_factory=list)
    decode: list[Work] = field(default_factory=list)
    delivered: list[Work] = field(default_factory=list)


Event = tuple[float, Work, bool]
"""What a router observes: the time, the work, and whether the work ended (True) or got its first token (False)."""


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
        """Tokens loaded to the device from the host. Tokens from storage pass through the host, so they count too."""
        return self.cached_host_tokens + self.cached_storage_tokens

    @property
    def cached_device_tokens(self) -> int:
        return self.cached_tokens - self.load_back_tokens
