"""The composition root: makes the components of one proxy process from its config, and connects them."""

import asyncio
import os
import secrets as random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from warmroute.contract.conversations import Conversations
from warmroute_proxy.core.cache.return_times import OVER
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.queue.door import waits_to_begin
from warmroute_proxy.server.admin_endpoint import AdminEndpoint
from warmroute_proxy.server.arrival import Arrivals
from warmroute_proxy.server.authentication import Authentication
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import Config, copies_of_bodies
from warmroute_proxy.server.base.config_source import ConfigSource, LiveConfig, ReadConfig
from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.secrets import Secrets, admin_key_matches, load_secret
from warmroute_proxy.server.control.metrics_page import MetricsPage, OwnGauges, resident_bytes
from warmroute_proxy.server.control.readiness import Readiness
from warmroute_proxy.server.dialects.dialect import Sockets
from warmroute_proxy.server.dialects.open_conversations import OpenConversations
from warmroute_proxy.server.dialects.responses import RESPONSES
from warmroute_proxy.server.dialects.responses_socket import ResponsesSockets
from warmroute_proxy.server.discovery.deletion_costs import DeletionCosts
from warmroute_proxy.server.discovery.discovery import Discovery, last_discovered
from warmroute_proxy.server.endpoint import PublicEndpoint
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.probing import fetch_server_infos
from warmroute_proxy.server.http.asgi import Bridge
from warmroute_proxy.server.http.body_memory import BodyMemory
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.http.tls import Tls
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.prefix_breaks import PrefixBreaks
from warmroute_proxy.server.intake.request_parser import RequestParser
from warmroute_proxy.server.ledger.counter_file import CounterFile
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.ledger.recording import Recording
from warmroute_proxy.server.ledger.retention import Retention
from warmroute_proxy.server.ledger.void_orders import VoidOrders
from warmroute_proxy.server.processes.peer_processes import Gauges, PeerProcesses
from warmroute_proxy.server.processes.supervisor import ProcessSlot
from warmroute_proxy.server.redis.call_markers import CallMarkers
from warmroute_proxy.server.regions.announcements import Announcements
from warmroute_proxy.server.regions.forward_claim import Forwards
from warmroute_proxy.server.regions.other_proxies import OtherProxies
from warmroute_proxy.server.regions.peers import PeerQuestions, Peers
from warmroute_proxy.server.regions.receipt_voider import ReceiptVoider
from warmroute_proxy.server.regions.region_nonces import RegionNonces
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS
from warmroute_proxy.server.reload.membership import Membership
from warmroute_proxy.server.reload.orders import ReloadOrders
from warmroute_proxy.server.reload.reloads import Applier, Reloads
from warmroute_proxy.server.reload.secret_files import SecretFiles
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.client_answer import AnswerHeaders
from warmroute_proxy.server.request.deadlines import Deadlines
from warmroute_proxy.server.request.faults import Faults
from warmroute_proxy.server.request.forwarding import Forwarding
from warmroute_proxy.server.request.idempotency import REMEMBER_KEY_S, IdempotentCalls, bounds_of
from warmroute_proxy.server.request.inference_request import NewRequest
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.request.placing import Placing
from warmroute_proxy.server.request.re_prefill import RePrefills
from warmroute_proxy.server.request.request_metrics import RequestMetrics
from warmroute_proxy.server.request.request_path import RequestPath
from warmroute_proxy.server.request.settlement import Settlement
from warmroute_proxy.server.routing import routing
from warmroute_proxy.server.stores.stores import Stores
from warmroute_proxy.server.tracing.tracing import Tracing


@dataclass(slots=True)
class Proxy:
    """The components of one proxy process. `main` sweeps, probes and closes them; tests look at them."""

    live: LiveConfig
    authentication: Authentication
    parser: RequestParser
    metrics: Metrics
    loop_lag: LoopLag
    body_memory: BodyMemory
    ledger: Ledger
    stores: Stores
    recording: Recording | None
    peer_processes: PeerProcesses | None
    """The link to the other processes of this proxy; None if there is only one process."""
    router: Router
    engines: Engines
    voids: ReceiptVoider
    announcements: Announcements
    open_requests: OpenRequests
    admission: Admission
    re_prefills: RePrefills
    idempotent_calls: IdempotentCalls
    path: RequestPath
    tracing: Tracing | None
    """None if requests are not traced."""

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        return self.engines.clock

    @property
    def config(self) -> Config:
        """The config in force, with the tenants of the database."""
        return self.live.now

    @property
    def peers(self) -> Peers:
        return self.voids.peers

    def public_endpoint(self, control_plane: Bridge, new_request: NewRequest) -> PublicEndpoint:
        arrivals = Arrivals(
            self.parser, self.authentication, self.ledger, self.idempotent_calls, self.path, new_request
        )
        parser, authentication = self.parser, self.authentication
        return PublicEndpoint(
            arrivals, parser, parser.callers, authentication, control_plane, self._sockets(), self._announced,
            self.path.metrics,
        )  # fmt: skip

    def _announced(self, request: Request, exchange: Exchange) -> None:
        """Apply the announcements of another proxy. Raises: Refusal."""
        here, may_be_served = self.announcements.region, self.authentication.may_be_served
        conversations = self.parser.callers.conversations
        self.announcements.receive(
            request, exchange, self.router, conversations, lambda tenant: may_be_served(tenant, here)
        )

    def _sockets(self) -> Mapping[str, Sockets]:
        """The openers of WebSockets, by path."""
        router = self.router

        def over(lineage: int) -> None:
            router.observe_session(lineage, OVER, self.engines.clock())

        open_conversations = OpenConversations(over, router.working_set.turns_of_open)
        return {RESPONSES: ResponsesSockets(self.parser.terms, open_conversations)}

    def follow_directory(self) -> None:
        """Pass the database's tenants to all components that use tenants, now and at each change."""
        access = self.stores.access
        if access is not None:
            access.on_tenants.append(self._replace_tenants)
            self._replace_tenants(access.config)

    def follow_templates(self) -> None:
        """Keep the parser informed of the models whose chat templates refuse a system message after other messages."""
        self.engines.follow_templates(lambda models: self.parser.refuse_late_system(models, self.config))

    def deletion_costs(self, discovery: Discovery) -> DeletionCosts:
        """Make the component that tells Kubernetes which of the engines' pods to delete first."""
        return DeletionCosts(self.live, discovery, lambda: self.engines.warm_tokens(self.router, self.clock()))

    def _replace_tenants(self, config: Config) -> None:
        self.live.replace(config)
        for apply in self._appliers():
            apply(config)

    def _appliers(self) -> list[Applier]:
        """The functions that pass another config, or other tenants, to each part that uses them."""
        return [
            self.stores.replace,
            self.authentication.replace,
            self.parser.replace,
            self.admission.replace,
            self.path.deadlines.replace,
            self.path.forwarding.replace,
        ]

    def admin_endpoint(self, control_plane: Bridge) -> AdminEndpoint:
        digest, matches = self.config.proxy.admin_key_sha256, self.parser.callers.secrets.is_admin_key
        if digest is not None:
            matches = partial(admin_key_matches, sha256_hex=digest)
        return AdminEndpoint(matches, self.authentication, control_plane)

    def sweep_steps(self, of_listeners: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        return [
            lambda: self.admission.sweep(self.clock()),
            *of_listeners,
            self.engines.sweep,
            self.idempotent_calls.sweep,
            self.ledger.sweep,
            self.stores.sweep,
            lambda: self.re_prefills.sweep(self.clock()),
            self.peers.sweep,
            self.announcements.other_proxies.sweep,
        ]

    def reload_orders(self, running: ReadConfig, source: ConfigSource) -> ReloadOrders:
        """Make the component that applies new configs. `running`: the config as read at the start from `source`."""
        timeout_s, state_dir = self.config.limits.connect_timeout_s, self.config.proxy.state_dir
        membership = Membership(
            self.engines, self.router, self.re_prefills, self.body_memory, timeout_s, state_dir, self.clock
        )
        prices, access = self.stores.prices, self.stores.access
        reloads = Reloads(running, self.live, state_dir, membership, self._appliers(), prices, self.metrics, access)
        secret_files = SecretFiles(
            membership, self.stores, self.tracing, self.parser.callers.secrets, self.config.secret_file
        )
        return ReloadOrders(reloads, source, state_dir, self.peer_processes, secret_files)

    def readiness(self, orders: ReloadOrders) -> Readiness:
        """Make the component that answers whether requests should be sent here (`/ready`)."""
        degraded = [self.stores.problems, orders.problems, self.parser.large_bodies.problems]
        return Readiness(self.open_requests, self.ledger, self.engines, degraded, self._other_regions_up)

    def _other_regions_up(self) -> bool:
        return bool(self.peers.upstreams.keys() - self.peers.down)

    def metrics_page(self, discovery: Discovery, readiness: Readiness, tls: Tls | None) -> MetricsPage:
        """Make the component that renders `/metrics`."""
        own = OwnGauges(self.config.proxy.state_dir, tls)
        gauges = [
            own.gauges,
            self.stores.gauges,
            self.ledger.gauges,
            discovery.gauges,
            self.parser.large_bodies.gauges,
            self.peers.gauges,
        ]
        return MetricsPage(
            self.metrics, self._held, self.router, self.engines, self.peer_processes, self.loop_lag, gauges,
            readiness.troubles,
        )  # fmt: skip

    def _held(self) -> Gauges:
        queue, prompts = self.admission.queue, self.re_prefills.prompts
        return Gauges(
            turns_live=len(self.open_requests.live),
            queue_requests=queue.requests,
            queue_bytes=queue.bytes,
            kept_prompts=len(prompts),
            kept_prompt_bytes=prompts.bytes,
            ledger_rows_waiting=self.ledger.waiting,
            body_memory_bytes=self.body_memory.budget.used,
            announcements_waiting=self.announcements.waiting,
            queue_memory_requests=len(queue.all_for_memory()),
            queue_begin_requests=sum(map(waits_to_begin, queue.all_for_memory())),
            queue_memory_missing_tokens=round(self.admission.shortage.missing_tokens),
            tokens_in_flight=self.open_requests.tokens,
            resident_memory_bytes=resident_bytes(),
            cpu_seconds=round(time.process_time(), 2),
        )

    def close(self) -> None:
        """Close everything at the end: the ledger after the components that write to it, then stores and tracing."""
        self.engines.close()
        self.peers.close()
        self.announcements.other_proxies.close()
        self.parser.large_bodies.shut_down()
        if self.recording is not None:
            self.recording.close()
        self.ledger.close()
        self.stores.close()
        if self.tracing is not None:
            self.tracing.close()


async def build(config: Config, slot: ProcessSlot | None) -> Proxy:
    """Make all components. Locks the state folder, then asks every engine for its ranks. `slot`: what the supervisor
    gives to this process; None if it is the only one.
    """
    clock, limits, metrics = time.monotonic, config.limits, Metrics()
    secrets = _secrets(config, slot)
    number, memory = slot.number if slot is not None else None, _body_memory(config, metrics)
    ledger = _ledger(config, number)  # made first, since it locks the state folder
    voids, announcements, peer_processes = _links(config, slot, secrets, metrics, clock)
    engines = await _engines(config, peer_processes, metrics, clock, memory)
    stores = await _stores(config, number, metrics, ledger)
    router, recording, conversations = routing(config, slot, engines, metrics, announcements, peer_processes)
    request_metrics, loop_lag = _request_metrics(metrics, ledger, slot), LoopLag(metrics, clock)
    open_requests, shortage = OpenRequests(), engines.watching.shortage
    engines.watching.reports_hits = router.reports_hits
    admission = Admission(config, router, metrics, clock, stores, shortage)
    faults = Faults(router, engines, open_requests, request_metrics)
    re_prefills = RePrefills(
        config.kept_prompt_bytes, router, engines, admission, open_requests, metrics, clock, memory
    )
    settlement = Settlement(router, engines, admission, ledger, request_metrics, announcements, time.time)
    path = RequestPath(
        open_requests=open_requests,
        placing=Placing(router, engines, admission, faults, request_metrics), admission=admission,
        forwarding=Forwarding(config, voids, router, admission, open_requests, metrics, clock),
        faults=faults, engines=engines, deadlines=Deadlines(limits, engines),
        settlement=settlement, re_prefills=re_prefills,
        answer_headers=AnswerHeaders(config.proxy.region, admission.limits),
        metrics=request_metrics, max_answer_bytes=limits.response_bytes,
    )  # fmt: skip
    return Proxy(
        live=LiveConfig(config),
        authentication=_authentication(config, stores, voids, metrics),
        parser=RequestParser(config, _callers(config, secrets, conversations), asyncio.get_running_loop(), metrics),
        metrics=metrics,
        loop_lag=loop_lag,
        body_memory=memory,
        ledger=ledger,
        stores=stores,
        recording=recording,
        peer_processes=peer_processes,
        router=router,
        engines=engines,
        voids=voids,
        announcements=announcements,
        open_requests=open_requests,
        admission=admission,
        re_prefills=re_prefills,
        idempotent_calls=_idempotent_calls(config, stores, secrets, metrics, clock, memory),
        path=path,
        tracing=_tracing(config, secrets, metrics, clock),
    )


def _ledger(config: Config, number: int | None) -> Ledger:
    retention = Retention(config.ledger_file.ledger_file_days, config.ledger_file.ledger_file_bytes)
    return Ledger(config.proxy.state_dir, config.ledger_sync, asyncio.get_running_loop(), number, retention)


async def _stores(config: Config, number: int | None, metrics: Metrics, ledger: Ledger) -> Stores:
    """Open the stores. From then on, the ledger file may delete rows that they have confirmed."""
    stores = await Stores.opened(config, number, metrics, ledger.start)
    ledger.upkeep.confirmed = stores.confirmed
    return stores


def _secrets(config: Config, slot: ProcessSlot | None) -> Secrets:
    """The keys that are derived from the fleet secret. Raises: SecretError.

    One of several processes derives long-lived keys from the secret that the supervisor read at its start, as the other
    processes do. But it signs with the secret in the current file, since the older secret may have been revoked.
    """
    lines = load_secret(config.secret_file, os.environ)
    if slot is None:
        return Secrets(lines)
    slot.secrets.replace(lines)
    return slot.secrets


def _callers(config: Config, secrets: Secrets, conversations: Conversations) -> Callers:
    prefix_breaks, proxy = PrefixBreaks(config.prompt_parts_bytes), config.proxy
    return Callers(secrets, conversations, prefix_breaks, proxy.region, counts_alone=proxy.counts_alone)


def _authentication(config: Config, stores: Stores, voids: ReceiptVoider, metrics: Metrics) -> Authentication:
    """Make the check of API keys: of the config's keys, and of the database's if there is a database."""
    access, store = stores.access, stores.limits.nonces
    nonces = None if store is None else RegionNonces(store, metrics)
    if access is None:
        return Authentication(config, None, voids.forwards, nonces)
    made = Authentication(access.config, access.api_keys, voids.forwards, nonces)
    access.on_keys.append(made.forget)
    return made


def _idempotent_calls(
    config: Config,
    stores: Stores,
    secrets: Secrets,
    metrics: Metrics,
    clock: Callable[[], float],
    memory: BodyMemory,
) -> IdempotentCalls:
    """Make the component for requests with an Idempotency-Key. With Redis, other proxies know of these requests."""
    limits, store, markers = config.limits, stores.limits.markers, None
    if store is not None:
        ended_s = limits.keyed_replay_s + REMEMBER_KEY_S
        markers = CallMarkers(store, secrets.lasting_mac("idempotency-key"), limits, ended_s, metrics)
    return IdempotentCalls(bounds_of(limits), limits.keyed_outlive_s, clock, metrics, memory, markers)


def _body_memory(config: Config, metrics: Metrics) -> BodyMemory:
    refused = metrics.counter(declared.REFUSED_TOTAL, (("reason", "body_memory"),))
    return BodyMemory(config.limits.body_memory_bytes, copies_of_bodies(config.engines), refused)


async def _engines(
    config: Config,
    peer_processes: PeerProcesses | None,
    metrics: Metrics,
    clock: Callable[[], float],
    memory: BodyMemory,
) -> Engines:
    """Make the engines, also those that sources named before a restart, so that what the other processes know of them
    is taken in. Only the first process keeps the file of the engines' counters.
    """
    is_first = peer_processes is None or peer_processes.number == 0
    discovered = last_discovered(config)
    engines = Engines(
        [*config.own_engines, *discovered], config.limits.connect_timeout_s, clock, time.time, metrics,
        config.proxy.region, CounterFile(config.proxy.state_dir) if is_first else None, peer_processes,
    )  # fmt: skip
    engines.memory = memory
    await fetch_server_infos(engines)
    for each in discovered:
        if not engines.by_id[each.id].serves:  # its address may be another server's by now: it joins once it is probed
            engines.by_id.pop(each.id).close()
    return engines


def _request_metrics(metrics: Metrics, ledger: Ledger, slot: ProcessSlot | None) -> RequestMetrics:
    """Make the counters of requests, which begin with the requests that the death of an earlier process interrupted."""
    made = RequestMetrics(metrics)
    made.interrupted(ledger.interrupted + (slot.interrupted if slot is not None else 0))
    return made


def _tracing(config: Config, secrets: Secrets, metrics: Metrics, clock: Callable[[], float]) -> Tracing | None:
    if config.tracing is None:
        return None
    return Tracing(config.tracing, config.proxy.region, secrets.lasting_mac("tracing"), metrics, clock)


def _peers(config: Config, clock: Callable[[], float], forwards: Forwards) -> Peers:
    here = config.proxy.region
    urls = {region.name: region.url for region in config.regions if region.name != here and region.url}
    return Peers(urls, config.limits.connect_timeout_s, clock, forwards)


def _links(
    config: Config, slot: ProcessSlot | None, secrets: Secrets, metrics: Metrics, clock: Callable[[], float]
) -> tuple[ReceiptVoider, Announcements, PeerProcesses | None]:
    """Make the links to other regions (for voids and for announcements) and to this proxy's other processes."""
    nonces = slot.nonces if slot is not None else None
    forwards = Forwards(secrets, config.proxy.region, time.time, random.token_hex, nonces, clock)
    number, processes = (0, 1) if slot is None else (slot.number, config.proxy.processes)
    orders = VoidOrders(config.proxy.state_dir, number, processes)
    timeout_s = config.limits.connect_timeout_s
    voids = ReceiptVoider(_peers(config, clock, forwards), forwards, orders, metrics, time.time, clock, timeout_s)
    here = config.proxy.region
    urls = config.proxy.others_than(socket.gethostname())
    others = OtherProxies(urls, here, ANNOUNCEMENTS, forwards, metrics, clock, timeout_s, random.randbits(62))
    peer_processes = None
    if slot is not None:
        shown = others.apply if others.active else None
        loop = asyncio.get_running_loop()
        peer_processes = PeerProcesses(slot.shared_memory, slot.number, clock, loop, shown)
    announcements = Announcements(here, voids.peers, forwards, metrics, clock, timeout_s, others, peer_processes)
    return voids, announcements, peer_processes


def control_planes(
    proxy: Proxy, orders: ReloadOrders, readiness: Readiness, page: MetricsPage
) -> tuple[Bridge, Bridge]:
    """Make the applications of the public and the admin listener. Imports FastAPI only here, since that is slow."""
    from warmroute_proxy.server.control.control_plane import AdminParts, PublicParts, admin_app, public_app
    from warmroute_proxy.server.control.directory_routes import DirectoryAdmin
    from warmroute_proxy.server.control.engine_admin import EngineAdmin
    from warmroute_proxy.server.control.engine_flip import EngineFlips
    from warmroute_proxy.server.control.fleet_usage import FleetUsage
    from warmroute_proxy.server.control.page_files import page_files
    from warmroute_proxy.server.control.session_routes import SessionWords
    from warmroute_proxy.server.control.usage_routes import Asking, Receipts
    from warmroute_proxy.server.control.view_routes import Views

    config, clock = proxy.config, proxy.clock
    questions = PeerQuestions(proxy.peers, proxy.voids.forwards, config.limits.connect_timeout_s)
    engine_admin = EngineAdmin(
        proxy.engines,
        proxy.router,
        proxy.re_prefills,
        proxy.live,
        config.proxy.state_dir,
        proxy.peer_processes,
        clock,
        time.time,
    )
    shared = proxy.stores.fleet_ledger
    read_by = proxy.ledger, questions, config.proxy.region
    usage = FleetUsage(*read_by, alone=not proxy.announcements.other_proxies.active)
    if shared is not None:
        from warmroute_proxy.server.control.shared_usage import SharedUsage

        usage = SharedUsage(*read_by, shared)
    asking = Asking(usage, proxy.parser.callers.secrets, proxy.live)
    receipts = Receipts(proxy.ledger, questions, usage, proxy.announcements.other_proxies)
    sessions = SessionWords(proxy.router, proxy.parser.callers.secrets, clock)
    public = public_app(PublicParts(proxy.live, proxy.stores.prices, readiness, receipts, asking, sessions))
    access = proxy.stores.access
    directory = None if access is None else DirectoryAdmin(access, proxy.stores.ask, config.proxy.region)
    flips = EngineFlips(proxy.engines, proxy.router, engine_admin)
    views = Views(asking, receipts, proxy.open_requests, proxy.admission, directory, clock, page.minutes)
    parts = AdminParts(
        page=page, engines=engine_admin, flips=flips, router=proxy.router, admission=proxy.admission,
        open_requests=proxy.open_requests, directory=directory, asking=asking, views=views, orders=orders, clock=clock,
    )  # fmt: skip
    memory, turns = proxy.body_memory, proxy.loop_lag.turns
    proxy.engines.take_turns(turns)
    return Bridge(public, {}, memory, turns), Bridge(admin_app(parts, page_files()), {}, memory, turns)
