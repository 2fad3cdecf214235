"""What real SGLang servers are copied from: `PYTHON sglang_origin.py FD CHECKOUT`, by the Python that has SGLang.

Imports are two thirds of the CPU time of a start. SGLang's own children are forked from the same state
(`scripts/sglang_cpu/shims.py`): no thread runs yet. A draft changes what is imported, so a server with one is no copy.
"""

# mypy: disable-error-code="import-not-found"
import gc
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn, cast

sys.path[:1] = [str(Path(sys.argv[2]) / "scripts" / "sglang_cpu"), str(Path(__file__).parents[2])]
IMPORTED = ("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler")

from tests.subjects.origin import Asked, serve, take_on  # noqa: E402


def _become(asked: Asked, files: Sequence[int]) -> NoReturn:
    take_on(asked, files)
    tempfile.tempdir = None
    parent, launch, shims = (import_module(name) for name in ("parent", "launch", "shims"))
    os.environ[parent.VARIABLE] = str(os.getppid())
    parent.die_with_parent()
    sys.argv[1:] = cast("list[str]", asked["command"])
    code = 1
    try:
        if "nixl" in sys.argv:
            shims.nixl_memory()
        launch.main()
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Import what servers need, then serve."""
    import_module("launch")  # which puts the shims in place
    for name in IMPORTED:
        import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asks:
        serve(asks, _become)
    os._exit(0)  # what it has imported complains as it is taken down


if __name__ == "__main__":
    main()
