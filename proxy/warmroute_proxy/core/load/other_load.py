"""The load that other proxies have put on a worker, by the engine's report."""

import math
from typing import Final

LOADS_FRESH_S: Final = 5.0


class OtherLoad:
    """What the engine reported beyond this proxy's own count. It counts until `until_s`."""

    __slots__ = ("prefill_tokens", "resident_tokens", "until_s")

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.resident_tokens = 0
        self.until_s = -math.inf

    def observe(self, prefill_tokens: int, resident_tokens: int, now_s: float) -> bool:
        """Store the tokens that were reported beyond our own, negative where fewer. True if that changed anything."""
        if prefill_tokens > 0 or resident_tokens > 0:
            self.prefill_tokens = max(prefill_tokens, 0)
            self.resident_tokens = max(resident_tokens, 0)
            self.until_s = now_s + LOADS_FRESH_S
            return True
        if self.prefill_tokens or self.resident_tokens:
            self.forget()
            return True
        return False

    def forget(self) -> None:
        """Nothing is known of other proxies."""
        self.prefill_tokens = 0
        self.resident_tokens = 0
        self.until_s = -math.inf
