"""Defines the events that routers of several processes send each other about their requests."""

import msgspec

from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.prompt.chain import Chain


class Sent(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="s"):
    """A request was sent. Later events name the request by `number`. Both workers are given by their ids."""

    number: int
    cache_worker: str
    decode_worker: str | None
    chain: Chain
    begins: bool
    from_cut: int
    prompt_tokens: int
    cached_tokens: int
    sequences: int
    lineage: int
    shared_bytes: int
    tenant: str = ""


class Computed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="c"):
    """The prompt of a request has been computed."""

    number: int


class Served(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="e"):
    """A request ended successfully. `session`: None if no home is remembered for the session."""

    number: int
    lineage: int
    session: int | None
    thread: int | None
    model: str
    settled_turn: SettledTurn
    streamed_tokens: int | None = None
    returns: int = 0


class Lost(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="f"):
    """A request failed. `at_fault`: the ids of the workers to blame."""

    number: int
    at_fault: list[str]


class Evicted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="v"):
    """A worker has evicted `cuts` (prefix hashes) of a lineage (conversation branch). Sent at the lineage's next
    turn.
    """

    lineage: int
    worker: str
    cuts: list[int]


class SessionObserved(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="w"):
    """A client has said how soon its session, or one conversation of the session, returns (`cache.return_times`)."""

    session: int
    returns: int


Event = Sent | Computed | Served | Lost | Evicted | SessionObserved | Waits | RegionalTurn
"""`RegionalTurn` is a turn of another region, which one of the processes has received and passes on."""
