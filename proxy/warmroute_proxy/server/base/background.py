"""Tasks that nobody waits for: the event loop itself would drop one that nothing else refers to."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """Those of one object. What starts them bounds their number."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run it in the loop of the caller."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task
