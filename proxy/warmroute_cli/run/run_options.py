"""The command line of `warmroute run`."""

import argparse
from collections.abc import Sequence

from warmroute_cli.run.programs import PROGRAMS

MAX_MODEL_CHARS = 128


def add(run: argparse.ArgumentParser) -> None:
    """Add the options. Arguments after `--` are for the program: `split` removes them before parsing."""
    run.usage = "warmroute run [options] NAME [-- ARGUMENT...]\n       warmroute run [options] -- PROGRAM [ARGUMENT...]"
    names = ", ".join(PROGRAMS)
    run.add_argument(
        "program",
        choices=tuple(PROGRAMS),
        nargs="?",
        metavar="NAME",
        help=f"{names}; without a NAME: the program after --",
    )
    run.add_argument(
        "--base-url", metavar="URL", help="the proxy, such as http://host:8080/v1 (default: the local fleet)"
    )
    run.add_argument("--key", metavar="KEY", help="its API key (default with --base-url: OPENAI_API_KEY)")
    run.add_argument(
        "--model", type=_model, metavar="NAME", help="the model (default: the program's usual one, if served)"
    )
    run.add_argument("--print", action="store_true", help="print the settings as shell lines, and start nothing")
    run.add_argument("--show-key", action="store_true", help="with --print: include the API key")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line at `--`: the words for `warmroute`, and those for the program that `run` starts."""
    if "run" not in words[:1] or "--" not in words:
        return list(words), []
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def _model(text: str) -> str:
    if not text.isprintable() or not text or len(text) > MAX_MODEL_CHARS or set(text) & set("\"'\\$ "):
        raise argparse.ArgumentTypeError(f"{text[:MAX_MODEL_CHARS]!r} is not the name of a model")
    return text
