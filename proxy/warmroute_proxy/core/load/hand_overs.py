"""Finds which engine of a prefill-decode pair is at fault if KV is not handed over.

The decode engine reports the failure, whichever engine is broken, and both engines still answer probes. So one failure
proves nothing. But if prefill A fails with decode D, and D has got KV from another prefill since A began to fail, then
A is at fault; the reverse holds for decode engines. If neither holds, the fault stays open: the next attempt uses
another prefill engine with the same decode engine.

An old success proves nothing either: the engine may have broken since, and the partner of then may have left. A success
counts from when its request was sent, because KV is handed over long before the answer ends.
"""

import math
from collections import OrderedDict
from typing import Final

MAX_ENGINES: Final = 4096
"""The maximum number of engines whose last hand-overs are remembered; the oldest are forgotten first."""


class _Engine:
    """`worked_s`: when the newest request whose KV was handed over was sent. `fails_since_s`: when the first hand-over
    failed after that. -inf: never.
    """

    __slots__ = ("fails_since_s", "worked_s")

    def __init__(self) -> None:
        self.worked_s = self.fails_since_s = -math.inf


class HandOvers:
    def __init__(self) -> None:
        self._engines: OrderedDict[str, _Engine] = OrderedDict()

    def served(self, prefill: str, decode: str, sent_s: float) -> None:
        """A request was served. `sent_s`: when it was sent to the two engines."""
        for engine in (self._of(prefill), self._of(decode)):
            engine.worked_s = max(engine.worked_s, sent_s)

    def failed(self, prefill: str, decode: str, now_s: float) -> str | None:
        """KV was not handed over. Returns the engine at fault; None if it is not known yet."""
        pair = self._of(prefill), self._of(decode)
        for engine in pair:
            if engine.worked_s >= engine.fails_since_s:
                engine.fails_since_s = now_s
        if pair[1].worked_s > pair[0].fails_since_s:
            return prefill
        return decode if pair[0].worked_s > pair[1].fails_since_s else None

    def _of(self, engine: str) -> _Engine:
        found = self._engines.get(engine)
        if found is None:
            found = self._engines[engine] = _Engine()
            if len(self._engines) > MAX_ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(engine)
        return found
