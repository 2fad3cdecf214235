"""Numbers read from the `usage` of an answer, of warmroute or of any other server.

Servers may send anything, so every number is checked before it is added to a sum: a count that is not a whole number of
0 or more counts as absent.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warmroute.contract import receipt as contract

MAX_FAULT_CHARS: Final = 300
MAX_CLASSES: Final = 32  # of losses in a receipt; a newer proxy may name some that are not in the contract
MAX_CLASS_CHARS: Final = 64


class Amounts(NamedTuple):
    """What a receipt charges, nanodollars."""

    listed: int
    cost: int
    saved: int


class Measured(NamedTuple):
    """One turn's numbers. `faults` are sentences about its receipt."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    has_receipt: bool
    amounts_nanousd: Amounts | None
    losses: Mapping[str, int]
    region: str | None
    continued: bool
    faults: tuple[str, ...]


def measure(usage: Mapping[str, Any], announced: str | None) -> Measured:
    """The numbers of `usage`; `announced` is the receipt id of the response head, which its receipt must have."""
    prompt = _count(usage.get("prompt_tokens")) or 0
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    found = usage.get("warmroute")
    receipt: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    loss, region = receipt.get("loss"), receipt.get("region")
    return Measured(
        prompt_tokens=prompt,
        cached_tokens=None if cached is None else min(cached, prompt),
        completion_tokens=_count(usage.get("completion_tokens")) or 0,
        has_receipt=bool(receipt),
        amounts_nanousd=_amounts(receipt),
        losses=_losses(loss) if isinstance(loss, Mapping) else {},
        region=region if isinstance(region, str) else None,
        continued="continued" in receipt,
        faults=_faults(usage, receipt, announced) if receipt or announced else (),
    )


def _losses(loss: Mapping[Any, Any]) -> dict[str, int]:
    """Loss class -> tokens, of those that this version knows first; `MAX_CLASSES` of them at most."""
    names = [name for name in contract.LOSS_CLASSES if name in loss]
    names += [name for name in loss if isinstance(name, str) and name not in names and len(name) <= MAX_CLASS_CHARS]
    return {name: tokens for name in names[:MAX_CLASSES] if (tokens := _count(loss[name]))}


def _faults(usage: Mapping[str, Any], receipt: Mapping[str, Any], announced: str | None) -> tuple[str, ...]:
    if not receipt:
        return (f"{announced}: the response head announced this receipt, and the usage has none",)
    identifier = receipt.get("id")
    try:
        found = contract.check(usage)
    except Exception as error:  # a receipt can be wrong in ways that the checks do not foresee
        found = [f"the receipt cannot be checked: {type(error).__name__}: {error}"]
    if announced is not None and identifier != announced:
        found = [*found, f"its id is not the {announced} of the response head"]
    return tuple(f"{identifier}: {fault}"[:MAX_FAULT_CHARS] for fault in found)


def _amounts(receipt: Mapping[str, Any]) -> Amounts | None:
    listed, cost = _count(receipt.get("list_nanousd")), _count(receipt.get("price_nanousd"))
    saved = receipt.get("saved_nanousd")
    if listed is None or cost is None or type(saved) is not int:
        return None
    return Amounts(listed, cost, saved)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
