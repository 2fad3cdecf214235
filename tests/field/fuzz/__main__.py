"""Fuzzing by hand: `python -m tests.field.fuzz TARGET [--minutes 10]`.

A target is http1, body, body_template, dialects, sse, passthrough or websocket; without one, all.

Runs atheris, in a virtual environment of its own that the first run makes, over the targets of this folder: coverage of
the proxy's code leads it. What it finds new is added to `corpus/`, which the test suite runs through the same targets.
A finding ends it with the input's bytes and a file that holds them.
"""

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENT = ROOT / ".venv-fuzz"
REQUIREMENTS = ("-e", f"{ROOT}[proxy]", "atheris>=3,<4", "h11>=0.16,<1")
TARGETS = ("http1", "body", "body_template", "dialects", "sse", "passthrough", "websocket")
MAX_BYTES = 4096


def main() -> int:
    """Parse the command line; run each target in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.field.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS, help="one of them; without it, each in turn")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each target (default: 10)")
    parser.add_argument("--in-environment", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_environment:
        _fuzz(options.target, options.minutes)
        return 0
    python = _environment()
    for target in [options.target] if options.target else TARGETS:
        command = [python, "-m", "tests.field.fuzz", target, "--minutes", str(options.minutes), "--in-environment"]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    return 0


def _environment() -> str:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
    return str(python)


def _fuzz(target: str, minutes: float) -> None:
    """Does not return: libFuzzer ends the process."""
    atheris = importlib.import_module("atheris")  # no type hints, and only in that environment
    with atheris.instrument_imports(
        include=["warmroute_proxy.server", "warmroute_proxy.dialects", "httptools", "websockets"]
    ):
        check: Callable[[bytes], None] = importlib.import_module(f"tests.field.fuzz.{target}").check
    corpus = HERE / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    arguments = [f"-max_total_time={int(minutes * 60)}", f"-max_len={MAX_BYTES}", f"-dict={HERE / 'words' / target}"]
    atheris.Setup([sys.argv[0], *arguments, f"-artifact_prefix={os.curdir}/", str(corpus)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
