"""Which engines drain: they get no new work although they answer, by an operator's order, by their own report, or
because the config no longer has them.

This is all drain state of a process, without sockets or clock. An operator's order holds until it is taken back, also
over restarts of the engine and of the proxy (`drain_orders`). An engine's own report holds until its `/ready` answers
200 again. There is at most one entry for each engine and source.
"""

from typing import Final, Literal

DrainedBy = Literal["operator", "engine", "config"]
SOURCES: Final[tuple[DrainedBy, ...]] = ("operator", "engine", "config")


class Drains:
    """Which engine drains, by whom, and since when."""

    def __init__(self) -> None:
        self._since_by_source: dict[DrainedBy, dict[str, float]] = {by: {} for by in SOURCES}

    def set(self, engine_id: str, by: DrainedBy, draining: bool, unix_s: float) -> bool:
        """Set what one source says. True if the engine begins or ceases to drain by it."""
        since = self._since_by_source[by]
        before = self.draining(engine_id)
        if not draining:
            since.pop(engine_id, None)
        elif engine_id not in since:
            since[engine_id] = unix_s
        return before != self.draining(engine_id)

    def draining(self, engine_id: str) -> bool:
        return any(engine_id in since for since in self._since_by_source.values())

    def of(self, engine_id: str) -> dict[DrainedBy, float]:
        """By whom an engine drains, and since which unix time."""
        return {by: since[engine_id] for by, since in self._since_by_source.items() if engine_id in since}

    def forget(self, engine_id: str) -> None:
        for since in self._since_by_source.values():
            since.pop(engine_id, None)

    def by_operator(self) -> dict[str, float]:
        """The engines that drain by an operator's order, and since which unix time."""
        return dict(self._since_by_source["operator"])

    def engines(self) -> frozenset[str]:
        return frozenset().union(*self._since_by_source.values())
