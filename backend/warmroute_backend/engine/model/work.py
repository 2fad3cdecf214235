"""The values of a scheduler: a request and its phase, the costs of steps, events, and counts for metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from warmroute_backend.engine.model.radix import Node

KV_BYTES_PER_TOKEN: Final = 70_272
"""61 layers of MLA with 512 + 64 values in bf16, as DeepSeek V3 and Kimi K2 have (their `config.json`)."""

Role = Literal["aggregated", "prefill", "decode"]


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


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step and a hand-off cost, in virtual seconds."""

    prefill_tokens_per_s: float = 20_000.0
    chunk_tokens: int = 8192
    step_overhead_s: float = 0.005
    decode_base_s: float = 0.015
    decode_per_sequence_s: float = 0.0001
    transfer_tokens_per_s: float = 400_000.0
    transfer_base_s: float = 0.002
    host_load_s_per_token: float = KV_BYTES_PER_TOKEN / 50e9
    """PCIe 5.0 x16: 32 GT/s on 16 lanes are 63 GB/s, of which copies reach about 50."""
    storage_fetch_s_per_token: float = KV_BYTES_PER_TOKEN / 10e9
    """Between a few GB/s of one NVMe drive and the 25 GB/s of a 200 Gb/s RDMA port."""

    def prefill_s(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_per_s + self.step_overhead_s

    def decode_s(self, sequences: int) -> float:
        return self.decode_base_s + self.decode_per_sequence_s * sequences

    def fetch_s(self, storage_tokens: int) -> float:
        """From storage to the host."""
        return storage_tokens * self.storage_fetch_s_per_token

    def load_s(self, tokens: int) -> float:
        """From the host to the device."""
        return tokens * self.host_load_s_per_token

    def transfer_s(self, tokens: int) -> float:
        return tokens / self.transfer_tokens_per_s + self.transfer_base_s


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
        """Tokens that came from storage."""
        return self.cached_storage_tokens
