"""A log line that outsiders can cause without limit: logged at most once a minute, with a count of those left out."""

import logging
from collections.abc import Callable
from typing import Final

AGAIN_S: Final = 60.0


class RepeatedLine:
    def __init__(self, log: logging.Logger, level: int, clock: Callable[[], float]) -> None:
        self._log = log
        self._level = level
        self._clock = clock
        self._logged_s = -AGAIN_S
        self._left_out = 0

    def write(self, text: str, *args: object) -> None:
        now_s = self._clock()
        if now_s < self._logged_s + AGAIN_S:
            self._left_out += 1
            return
        left_out, self._left_out, self._logged_s = self._left_out, 0, now_s
        more = f" ({left_out} more since the last such line)" if left_out else ""
        self._log.log(self._level, f"{text}%s", *args, more)
