"""`warmroute embedded`: runs one embedded (simulated) engine, as `python -m warmroute_backend.engine` does."""

import argparse


def add(embedded: argparse.ArgumentParser) -> None:
    """Add the options. Without the packages of the extra `proxy`, which the engine needs, any words are accepted."""
    try:
        from warmroute_lab.engine import arguments
    except ModuleNotFoundError:
        embedded.add_argument("options", nargs=argparse.REMAINDER)
    else:
        arguments.add(embedded)
    embedded.set_defaults(parser=embedded)


def run(args: argparse.Namespace) -> int:
    from warmroute_lab.engine.__main__ import run as run_engine

    run_engine(args, args.parser)
    return 0
