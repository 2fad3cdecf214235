"""A router that decides alone and is recorded; the proxy records one that has peers, or may have."""

from collections.abc import Callable, Iterable

from warmroute_proxy.core.placement.decision import Policy
from warmroute_proxy.core.placement.fleet import Peer, Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.replicas.record import RecordedCall
from warmroute_proxy.core.replicas.recorder import Recorder


def recorded_router(
    write: Callable[[RecordedCall], None],
    software: str,
    region: str,
    workers: Iterable[Worker],
    peers: Iterable[Peer] = (),
    policy: Policy = "cost",
) -> Router:
    """A router that decides alone, recorded."""
    workers, peers = list(workers), list(peers)
    recorder = Recorder(write, software, region, workers, peers, policy)
    return Router(region, workers, peers, policy, listeners=(recorder,))
