"""The options of an embedded engine, named as SGLang's."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from warmroute_lab.engine.events.kv_publisher import MAX_PORT, KvEventsConfig, read_config
from warmroute_lab.engine.model.hicache import BYTES_PER_TOKEN, PREFETCH_POLICY, WRITE_POLICY, HiCache
from warmroute_lab.engine.settings import Settings


def add(parser: argparse.ArgumentParser) -> None:
    defaults = Settings()
    add = parser.add_argument
    add("--role", choices=["aggregated", "prefill", "decode"], default=defaults.role)
    add("--host", default="127.0.0.1")
    add("--port", type=_port, default=0, help="0 lets the system choose")
    add("--bootstrap-port", type=_port, default=0, help="prefill only; 0 lets the system choose")
    add("--model", action="append", help="a served model name; may be repeated")
    add("--page-size", type=_at_least(int, 1), default=defaults.page_size, help="tokens per KV page")
    add("--kv-tokens", type=_at_least(int, 1), default=defaults.kv_tokens, help="KV capacity of a rank")
    add("--kv-bytes-per-token", type=_at_least(float, 1), default=BYTES_PER_TOKEN, help="for sizes in bytes")
    add("--kv-cache-dtype", default=defaults.kv_cache_dtype, help="only reported: nothing is stored")
    add("--context-length", type=_at_least(int, 2), default=defaults.context_length)
    add("--dp-size", type=_at_least(int, 1), default=defaults.dp_size, help="data-parallel ranks")
    add("--speed", type=_at_least(float, 0.001), default=defaults.speed, help="virtual seconds per wall second")
    add("--engine-id", default=defaults.engine_id)
    add("--seed", type=int, default=defaults.seed, help="of the generated text")
    add("--max-running-requests", type=_at_least(int, 1), default=defaults.max_running, help="over all ranks")
    add("--max-queued-requests", type=_at_least(int, 0), default=defaults.max_queued, help="per rank; not in PD")
    add("--bootstrap-timeout-s", type=_at_least(float, 0.01), default=defaults.bootstrap_timeout_s)
    add("--api-key", help="bearer token of all paths but health and metrics")
    add("--obey-prompts", action="store_true", help="obey lines of a prompt such as `obey: call NAME {JSON}`")
    add("--request-log", type=Path, help="a file that gets a line of JSON for each ended request")
    add("--admin-api-key", help="bearer token of control paths, instead of --api-key")
    add("--kv-events-config", type=_kv_events, help="JSON as SGLang has it; port 0 lets the system choose")
    add(
        "--speculative-algorithm",
        choices=["EAGLE", "EAGLE3", "NEXTN"],
        help="only for its cache: pages of pairs of tokens",
    )
    add("--enable-pd-role-switch", action="store_true", help="prefill and decode can be switched at /pd_role_switch")
    _add_hicache(parser)


def _add_hicache(parser: argparse.ArgumentParser) -> None:
    """The flags of the host and storage tiers, named as SGLang's. They accept only the policies that are modelled."""
    defaults = HiCache()
    add = parser.add_argument
    add("--enable-hierarchical-cache", action="store_true", help="a host tier below the device")
    add("--hicache-ratio", type=_at_least(float, 1), default=defaults.ratio, help="host capacity per device capacity")
    add("--hicache-size", type=_at_least(float, 0), default=defaults.size_gb, help="GB on the host; 0: by the ratio")
    add("--hicache-write-policy", choices=[WRITE_POLICY], default=WRITE_POLICY)
    add("--hicache-storage-backend", choices=["file"], help="a storage tier below the host")
    add("--hicache-storage-prefetch-policy", choices=[PREFETCH_POLICY], default=PREFETCH_POLICY)
    add("--hicache-storage-backend-extra-config", metavar="JSON", help="prefetch_threshold (tokens), file_storage_path")


def _kv_events(value: str) -> KvEventsConfig | None:
    try:
        return read_config(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(value: str) -> int:
    port = int(value)
    if not 0 <= port <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be between 0 and {MAX_PORT}")
    return port


_port.__name__ = "port"


def _at_least(kind: Callable[[str], float], low: float) -> Callable[[str], float]:
    def read(value: str) -> float:
        number = kind(value)
        if not low <= number < math.inf:  # with `not`, NaN is refused, too
            raise argparse.ArgumentTypeError(f"must be a number of at least {low}")
        return number

    read.__name__ = kind.__name__
    return read
