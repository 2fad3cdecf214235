"""Names and defaults in plans, in a small module because the command line imports them at each start."""

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
"""This port and `STORE_PORT` are Mooncake's defaults (mooncake-store/src/master.cpp)."""
LMCACHE_PORT: Final = 6555
LMCACHE_HTTP_PORT: Final = 6556
"""This port and `LMCACHE_PORT` are not LMCache's defaults 5555 and 8080, which other programs use, too."""
RDMA_RESOURCE: Final = "rdma/hca_shared_devices_a"
