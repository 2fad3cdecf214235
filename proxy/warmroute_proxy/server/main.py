"""One proxy process: config in, listeners up, signals handled, everything closed in order.

With `processes` above 1 it is one of several (`processes.supervisor`): it has a process slot then, and peer processes.
"""

import asyncio
import gc
import json
import logging
import os
import secrets as random
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import uvloop

from warmroute_proxy.core.placement.fleet import Peer
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.replicas.peer_router import PeerRouter
from warmroute_proxy.core.replicas.recording_router import RecordedRouter
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.secrets import ApiKeys, SecretError, Secrets, bearer, key_sha256, load_secret
from warmroute_proxy.server.endpoint import AdminEndpoint, PublicEndpoint
from warmroute_proxy.server.engines import drain_orders
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.probing import fetch_server_infos, probe
from warmroute_proxy.server.engines.small_get import get
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.http.asgi import Bridge
from warmroute_proxy.server.http.listener import Listener
from warmroute_proxy.server.http.tls import Tls, TlsError
from warmroute_proxy.server.ledger.ledger import Ledger, LedgerError
from warmroute_proxy.server.ledger.recording import Recording
from warmroute_proxy.server.processes.peer_processes import PeerProcesses
from warmroute_proxy.server.processes.supervisor import ProcessSlot, Supervisor
from warmroute_proxy.server.request.forward_claim import Forwards
from warmroute_proxy.server.request.services import Services

log = logging.getLogger("warmroute.proxy")

SWEEP_EVERY_S: Final = 0.25
PROBE_EVERY_S: Final = 1.0
CLOSE_S: Final = 2.0
SAME_SIGNAL_S: Final = 1.0


def serve(config_path: str, check: bool, processes: int | str | None = None) -> int:
    """Run a proxy until SIGTERM or SIGINT; with `check`, only say whether the config is sound. Returns an exit code.

    `processes` goes before the number in the config.
    """
    try:
        config = load_config(Path(config_path), {} if processes is None else {"processes": processes})
        if check:
            if config.proxy.tls_cert is not None and config.proxy.tls_key is not None:
                Tls(config.proxy.tls_cert, config.proxy.tls_key)
            load_secret(config.secret_file, os.environ)
            for engine in config.engines:
                if engine.region == config.proxy.region:
                    bearer(engine.key_file)
                    bearer(engine.admin_key_file)
            config.proxy.state_dir.mkdir(parents=True, exist_ok=True)
            print(f"{config_path}: ok")
            return 0
        logging.basicConfig(
            stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"
        )
        if config.proxy.processes > 1:
            import warmroute_proxy.server.control.control_plane  # noqa: F401 - once, for all that are forked

            return Supervisor(config, _work).run(_listening)
        return _work(config, None)
    except (ConfigError, SecretError, LedgerError, TlsError, OSError) as error:
        print(f"warmroute proxy: {error}", file=sys.stderr)
        return 2


def _work(config: Config, slot: ProcessSlot | None) -> int:
    """What one process does; its exit code."""
    try:
        uvloop.run(_run(config, slot))
    except (ConfigError, SecretError, LedgerError, TlsError, OSError) as error:
        print(f"warmroute proxy: {error}", file=sys.stderr)
        return 2
    return 0


def _listening(said: dict[str, Any], processes: list[int]) -> None:
    """The line that says where a proxy listens, and as which processes."""
    line = {"event": "listening", **said, "pid": os.getpid()}
    print(json.dumps(line | {"processes": processes} if processes else line), flush=True)


class _Signals:
    """The first signal asks for a shutdown in peace, a second one for its end now.

    What comes within `SAME_SIGNAL_S` is the same one: systemd tells every process of a unit, and so does our parent; a
    terminal tells all that run in it, and so does a wrapper.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = False
        self._first_s = 0.0

    def came(self) -> None:
        now_s = time.monotonic()
        if not self.stop.is_set():
            self._first_s = now_s
            self.stop.set()
        elif now_s - self._first_s >= SAME_SIGNAL_S:
            self.hurry = True


async def _run(config: Config, slot: ProcessSlot | None) -> None:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, signals.came)
    if slot is None:
        loop.add_signal_handler(signal.SIGINT, signals.came)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells all of them: the parent passes it on
        loop.add_reader(slot.parent_fd, _orphaned, slot, signals.stop)
    tls = _tls(config, loop)
    services = await _build(config, slot)
    control_plane = await _import_control_plane(services)
    public = Listener(PublicEndpoint(services, control_plane[0]), config.limits, services.clock)
    digest = config.proxy.admin_key_sha256 or key_sha256(services.secrets.admin_key())
    admin = Listener(AdminEndpoint.with_key(digest, control_plane[1]), config.limits, services.clock)
    shared = slot is not None
    context = tls.context if tls is not None else None
    port = await public.listen(config.proxy.host, config.proxy.port, tls=context, shared=shared)
    admin_port = await admin.listen(config.proxy.admin_host, config.proxy.admin_port, shared=shared)
    tasks = [loop.create_task(_sweep(services, [public, admin])), loop.create_task(_probe(services))]
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    said = {
        "url": f"{'http' if tls is None else 'https'}://{config.proxy.host}:{port}",
        "admin_url": f"http://{config.proxy.admin_host}:{admin_port}",
        "region": config.proxy.region,
    }
    if slot is None:
        _listening(said, [])
    else:
        slot.ready(said)
    await signals.stop.wait()
    await _shut_down(services, public, admin, tasks, signals)


def _tls(config: Config, loop: asyncio.AbstractEventLoop) -> Tls | None:
    """What the port is to be reached by, read again at SIGHUP. By default that signal would end the process at once."""
    if config.proxy.tls_cert is None or config.proxy.tls_key is None:
        loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP: there is no TLS certificate to read again")
        return None
    tls = Tls(config.proxy.tls_cert, config.proxy.tls_key)

    def reload() -> None:
        try:
            tls.reload()
            log.info("the TLS certificate was read again; it is valid until %s", tls.valid_until)
        except TlsError as error:
            log.error("the TLS certificate stays as it was: %s", error)

    loop.add_signal_handler(signal.SIGHUP, reload)
    return tls


def _orphaned(slot: ProcessSlot, stop: asyncio.Event) -> None:
    """The parent is gone: nobody would start this process again, or tell it to end."""
    asyncio.get_running_loop().remove_reader(slot.parent_fd)
    log.error("the parent is gone: this process ends")
    stop.set()


async def _build(config: Config, slot: ProcessSlot | None) -> Services:
    secrets = Secrets(load_secret(config.secret_file, os.environ))
    clock = time.monotonic
    here = config.proxy.region
    metrics = Metrics()
    configs = [engine for engine in config.engines if engine.region == here]
    engines = Engines(configs, config.limits.connect_timeout_s, clock, time.time, metrics)
    await fetch_server_infos(engines)
    others = [region for region in config.regions if region.name != here and region.url]
    fleet = here, engines.workers(), [Peer(r.name, r.rtt_ms / 1000) for r in others], config.proxy.policy
    loop = asyncio.get_running_loop()
    number = slot.number if slot is not None else None
    ledger = Ledger(config.proxy.state_dir, config.ledger_sync, loop, number)  # first: it locks
    recording = Recording(config.proxy.record, loop) if config.proxy.record else None
    router, peer_processes = Router(*fleet), None
    if recording is not None:
        router = RecordedRouter(recording.write, version("warmroute"), *fleet)
    elif slot is not None:
        peer_processes = PeerProcesses(slot.shared_memory, slot.number, clock, loop)
        router = peer = PeerRouter(*fleet, send=peer_processes.send, receive=peer_processes.apply_updates)
        peer_processes.start(peer, engines, metrics)
    for engine_id, since_s in drain_orders.load(config.proxy.state_dir).items():
        if engine_id in engines.by_id:
            engines.drain(engine_id, "operator", True, router, since_s)
    services = Services(
        config=config,
        secrets=secrets,
        api_keys=ApiKeys(config.tenant_by_sha256()),
        router=router,
        recording=recording,
        peer_processes=peer_processes,
        engines=engines,
        peers={region.name: Upstream(region.url, config.limits.connect_timeout_s, clock) for region in others},
        forwards=Forwards(secrets, time.time, random.token_hex, slot.nonces if slot is not None else None),
        ledger=ledger,
        metrics=metrics,
        clock=clock,
        unix_clock=time.time,
    )
    services.request_metrics.interrupted(ledger.interrupted + (slot.interrupted if slot is not None else 0))
    return services


async def _import_control_plane(services: Services) -> tuple[Bridge, Bridge]:
    from warmroute_proxy.server.control.control_plane import admin_app, public_app

    return Bridge(public_app(services), {}), Bridge(admin_app(services), {})


async def _sweep(services: Services, listeners: list[Listener]) -> None:
    """What hangs on time. An error of ours in one step must not end the others: deadlines would be no more."""
    steps: list[Callable[[], None]] = [
        lambda: services.admission.sweep(services.clock()),
        *[listener.sweep for listener in listeners],
        services.engines.sweep,
        services.idempotent_calls.sweep,
        services.ledger.sweep,
        lambda: services.re_prefills.sweep(services.clock()),
        services.publish,
        *[peer.sweep for peer in services.peers.values()],
    ]
    while True:
        await asyncio.sleep(SWEEP_EVERY_S)
        now = services.clock()
        for turn in list(services.live):
            try:
                turn.sweep(now)
            except Exception as error:
                log.error("the sweep of a turn failed: %s", type(error).__name__)
                _try(turn.crashed)
        for step in steps:
            _try(step)


def _try(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:
        log.error("a step of the sweep failed: %s", type(error).__name__)


async def _probe(services: Services) -> None:
    while True:
        await probe(services.engines, services.router)
        for region, peer in services.peers.items():
            status, _ = await get(peer, "/ready")
            services.router.set_peer_up(region, status == 200)
            (services.peers_down.discard if status == 200 else services.peers_down.add)(region)
        await asyncio.sleep(PROBE_EVERY_S)


async def _shut_down(
    services: Services, public: Listener, admin: Listener, tasks: list[asyncio.Task[None]], signals: _Signals
) -> None:
    """Take nothing new, let turns end, tell what is left, close the ledger last. Operators can look on until then."""
    services.draining = True
    services.idempotent_calls.drain()
    services.admission.shut_down()
    grace_s = services.config.limits.shutdown_grace_s
    log.info("shutting down: %d turns have %g s to end; a second signal ends them now", len(services.live), grace_s)
    public.stop()
    deadline = services.clock() + grace_s
    while (services.live or public.connections) and services.clock() < deadline and not signals.hurry:
        await asyncio.sleep(0.02)
    services.re_prefills.close()
    services.admission.shut_down()  # a forward that failed meanwhile may have begun to wait
    for turn in list(services.live):
        turn.shut_down()
    await asyncio.gather(public.close(CLOSE_S), admin.close(CLOSE_S), services.engines.all_sent(CLOSE_S))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CLOSE_S)
    services.engines.close()
    for peer in services.peers.values():
        peer.close()
    if services.recording is not None:
        services.recording.close()
    services.ledger.close()
