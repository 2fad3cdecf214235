"""Defines what is stored of a settled (billed) turn for the next turn of its lineage, here and in other regions."""

import msgspec


class SettledTurn(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The most recent settled turn of a lineage (one conversation branch). Counts that no engine reported are None.

    `tip`: the last hash of the prompt's chain, which covers the whole prompt. `turn`: the turn's number, as counted in
    its prompt. `turns_before`: how many turns a compaction removed from that prompt. `settings`: as in
    `RoutingRequest`.
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
    settings: int = 0


class RegionalTurn(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="r"):
    """The message in which a region announces a turn that it serves: at dispatch, and again with counts after settling.

    `cuts`: the number of hashes in the prompt's chain. `follows`: the tip of the turn that this one continues, or 0.
    `turn` names its region but no workers, because other regions do not know these. `session`: None if no home is
    stored for the session. `tenant`: the owner, if there are several tenants. `new`: the hashes that the previous turn
    did not have, sent only for a conversation without a session: if its client rewrites such a conversation, only the
    prefix identifies it.
    """

    lineage: int
    session: int | None
    thread: int | None
    cuts: int
    follows: int
    turn: SettledTurn
    new: list[int] = []
    tenant: str = ""
