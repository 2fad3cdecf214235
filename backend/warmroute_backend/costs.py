"""The costs of an engine's steps in seconds, for the planner's estimates and for the engine that the lab simulates."""

from dataclasses import dataclass
from typing import Final, Literal

KV_BYTES_PER_TOKEN: Final = 70_272
"""The KV of a token in 61 layers of MLA with 512 + 64 values in bf16, as in DeepSeek V3 and Kimi K2 (`config.json`)."""

Role = Literal["aggregated", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of an engine's step and of a hand-off from prefill to decode, in simulated seconds."""

    prefill_tokens_per_s: float = 20_000.0
    chunk_tokens: int = 8192
    step_overhead_s: float = 0.005
    decode_base_s: float = 0.015
    decode_per_sequence_s: float = 0.0001
    transfer_tokens_per_s: float = 400_000.0
    transfer_base_s: float = 0.002
    host_load_s_per_token: float = KV_BYTES_PER_TOKEN / 50e9
    """Over PCIe 5.0 x16: 32 GT/s on 16 lanes are 63 GB/s, of which copies reach about 50."""
    storage_fetch_s_per_token: float = KV_BYTES_PER_TOKEN / 10e9
    """At an assumed rate, between the few GB/s of one NVMe drive and the 25 GB/s of a 200 Gb/s RDMA port."""

    def prefill_s(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_per_s + self.step_overhead_s

    def decode_s(self, sequences: int) -> float:
        return self.decode_base_s + self.decode_per_sequence_s * sequences

    def fetch_s(self, storage_tokens: int) -> float:
        return storage_tokens * self.storage_fetch_s_per_token

    def load_s(self, tokens: int) -> float:
        return tokens * self.host_load_s_per_token

    def transfer_s(self, tokens: int) -> float:
        return tokens / self.transfer_tokens_per_s + self.transfer_base_s
