"""Runs the demo that the options choose."""

from argparse import Namespace
from pathlib import Path

from warmroute_cli.processes import FleetError


def run(arguments: Namespace) -> int:
    """0: every check holds, 1: one does not. Raises: FleetError."""
    if arguments.json:
        _check_writable(arguments.json)
    if arguments.tight:
        from warmroute_lab.demo import tight

        return tight.run(arguments)
    if arguments.engine == "sglang":
        from warmroute_lab.demo import sglang

        return sglang.run(arguments)
    from warmroute_lab.demo import embedded

    return embedded.run(arguments)


def _check_writable(path: Path) -> None:
    """Minutes before the figures are written. Raises: FleetError."""
    is_new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror}") from None
    if is_new:
        path.unlink()
