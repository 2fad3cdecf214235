"""`python -m tests.subjects.patient ARGUMENTS OF WARMROUTE`: the command, with deadlines that no machine reaches.

The proxy that `launch` starts is of this kind, too.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.subjects import patience
from warmroute_backend.launch.program import Program
from warmroute_cli.launch import start
from warmroute_cli.main import main
from warmroute_proxy.server.base.config import Config

MODULE: Final = "tests.subjects.patient"
_ROOT: Final = Path(__file__).parents[2]
_proxy: Final = start._proxy


def environment() -> Mapping[str, str]:
    """Of a process that runs this module in any folder."""
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _patient(path: Path, config: Config) -> Program:
    program = _proxy(path, config)
    python, _, _, *arguments = program.command
    return replace(program, command=(python, "-m", MODULE, *arguments))


if __name__ == "__main__":
    patience.wait()
    start._proxy = _patient
    sys.exit(main())
