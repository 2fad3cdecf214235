"""Finds which engine of a prefill-decode pair is at fault if KV is not handed over.

The decode engine reports the failure, whichever engine is broken, and both engines still answer probes. So one failure
proves nothing. But if prefill A fails with decode D, and D gets KV from prefill B, then A is at fault; the reverse
holds for decode engines. If neither engine has worked with another partner, the fault stays open: the next attempt uses
another prefill engine with the same decode engine.
"""

from collections import OrderedDict
from typing import Final

MAX_PAIRS: Final = 4096
"""The maximum number of engine pairs whose last hand-over is remembered; the oldest is forgotten first."""


class HandOvers:
    def __init__(self) -> None:
        self._failed: OrderedDict[tuple[str, str], bool] = OrderedDict()  # by (prefill, decode)

    def served(self, prefill: str, decode: str) -> None:
        pair = prefill, decode
        if self._failed.get(pair) is not False:
            self._note(pair, failed=False)

    def failed(self, prefill: str, decode: str) -> str | None:
        """KV was not handed over. Returns the engine at fault; None if it is not known yet."""
        self._note((prefill, decode), failed=True)
        prefill_works = any(not failed for (other, _), failed in self._failed.items() if other == prefill)
        decode_works = any(not failed for (_, other), failed in self._failed.items() if other == decode)
        if prefill_works is decode_works:
            return None
        return decode if prefill_works else prefill

    def _note(self, pair: tuple[str, str], *, failed: bool) -> None:
        self._failed[pair] = failed
        self._failed.move_to_end(pair)
        if len(self._failed) > MAX_PAIRS:
            self._failed.popitem(last=False)
