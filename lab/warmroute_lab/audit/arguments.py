"""The options of `warmroute audit`."""

import argparse
from pathlib import Path

from warmroute.contract.receipt import TIERS
from warmroute_cli.arguments import count, whole

TRIALS = 20
PROMPT_BYTES = 16_000


def add(audit: argparse.ArgumentParser) -> None:
    what = audit.add_subparsers(required=True, metavar="WHAT")
    isolation = what.add_parser("isolation", help="test whether one tenant can detect another's prompts")
    option = isolation.add_argument
    option("--base-url", required=True, metavar="URL", help="base URL of the proxy, or of any server with the same API")
    option("--model", required=True, metavar="NAME", help="model of the requests")
    option(
        "--key-file",
        required=True,
        type=Path,
        metavar="FILE",
        help="file with the key of the tenant whose prompts are probed",
    )
    option("--other-key-file", required=True, type=Path, metavar="FILE", help="file with the key of another tenant")
    option(
        "--group-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key of a tenant in the first one's share group",
    )
    option("--trials", type=count, default=TRIALS, metavar="N", help="counted trials, at least 8 (%(default)d)")
    option("--prompt-bytes", type=count, default=PROMPT_BYTES, metavar="N", help="size of each prompt (%(default)d)")
    option(
        "--tier", choices=TIERS, default=TIERS[0], help="cache tier of the prompts when they are probed (%(default)s)"
    )
    option(
        "--filler", type=whole, default=0, metavar="N", help="other prompts in between, to evict from upper tiers (0)"
    )
    option("--json", action="store_true", help="print the verdicts as JSON")
