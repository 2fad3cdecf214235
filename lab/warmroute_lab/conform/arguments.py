"""The options of `warmroute conform`."""

import argparse
from pathlib import Path
from typing import Final

from warmroute_cli.arguments import above_zero, count

APIS: Final = ("openai", "anthropic", "gemini", "responses")


def add(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("url", metavar="URL", help="address of the endpoint, with or without /v1")
    option("--api", choices=APIS, nargs="+", default=["openai"], metavar="API", help=f"of {', '.join(APIS)} (openai)")
    option("--model", metavar="NAME", help="the model to ask (default: the first of /v1/models)")
    option("--key-file", type=Path, metavar="FILE", help="file with the API key (default: none)")
    option("--other-key-file", type=Path, metavar="FILE", help="key of another tenant, to try isolation")
    option(
        "--prompt-bytes", type=count, default=6_000, metavar="N",
        help="size of the prompts; some servers cache from 1,024 tokens on (%(default)d)",
    )  # fmt: skip
    option("--turns", type=count, default=3, metavar="N", help="turns that must find their prompt again (%(default)d)")
    option("--price", metavar="INPUT:CACHED:OUTPUT", help="USD per million tokens, to state the cost of the requests")
    option("--most-usd", type=above_zero, metavar="USD", help="send nothing if it may cost more; needs --price")
    option("--timeout-s", type=above_zero, default=120.0, metavar="S", help="for one whole answer (%(default)g)")
    option("--dry-run", action="store_true", help="print the requests and their cost, and send none")
    option("--json", action="store_true", help="print JSON")
