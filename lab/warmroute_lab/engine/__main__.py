"""Runs one embedded engine (`python -m warmroute_lab.engine`), which prints a JSON line on stdout when it listens."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

import uvloop

from warmroute_lab.engine.arguments import add
from warmroute_lab.engine.model.hicache import HiCache, directory_of, read_extra_config
from warmroute_lab.engine.server import START_LOG, StartError, serve
from warmroute_lab.engine.settings import Settings

HEADER_OVERRIDES = "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES"
"""If this environment variable is true, the engine obeys `x-override-*` headers."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one engine until SIGTERM or SIGINT. If it cannot start, print the reason on stderr and exit with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m warmroute_backend.engine",
        description="An embedded engine: SGLang's HTTP surface over a model of its scheduler. No model is computed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add(parser)
    run(parser.parse_args(argv), parser)


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Run one engine with these options. If they contradict each other, exit with 2."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger(START_LOG).setLevel(logging.INFO)
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
        storage_backend=args.hicache_storage_backend,
        extra_config=args.hicache_storage_backend_extra_config,
    )


if __name__ == "__main__":
    main()
