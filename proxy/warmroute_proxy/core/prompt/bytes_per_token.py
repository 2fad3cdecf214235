"""Learns for each model, from reported usage, how many bytes of a prompt's canonical form make a token."""

from typing import Final

BYTES_PER_TOKEN_PRIOR: Final = 4.0
BYTES_PER_TOKEN_MIN: Final = 0.5
BYTES_PER_TOKEN_MAX: Final = 32.0
BYTES_PER_TOKEN_WEIGHT: Final = 0.1
MAX_MODELS: Final = 1024


def bounded_bytes_per_token(ratio: float) -> float:
    if BYTES_PER_TOKEN_MIN <= ratio <= BYTES_PER_TOKEN_MAX:
        return ratio
    return min(max(ratio, BYTES_PER_TOKEN_MIN), BYTES_PER_TOKEN_MAX)


class BytesPerToken:
    """The bytes per token of each model. At most `MAX_MODELS` ratios are stored."""

    def __init__(self) -> None:
        self._by_model: dict[str, float] = {}

    def of(self, model: str) -> float:
        """The ratio for a model, or the prior if no ratio was learned yet."""
        return self._by_model.get(model, BYTES_PER_TOKEN_PRIOR)

    def observe(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        observed = bounded_bytes_per_token(prompt_bytes / prompt_tokens)
        known = self._by_model.get(model)
        if known is not None:
            self._by_model[model] = known + BYTES_PER_TOKEN_WEIGHT * (observed - known)
            return
        if len(self._by_model) >= MAX_MODELS:
            del self._by_model[next(iter(self._by_model))]
        self._by_model[model] = observed

    def as_dict(self) -> dict[str, float]:
        return dict(self._by_model)
