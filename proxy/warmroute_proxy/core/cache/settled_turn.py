"""What is stored of a settled turn, for the turn that follows it."""

import msgspec


class SettledTurn(msgspec.Struct, frozen=True, gc=False):
    """A last settled turn of a lineage. Counts that were not reported are None; `tip` is the chain's last hash."""

    workers: tuple[str, ...]
    region: str
    prompt_bytes: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    turn: int
    salt_epoch: int
    tip: int = 0
