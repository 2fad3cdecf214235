"""The options of `warmroute ladder`."""

import argparse
from pathlib import Path
from typing import Final

from warmroute_cli.arguments import count

BY: Final = ("session", "tenant", "model", "harness", "day", "kind")
FORMATS: Final = ("sglang", "vllm", "litellm", "otel", "trace")


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "paths", nargs="*", type=Path, metavar="PATH",
        help="folders with a ledger, logs of other programs, or a proxy's record (default: the fleet of `up`)",
    )  # fmt: skip
    option("--format", choices=FORMATS, help="format of the files (default: by their first lines)")
    option("--config", type=Path, metavar="FILE", help="the ledger of the proxy with this TOML file")
    option("--by", choices=BY, help="also a line for each group")
    option("--since", metavar="TIME", help="only turns since TIME: 30m, 7d, today, monday, 2026-11-23")
    option(
        "--price", action="append", default=[], metavar="[MODEL=]INPUT:CACHED:OUTPUT",
        help="USD per million tokens, for logs without prices",
    )  # fmt: skip
    option("--kv-tokens", type=_tokens, metavar="N", help="for logs with prompts: tokens that the fleet's caches hold")
    option(
        "--what-if", action="append", default=[], metavar="NAME=VALUE,...",
        help="of a record or trace: replay it with another policy, workers, kv-tokens, max-running or price",
    )  # fmt: skip
    option(
        "--as-it-is", metavar="NAME=VALUE,...", help="assumptions of the first replay of a record or trace, likewise"
    )
    option(
        "--limit", type=count, default=20, metavar="N", help="groups that are shown, the most expensive (%(default)d)"
    )
    option("--json", action="store_true", help="print JSON")


def _tokens(text: str) -> int:
    factor = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}.get(text[-1:], 1)
    try:
        value = int(float(text[:-1] if factor > 1 else text) * factor)
    except (ValueError, OverflowError):
        value = 0
    if not 1 <= value < 10**15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens, like 600k or 3M")
    return value
