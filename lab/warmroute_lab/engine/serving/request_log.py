"""The log of ended requests on disk: the entries of `/engine/finished`, also of an engine that was killed.

One entry is one line of JSON, written by one `write` before the end of the answer is handed to the system: kill -9
leaves whole lines, and no client saw an answer end that is not in the log. A restarted engine adds to the same file.
"""

import os
from pathlib import Path
from typing import Any

from warmroute_lab.engine.request.api import encode


class RequestLog:
    """The writing end, open as long as the engine lives."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError."""
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, entry: dict[str, Any]) -> None:
        os.write(self._fd, encode(entry) + b"\n")
