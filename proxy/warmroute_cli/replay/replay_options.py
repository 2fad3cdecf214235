"""The options of `warmroute replay`, in a separate module so that `warmroute --help` needs no numpy."""

import argparse
from pathlib import Path
from typing import Final

from warmroute_cli.arguments import above_zero, count, integer, number, tokens, wants, whole

MAX_WORKERS: Final = 1024
SCENARIOS: Final = ("regions", "pd")
MADE_UP: Final = (
    "toolagent", "bursty", "inference-day", "short", "waves",
    *(f"fork-{branches}-{head}{suffix}" for branches in (8, 43, 128) for head in ("10k", "40k", "100k")
      for suffix in ("", "-cold")),
)  # fmt: skip
_CHANGES: Final = ("add", "remove", "restart")
_count: Final = integer(f"a whole number from 1 to {MAX_WORKERS}", 1, MAX_WORKERS)
_share: Final = number("a number from 0 to 1", lambda value: 0 <= value <= 1)


def add(parser: argparse.ArgumentParser) -> None:
    _add_trace(parser)
    _add_fleet(parser.add_argument_group("the fleet"))
    _add_proxies(parser.add_argument_group("the proxies (policy warmroute)"))


def fleet_options(arguments: argparse.Namespace) -> list[str]:
    """The options on fleet and proxies that the user gave, as they are written on the command line."""
    parser = argparse.ArgumentParser()
    _add_fleet(parser.add_argument_group())
    _add_proxies(parser.add_argument_group())
    given = [name for name, default in vars(parser.parse_args([])).items() if getattr(arguments, name) != default]
    return [f"--{name.replace('_', '-')}" for name in given]


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces", nargs="*", type=Path, metavar="TRACE", help="trace files, replayed one after the other"
    )
    parser.add_argument("--scenario", choices=SCENARIOS, help="run a predefined comparison instead of a trace")
    parser.add_argument("--made-up", choices=MADE_UP, metavar="NAME", help="replay a generated trace")
    parser.add_argument(
        "--seed",
        type=whole,
        default=1,
        metavar="N",
        help="seed of a generated trace, or of arrivals that a file does not state (1)",
    )
    parser.add_argument("--recorded", action="store_true", help="replay the packaged recordings of agent sessions")
    parser.add_argument("--verify", action="store_true", help="repeat each decision of a proxy's record, and compare")
    words = "policies to compare, or all (warmroute+working-set)"
    parser.add_argument("--policy", nargs="+", metavar="NAME", help=words)
    parser.add_argument("--policies", action="store_true", help="list all policies, and exit")
    parser.add_argument("--speed-up", nargs="+", type=above_zero, metavar="X", help="divide arrival times by X (1)")
    parser.add_argument("--sweep", action="store_true", help="use all cores; all policies at 1x, 2x, 4x unless named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots to FILE")


def _add_fleet(fleet: argparse._ArgumentGroup) -> None:
    fleet.add_argument(
        "--workers", type=workers, default=(8, 0), metavar="N|P:D", help="workers per region, or prefill:decode (8)"
    )
    fleet.add_argument(
        "--kv-tokens", type=kv_tokens, default=(3_000_000, 0, 0), metavar="N[:HOST[:STORE]]",
        help="KV tokens of each worker's device and host, and of a region's store, like 3M:10M (3M)",
    )  # fmt: skip
    fleet.add_argument(
        "--max-running", type=count, default=512, metavar="N", help="requests that a worker runs at once (512)"
    )
    fleet.add_argument(
        "--fleet", type=Path, metavar="FILE", help="TOML file of different workers, instead of --workers"
    )
    fleet.add_argument("--regions", type=_count, default=1, metavar="N", help="number of regions (1)")
    fleet.add_argument(
        "--rtt-ms", type=_not_negative, default=100.0, metavar="MS", help="round trip between regions (100)"
    )
    fleet.add_argument(
        "--each-turn-anywhere",
        action="store_true",
        help="each turn arrives at a random region (default: one region per session)",
    )
    fleet.add_argument(
        "--change", nargs="+", type=_change, default=(), metavar="S:KIND:WORKER",
        help=f"{', '.join(_CHANGES)}: change a worker at a second of virtual time, like 600:restart:3",
    )  # fmt: skip


def _add_proxies(proxies: argparse._ArgumentGroup) -> None:
    proxies.add_argument("--routers", type=_count, default=1, metavar="N", help="proxies of each region (1)")
    proxies.add_argument(
        "--share-lag-ms", type=_not_negative, metavar="MS",
        help="delay of messages between proxies of a region (default: none share)",
    )  # fmt: skip
    proxies.add_argument(
        "--share-loss", type=_share, default=0.0, metavar="X",
        help="share of those messages that are lost, and repeated a second later (0)",
    )  # fmt: skip
    proxies.add_argument(
        "--event-lag-ms",
        type=_not_negative,
        default=100.0,
        metavar="MS",
        help="delay of KV events, for warmroute+events (100)",
    )
    proxies.add_argument(
        "--working-set-wait-s", type=_not_negative, default=120.0, metavar="S",
        help="the longest wait for KV memory, for warmroute+working-set (120)",
    )  # fmt: skip
    proxies.add_argument(
        "--tenant-shares", nargs="+", type=above_zero, default=(), metavar="X",
        help="shares of the sessions of several tenants, like 4 1, for working sets (one tenant)",
    )  # fmt: skip
    proxies.add_argument(
        "--hinting-share", type=_share, default=0.0, metavar="X",
        help="share of turns that announce the time of the next one, for working sets (0)",
    )  # fmt: skip
    proxies.add_argument(
        "--ending-share", type=_share, default=0.0, metavar="X",
        help="share of sessions that announce their end, for working sets (0)",
    )  # fmt: skip
    proxies.add_argument(
        "--naming-share", type=_share, default=1.0, metavar="X", help="share of sessions with a session key (1)"
    )


@wants("a number from 0 on")
def _not_negative(text: str) -> float:
    return 0.0 if float(text) == 0 else above_zero(text)


@wants("a number of workers, or two like 4:4")
def workers(text: str) -> tuple[int, int]:
    prefills, colon, decodes = text.partition(":")
    return _count(prefills), _count(decodes) if colon else 0


@wants("DEVICE[:HOST[:STORE]] in tokens, like 3M:10M")
def kv_tokens(text: str) -> tuple[int, int, int]:
    """Read how many KV tokens fit a worker's GPU memory, its host memory, and a region's store."""
    tiers = [tokens(tier) for tier in text.split(":")]
    if len(tiers) > 3:
        raise ValueError(text)
    device, host, store = (*tiers, 0, 0)[:3]
    return device, host, store


@wants(f"SECOND:KIND:WORKER, like 600:restart:3, with a kind of {', '.join(_CHANGES)}")
def _change(text: str) -> tuple[float, str, int]:
    at_s, kind, worker = text.split(":")
    if kind not in _CHANGES:
        raise ValueError(text)
    return _not_negative(at_s), kind, int(worker)
