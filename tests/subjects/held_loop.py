"""The `warmroute` command with a loop that writes down how long it was held.

    python -m tests.subjects.held_loop FILE ARGUMENTS OF WARMROUTE

A timer fires each millisecond. The processor time of the loop's thread between two of its calls is that of the longest
iteration between them, and a millisecond at most. What the machine gives to others is no part of it.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.subjects import patience
from warmroute_cli.main import main
from warmroute_proxy.server import main as proxy_main

TICK_S: Final = 0.001
WRITTEN_S: Final = 0.002


def _watched(path: Path) -> Any:
    run = proxy_main._run

    async def watched(*arguments: Any, **named: Any) -> None:
        loop = asyncio.get_running_loop()
        at_s = time.thread_time()

        def tick() -> None:
            nonlocal at_s
            now_s = time.thread_time()
            if now_s - at_s > WRITTEN_S:
                with path.open("a") as report:
                    report.write(f"{now_s - at_s:.4f}\n")
                now_s = time.thread_time()
            at_s = now_s
            loop.call_later(TICK_S, tick)

        tick()
        await run(*arguments, **named)

    return watched


def longest_s(path: Path) -> float:
    """How long the loop was held at most since the last call."""
    lines = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return max(map(float, lines), default=0.0)


if __name__ == "__main__":
    patience.wait()
    proxy_main._run = _watched(Path(sys.argv[1]))
    del sys.argv[1]
    sys.exit(main())
