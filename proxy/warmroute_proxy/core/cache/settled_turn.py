"""What is stored of a settled turn for the turn that follows it, here and in other regions."""

import msgspec


class SettledTurn(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A last settled turn of a lineage. Counts that were not reported are None; `tip` is the chain's last hash.

    `turn` counts in its prompt; `turns_before` are those that a compaction took out of it.
    """

    workers: tuple[str, ...]
    region: str
    prompt_bytes: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    turn: int
    salt_epoch: int
    tip: int = 0
    turns_before: int = 0


class RegionalTurn(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="r"):
    """Where a lineage is served: sent when its turn is dispatched, and again with the counts when it has settled.

    `cuts` are those of the prompt's chain; `follows` is the tip of the turn that this one continues, 0 for none. `turn`
    names its region, and no workers: those mean nothing elsewhere. `session` is None if it has no home of its own.
    `tenant`: whose it is, if there are several. Once its client has rewritten it, a conversation without a session
    is found by its prefix alone: of such a turn, `new` are the cuts that the one before did not have.
    """

    lineage: int
    session: int | None
    thread: int | None
    cuts: int
    follows: int
    turn: SettledTurn
    new: list[int] = []
    tenant: str = ""
