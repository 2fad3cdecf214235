"""Names and defaults in plans. They are in a module of their own, since the command line imports them at each start."""

from typing import Final, Literal

Objective = Literal["latency", "throughput"]
OBJECTIVES: Final = ("latency", "throughput")

Storage = Literal["none", "file", "mooncake"]
STORAGES: Final = ("none", "file", "mooncake")

AllToAll = Literal["none", "deepep"]
ALL_TO_ALLS: Final = ("none", "deepep")

KvType = Literal["bf16", "fp8_e4m3", "nvfp4"]
KV_TYPES: Final = ("bf16", "fp8_e4m3", "nvfp4")

CACHE_DIR: Final = "/var/cache/sglang"
STORE_PORT: Final = 50051
STORE_METRICS_PORT: Final = 9003
"""Both ports are Mooncake's own (mooncake-store/src/master.cpp)."""
LMCACHE_PORT: Final = 6555
LMCACHE_HTTP_PORT: Final = 6556
"""Not LMCache's own 5555 and 8080, which other programs also take."""
RDMA_RESOURCE: Final = "rdma/hca_shared_devices_a"
