"""What the routers of several processes send each other about their requests. It is decoded from another process."""

import msgspec

from warmroute_proxy.core.cache.regional_turn import RegionalTurn
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.prompt.chain import Chain


class Sent(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="s"):
    """A request was sent. Later events name it by `number`. The two workers are ids, as in `Ticket`."""

    number: int
    cache_worker: str
    decode_worker: str | None
    chain: Chain
    begins: bool
    from_cut: int
    prompt_tokens: int
    cached_tokens: int
    sequences: int = 1


class Computed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="c"):
    """Its prompt has been computed."""

    number: int


class Served(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="e"):
    """It ended well. `session` is None where it has no home of its own. Others use `shared_tokens` of it, too."""

    number: int
    lineage: int
    session: int | None
    thread: int | None
    model: str
    settled_turn: SettledTurn
    streamed_tokens: int | None = None
    shared_tokens: int = 0


class Lost(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="f"):
    """It ended badly."""

    number: int
    at_fault: list[str]


Event = Sent | Computed | Served | Lost | RegionalTurn
"""The last is a turn of another region, which one of the processes has received."""
