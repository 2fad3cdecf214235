"""`python -m warmroute_backend.engine`: run one embedded engine. Prints one JSON line on stdout when it listens."""

import argparse
import asyncio
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from warmroute_lab.engine.events.kv_publisher import MAX_PORT, KvEventsConfig, read_config
from warmroute_lab.engine.model.hicache import BYTES_PER_TOKEN, HiCache, directory_of, read_extra_config
from warmroute_lab.engine.server import START_LOG, StartError, serve
from warmroute_lab.engine.settings import Settings

HEADER_OVERRIDES = "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES"
"""The variable that has engines of this protocol obey `x-override-*` headers."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one engine until SIGTERM or SIGINT; exits with 2 if it cannot start, with the reason on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger(START_LOG).setLevel(logging.INFO)
    parser = _parser()
    args = parser.parse_args(argv)
    if args.kv_tokens < args.page_size:
        parser.error(f"--kv-tokens {args.kv_tokens}: the pool does not hold a page of {args.page_size} tokens")
    if args.enable_pd_role_switch and (args.speculative_algorithm or args.role == "aggregated"):
        parser.error("--enable-pd-role-switch: only for --role prefill or decode, and not with speculation")
    settings = Settings(
        role=args.role,
        engine_id=args.engine_id,
        models=tuple(args.model or ["model"]),
        page_size=args.page_size,
        kv_tokens=args.kv_tokens,
        context_length=args.context_length,
        dp_size=args.dp_size,
        speed=args.speed,
        seed=args.seed,
        max_running=args.max_running_requests,
        max_queued=args.max_queued_requests,
        bootstrap_timeout_s=args.bootstrap_timeout_s,
        api_key=args.api_key,
        admin_api_key=args.admin_api_key,
        kv_events=args.kv_events_config,
        hicache=_hicache(args),
        kv_bytes_per_token=args.kv_bytes_per_token,
        kv_cache_dtype=args.kv_cache_dtype,
        speculative_algorithm=args.speculative_algorithm,
        obey_prompts=args.obey_prompts,
        role_switch=args.enable_pd_role_switch,
        request_log=args.request_log,
        header_overrides=os.environ.get(HEADER_OVERRIDES, "").lower() in {"1", "true", "yes", "y"},
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(settings, args.host, args.port, args.bootstrap_port))
        except StartError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            raise SystemExit(2) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warmroute_backend.engine",
        description="An embedded engine: SGLang's HTTP surface over a model of its scheduler. No model is computed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
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
    return parser


def _add_hicache(parser: argparse.ArgumentParser) -> None:
    """The flags of the host and storage tiers, named as SGLang's. Of policies, only those modelled are taken."""
    defaults = HiCache()
    add = parser.add_argument
    add("--enable-hierarchical-cache", action="store_true", help="a host tier below the device")
    add("--hicache-ratio", type=_at_least(float, 1), default=defaults.ratio, help="host capacity per device capacity")
    add("--hicache-size", type=_at_least(float, 0), default=defaults.size_gb, help="GB on the host; 0: by the ratio")
    add("--hicache-write-policy", choices=["write_through"], default=defaults.write_policy)
    add("--hicache-storage-backend", choices=["file"], help="a storage tier below the host")
    add("--hicache-storage-prefetch-policy", choices=["wait_complete"], default=defaults.prefetch_policy)
    add("--hicache-storage-backend-extra-config", help="JSON: prefetch_threshold (tokens), file_storage_path")


def _hicache(args: argparse.Namespace) -> HiCache | None:
    if not args.enable_hierarchical_cache:
        return None
    if args.role == "decode":
        raise SystemExit("--enable-hierarchical-cache: a decode engine keeps no cache")
    if args.hicache_storage_backend is not None:
        try:
            directory_of(read_extra_config(args.hicache_storage_backend_extra_config))
        except ValueError as error:
            raise SystemExit(f"--hicache-storage-backend: {error}") from None
    return HiCache(
        ratio=args.hicache_ratio,
        size_gb=args.hicache_size,
        write_policy=args.hicache_write_policy,
        prefetch_policy=args.hicache_storage_prefetch_policy,
        bytes_per_token=args.kv_bytes_per_token,
        storage_backend=args.hicache_storage_backend,
        extra_config=args.hicache_storage_backend_extra_config,
    )


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
        if not low <= number < math.inf:  # nor NaN
            raise argparse.ArgumentTypeError(f"must be a number of at least {low}")
        return number

    read.__name__ = kind.__name__
    return read


if __name__ == "__main__":
    main()
