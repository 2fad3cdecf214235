"""What is stored of a settled turn for the next turn of its lineage, here and in other regions."""

import msgspec


class SettledTurn(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A last settled turn of a lineage. Counts that were not reported are None; `tip` is the chain's last hash.

    `turn`: its number, as counted in its prompt; `turns_before`: how many turns a compaction removed from that prompt.
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

    `cuts`: the number of cuts in the prompt's chain; `follows`: the tip of the turn that this one continues, or 0.
    `turn` names its region but no workers, which are unknown elsewhere. `session` is None if the session has no home of
    its own. `tenant`: the owner, if there are several tenants. `new`: the cuts that the previous turn did not have, for
    a conversation without a session. If its client rewrites it, the conversation is found only by its prefix.
    """

    lineage: int
    session: int | None
    thread: int | None
    cuts: int
    follows: int
    turn: SettledTurn
    new: list[int] = []
    tenant: str = ""
