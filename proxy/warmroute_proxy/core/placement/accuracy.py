"""Sums the differences between predicted and reported cached tokens, for the status page and metrics."""


class Accuracy:
    __slots__ = ("_attempts", "_overpredicted_tokens", "_predicted_tokens", "_underpredicted_tokens")

    def __init__(self) -> None:
        self._attempts = 0
        self._predicted_tokens = 0
        self._overpredicted_tokens = 0
        self._underpredicted_tokens = 0

    def observe(self, predicted: int, cached: int | None) -> int | None:
        """Count one attempt. Returns predicted minus reported cached tokens; None if the engine reported no count."""
        self._attempts += 1
        if cached is None:
            return None
        error = predicted - cached
        self._predicted_tokens += predicted
        if error > 0:
            self._overpredicted_tokens += error
        else:
            self._underpredicted_tokens -= error
        return error

    def as_dict(self) -> dict[str, int]:
        return {
            "turns": self._attempts,
            "predicted_tokens": self._predicted_tokens,
            "overpredicted_tokens": self._overpredicted_tokens,
            "underpredicted_tokens": self._underpredicted_tokens,
        }
