"""Launch the real SGLang server on a host with neither CUDA nor AMX: the arguments are those of `sglang serve`.

SGLang 0.5.23 itself is not changed. What its imports and a few of its paths need from CUDA builds is put in place
before it is imported: `shims.py`, one function for each. The scheduler and the detokenizer are forked, so the same
holds in them.
"""

# mypy: disable-error-code="import-not-found"
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from parent import die_with_parent

die_with_parent()

import shims  # noqa: E402 (slow)

shims.apply(nixl="nixl" in sys.argv, eagle="EAGLE3" in sys.argv)


def main() -> None:
    """Serve until SIGTERM."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    arguments = prepare_server_args(sys.argv[1:])
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
