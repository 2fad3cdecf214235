"""The receipt that an answer carries."""

from collections.abc import Mapping
from typing import Any


def receipt_of(answer: object) -> Mapping[str, Any] | None:
    """`usage.warmroute` of a completion, of a chunk, or of a stream that has been read to its end; None without one."""
    usage = getattr(answer, "usage", None)
    receipt = usage.get("warmroute") if isinstance(usage, Mapping) else getattr(usage, "warmroute", None)
    return receipt if isinstance(receipt, Mapping) else None
