"""The type of a receipt that `receipt_of` returns. `contract.receipt` explains each member."""

from typing import NotRequired, TypedDict


class ReceiptWorker(TypedDict):
    """A worker that took part in a turn."""

    id: str
    dp_rank: int
    role: str


class ReceiptTiers(TypedDict):
    """Cached tokens by the tier that held them."""

    device: int
    host: int
    storage: int


class PrefixBreak(TypedDict):
    """The part of the prompt that differs from the turn before, with the cause and the cost."""

    where: str
    cause: str
    tokens: int
    nanousd: int
    compacted_tokens: NotRequired[int]
    saved_nanousd_a_turn: NotRequired[int]


class Receipt(TypedDict):
    """`usage.warmroute` of an answer. A proxy may add members."""

    v: int
    id: str
    session: str | None
    turn: int
    region: str
    workers: list[ReceiptWorker]
    cached: ReceiptTiers
    predicted_cached: int
    loss: dict[str, int]
    rates_usd_per_mtok: dict[str, str]
    list_nanousd: int
    price_nanousd: int
    saved_nanousd: int
    estimated: list[str]
    price_book: NotRequired[str]
    key: NotRequired[str]
    agent: NotRequired[str]
    name: NotRequired[str]
    parent: NotRequired[str]
    kind: NotRequired[str]
    harness: NotRequired[str]
    elsewhere_region: NotRequired[str]
    evicted_by: NotRequired[str]
    max_tokens_lowered_to: NotRequired[int]
    prefix_break: NotRequired[PrefixBreak]
    prefix_changed_by: NotRequired[list[str]]
    dropped_fields: NotRequired[list[str]]
    dropped_blocks: NotRequired[dict[str, int]]
    cache_control: NotRequired[int]
    cache_write: NotRequired[dict[str, int]]
    normalised: NotRequired[list[str]]
    provider_cost_nanousd: NotRequired[int]
