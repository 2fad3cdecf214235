"""Which engines get no new work although they answer, and since when: because an operator says so, or they themselves.

All of the drain state of a process is in here, and nothing else is: no sockets, no clock. An operator's word holds
until it is taken back, also over a restart of the engine, and of the proxy (`drain_orders.py`); an engine's own holds
until its `/ready` is 200 again. At most one entry for each engine and speaker.
"""

from typing import Final, Literal

By = Literal["operator", "engine"]
SPEAKERS: Final[tuple[By, ...]] = ("operator", "engine")


class Drains:
    """Who drains which engine."""

    def __init__(self) -> None:
        self._since_by_speaker: dict[By, dict[str, float]] = {by: {} for by in SPEAKERS}

    def set(self, engine_id: str, by: By, draining: bool, unix_s: float) -> bool:
        """What one of the two says now. True if the engine begins or ceases to drain by it."""
        since = self._since_by_speaker[by]
        before = self.draining(engine_id)
        if not draining:
            since.pop(engine_id, None)
        elif engine_id not in since:
            since[engine_id] = unix_s
        return before != self.draining(engine_id)

    def draining(self, engine_id: str) -> bool:
        """Whether it gets no new work."""
        return any(engine_id in since for since in self._since_by_speaker.values())

    def of(self, engine_id: str) -> dict[By, float]:
        """Who drains it, and since which unix time."""
        return {by: since[engine_id] for by, since in self._since_by_speaker.items() if engine_id in since}

    def by_operator(self) -> dict[str, float]:
        """Those that an operator drains, and since which unix time."""
        return dict(self._since_by_speaker["operator"])

    def engines(self) -> frozenset[str]:
        """All that drain."""
        return frozenset().union(*self._since_by_speaker.values())
