"""Makes the router of one proxy process, which decides alone or together with other processes and proxies."""

import asyncio
import secrets as random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from warmroute.contract.conversations import Conversations
from warmroute.contract.version import VERSION
from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.recorder import Recorder
from warmroute_proxy.core.replicas.replica import Replica
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines import drain_orders
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.ledger.recording import Recording
from warmroute_proxy.server.processes.peer_processes import PeerProcesses
from warmroute_proxy.server.processes.supervisor import ProcessSlot
from warmroute_proxy.server.regions.announcements import Announcements
from warmroute_proxy.server.regions.other_proxies import OtherProxies


class Routing(NamedTuple):
    router: Router
    recording: Recording | None
    conversations: Conversations


def routing(
    config: Config,
    slot: ProcessSlot | None,
    engines: Engines,
    metrics: Metrics,
    announcements: Announcements,
    peer_processes: PeerProcesses | None,
) -> Routing:
    """Make the router and the conversations. Applies operators' drain orders from before a restart."""
    others_here = announcements.other_proxies
    announce = announcements.newest if announcements.active or others_here.active else None
    name = random.token_hex(8)
    here, loop = config.proxy.region, asyncio.get_running_loop()
    others = [Peer(r.name, r.rtt_ms / 1000) for r in config.regions if r.name != here and r.url]
    fleet = here, engines.workers(), others, config.proxy.policy
    recording = None if config.proxy.record is None else Recording(_record_of(config.proxy.record, slot), loop)
    listeners = [] if recording is None else [Recorder(recording.write, VERSION, *fleet)]
    if peer_processes is not None:
        send = _to_both(peer_processes, others_here) if others_here.active else peer_processes.send
        replica = Replica(*fleet, send=send, receive=peer_processes.apply_updates, listeners=listeners)
        router = replica.router
        if others_here.active:
            others_here.start(replica, peer_processes.show, peer_processes.apply_updates)
        conversations = Conversations(name, announcements.newest, peer_processes.apply_updates)
        peer_processes.start(replica, engines, metrics, conversations)
    else:
        conversations = Conversations(name, announce)
        if others_here.active:
            alone = Replica(*fleet, send=others_here.send, listeners=listeners)
            router = alone.router
            others_here.start(alone)
        else:
            router = Router(*fleet, listeners=listeners)
    for region in config.regions:
        router.set_peer_up(region.name, False)  # until its first probe has shown its version
    for engine_id, since_s in drain_orders.load(config.proxy.state_dir).items():
        if engine_id in engines.by_id:
            engines.drain(engine_id, "operator", True, router, since_s)
    return Routing(router, recording, conversations)


def _record_of(path: Path, slot: ProcessSlot | None) -> Path:
    """The decision record's file for a process. With several processes, it ends in the number of the process."""
    return path if slot is None else path.with_name(f"{path.name}.{slot.number}")


def _to_both(peer_processes: PeerProcesses, other_proxies: OtherProxies) -> Callable[[Event, float], None]:
    """A function that sends the router's events to the other processes of this proxy and to other proxies."""

    def send(event: Event, now_s: float) -> None:
        peer_processes.send(event, now_s)
        other_proxies.send(event, now_s)

    return send
