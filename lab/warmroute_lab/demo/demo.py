"""Runs the demo that the options choose."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from warmroute_cli.arguments import above_zero, count
from warmroute_cli.processes import FleetError

DEMO_SPEED = 25.0
HARNESSES = ("aider", "claude-code", "codex", "gemini", "mini-swe-agent", "opencode")


def add(demo: ArgumentParser) -> None:
    names = ", ".join(HARNESSES)
    demo.add_argument(
        "--engine",
        choices=("embedded", "sglang"),
        default="embedded",
        help="sglang: the real SGLang on this CPU, also with --tight; see scripts/sglang (%(default)s)",
    )
    demo.add_argument(
        "--tight", action="store_true", help="a small fleet whose sessions need more KV than it has; under a minute"
    )
    demo.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    demo.add_argument("--speed", type=above_zero, default=DEMO_SPEED, help="virtual seconds per second (%(default)g)")
    demo.add_argument("--seed", type=int, default=1, help="seed of engines and regions (%(default)d)")
    demo.add_argument("--sessions", type=count, default=3, metavar="N", help="concurrent sessions (%(default)d)")
    demo.add_argument(
        "--harness", nargs="+", choices=HARNESSES, default=(), metavar="NAME", help=f"only sessions of these: {names}"
    )


def run(arguments: Namespace) -> int:
    """Returns 0 if every check holds, else 1. Raises: FleetError."""
    chosen, ignored = "--engine sglang", ["speed"] if arguments.engine == "sglang" else []
    if arguments.tight:
        chosen, ignored = "--tight", ["speed", "sessions", "harness"]
    for name in ignored:
        if getattr(arguments, name) != arguments.parsed_by.get_default(name):
            arguments.parsed_by.error(f"--{name} has no effect with {chosen}")
    if arguments.json:
        _check_writable(arguments.json)
    if arguments.tight:
        from warmroute_lab.demo import tight

        return tight.run(arguments)
    from warmroute_lab.demo import played

    return played.run(arguments)


def _check_writable(path: Path) -> None:
    """Check before the demo starts that it can write its figures minutes later. Raises: FleetError."""
    is_new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror}") from None
    if is_new:
        path.unlink()
