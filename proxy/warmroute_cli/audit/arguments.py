"""The options of `warmroute audit`."""

import argparse
from pathlib import Path

from warmroute.contract.receipt import TIERS
from warmroute_cli.arguments import count, whole

TRIALS = 20
PROMPT_BYTES = 16_000


def add(audit: argparse.ArgumentParser) -> None:
    """Add them."""
    what = audit.add_subparsers(required=True, metavar="WHAT")
    isolation = what.add_parser("isolation", help="whether one tenant can tell what another has sent")
    option = isolation.add_argument
    option("--base-url", required=True, metavar="URL", help="of the proxy, or of any server of the same API")
    option("--model", required=True, metavar="NAME", help="the model to ask for")
    option("--key-file", required=True, type=Path, metavar="FILE", help="the key of the tenant whose prompts are tried")
    option("--other-key-file", required=True, type=Path, metavar="FILE", help="the key of another tenant")
    option("--group-key-file", type=Path, metavar="FILE", help="the key of a tenant of the first one's share group")
    option("--trials", type=count, default=TRIALS, metavar="N", help="that count, at least 8 (%(default)d)")
    option("--prompt-bytes", type=count, default=PROMPT_BYTES, metavar="N", help="of each prompt (%(default)d)")
    option("--tier", choices=TIERS, default=TIERS[0], help="where prompts lie when they are tried (%(default)s)")
    option("--filler", type=whole, default=0, metavar="N", help="new prompts in between, to empty the tiers above (0)")
    option("--json", action="store_true", help="print the verdicts as JSON")
