"""Models as Anthropic's clients read them."""

from collections.abc import Sequence
from typing import Any, Final

_UNKNOWN_TIME: Final = "1970-01-01T00:00:00Z"  # their clients demand one


def model_card(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": _UNKNOWN_TIME}


def model_list(names: Sequence[str]) -> dict[str, Any]:
    first_id, last_id = (names[0], names[-1]) if names else (None, None)
    return {"data": [model_card(name) for name in names], "has_more": False, "first_id": first_id, "last_id": last_id}
