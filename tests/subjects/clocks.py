"""The wall clock of a copy (`tests/subjects/copies.py`) that is ahead of that of others, or behind it.

Namespaces of time move no wall clock, so the process reads one that is moved: `time.time`, which all of the product
reads through its module. Steady clocks stay as they are.
"""

import os
import time
from typing import Final

SETTING: Final = "WARMROUTE_TEST_CLOCK_AHEAD_S"
"""An environment variable: by how many seconds, below 0 for behind."""


def set_ahead() -> None:
    """Move the clock of this process as it was told to."""
    ahead_s = float(os.environ.get(SETTING, "0"))
    if ahead_s:
        true_time = time.time
        time.time = lambda: true_time() + ahead_s
