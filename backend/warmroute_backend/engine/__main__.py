"""`python -m warmroute_backend.engine`: run one embedded engine. Prints one JSON line on stdout when it listens."""

import argparse
import asyncio
import logging
from collections.abc import Callable, Sequence

import uvloop

from warmroute_backend.engine.engine import Settings
from warmroute_backend.engine.server import serve


def main(argv: Sequence[str] | None = None) -> None:
    """Run one engine until it is told to stop."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    args = _parser().parse_args(argv)
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
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, args.host, args.port, args.bootstrap_port))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warmroute_backend.engine",
        description="An embedded engine: SGLang's HTTP surface over a model of its scheduler. It computes nothing.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    defaults = Settings()
    add = parser.add_argument
    add("--role", choices=["aggregated", "prefill", "decode"], default=defaults.role)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 lets the system choose")
    add("--bootstrap-port", type=int, default=0, help="prefill only; 0 lets the system choose")
    add("--model", action="append", help="a served model name; may be repeated")
    add("--page-size", type=_at_least(int, 1), default=defaults.page_size, help="tokens per KV page")
    add("--kv-tokens", type=_at_least(int, 1), default=defaults.kv_tokens, help="KV capacity of a rank")
    add("--context-length", type=_at_least(int, 2), default=defaults.context_length)
    add("--dp-size", type=_at_least(int, 1), default=defaults.dp_size, help="data-parallel ranks")
    add("--speed", type=_at_least(float, 0.001), default=defaults.speed, help="virtual seconds per wall second")
    add("--engine-id", default=defaults.engine_id)
    add("--seed", type=int, default=defaults.seed, help="of the generated text")
    add("--max-running-requests", type=_at_least(int, 1), default=defaults.max_running, help="over all ranks")
    add("--max-queued-requests", type=_at_least(int, 0), default=defaults.max_queued, help="per rank; not in PD")
    add("--bootstrap-timeout-s", type=_at_least(float, 0.01), default=defaults.bootstrap_timeout_s)
    return parser


def _at_least(kind: Callable[[str], float], low: float) -> Callable[[str], float]:
    def read(value: str) -> float:
        number = kind(value)
        if number < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}")
        return number

    read.__name__ = kind.__name__
    return read


if __name__ == "__main__":
    main()
