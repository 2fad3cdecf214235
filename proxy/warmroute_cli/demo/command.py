"""Runs the demo that the options choose."""

from argparse import Namespace


def run(arguments: Namespace) -> int:
    """0: every check holds, 1: one does not. Raises: FleetError."""
    if arguments.tight:
        from warmroute_cli.demo import tight

        return tight.run(arguments)
    if arguments.engine == "sglang":
        from warmroute_cli.demo import sglang

        return sglang.run(arguments)
    from warmroute_cli.demo import embedded

    return embedded.run(arguments)
