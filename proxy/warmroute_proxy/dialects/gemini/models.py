"""Models as Gemini's clients read them."""

from collections.abc import Sequence
from typing import Any, Final

_METHODS: Final = ["generateContent", "streamGenerateContent", "countTokens"]


def model_card(name: str, context_tokens: int | None) -> dict[str, Any]:
    card: dict[str, Any] = {"name": f"models/{name}", "version": "", "displayName": name}
    if context_tokens is not None:
        card["inputTokenLimit"] = context_tokens
    return {**card, "supportedGenerationMethods": _METHODS}


def model_list(cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"models": list(cards)}
