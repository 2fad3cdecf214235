"""One proxy process: config in, listeners up, signals handled, everything closed in order."""

import asyncio
import gc
import json
import logging
import os
import secrets as random
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

import uvloop

from warmroute_proxy.core.fleet import Peer
from warmroute_proxy.core.recorded import RecordedRouter
from warmroute_proxy.core.router import Router
from warmroute_proxy.server.asgi import Bridge
from warmroute_proxy.server.config import Config, ConfigError, load_config
from warmroute_proxy.server.endpoint import AdminEndpoint, PublicEndpoint
from warmroute_proxy.server.engines import Engines
from warmroute_proxy.server.forward import Forwards
from warmroute_proxy.server.http1 import Listener
from warmroute_proxy.server.ledger import Ledger, LedgerError
from warmroute_proxy.server.metrics import Metrics
from warmroute_proxy.server.recording import Recording
from warmroute_proxy.server.secrets import ApiKeys, SecretError, Secrets, bearer, key_sha256, load_secret
from warmroute_proxy.server.services import Services
from warmroute_proxy.server.upstream import Upstream, get

log = logging.getLogger("warmroute.proxy")

SWEEP_EVERY_S: Final = 0.25
PROBE_EVERY_S: Final = 1.0
CLOSE_S: Final = 2.0


def serve(config_path: str, check: bool) -> int:
    """Run a proxy until SIGTERM or SIGINT; with `check`, only say whether the config is sound. Returns an exit code."""
    try:
        config = load_config(Path(config_path))
        if check:
            load_secret(config.secret_file, os.environ)
            for engine in config.engines:
                if engine.region == config.proxy.region:
                    bearer(engine.key_file)
                    bearer(engine.admin_key_file)
            config.proxy.state_dir.mkdir(parents=True, exist_ok=True)
            print(f"{config_path}: ok")
            return 0
        logging.basicConfig(
            stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
        )
        uvloop.run(_run(config))
    except (ConfigError, SecretError, LedgerError, OSError) as error:
        print(f"warmroute proxy: {error}", file=sys.stderr)
        return 2
    return 0


class _Signals:
    """The first signal asks for a shutdown in peace, a second one for its end now."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = False

    def came(self) -> None:
        self.hurry = self.stop.is_set()
        self.stop.set()


async def _run(config: Config) -> None:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.came)
    services = await _build(config)
    control_plane = await _import_control_plane(services)
    public = Listener(PublicEndpoint(services, control_plane[0]), config.limits, services.clock)
    digest = config.proxy.admin_key_sha256 or key_sha256(services.secrets.admin_key())
    admin = Listener(AdminEndpoint.with_key(digest, control_plane[1]), config.limits, services.clock)
    port = await public.listen(config.proxy.host, config.proxy.port)
    admin_port = await admin.listen(config.proxy.admin_host, config.proxy.admin_port)
    tasks = [loop.create_task(_sweep(services, [public, admin])), loop.create_task(_probe(services))]
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    line = {
        "event": "listening",
        "url": f"http://{config.proxy.host}:{port}",
        "admin_url": f"http://{config.proxy.admin_host}:{admin_port}",
        "region": config.proxy.region,
        "pid": os.getpid(),
    }
    print(json.dumps(line), flush=True)
    await signals.stop.wait()
    await _shut_down(services, public, admin, tasks, signals)


async def _build(config: Config) -> Services:
    secrets = Secrets(load_secret(config.secret_file, os.environ))
    clock = time.monotonic
    here = config.proxy.region
    metrics = Metrics()
    configs = [engine for engine in config.engines if engine.region == here]
    engines = Engines(configs, config.limits.connect_timeout_s, clock, time.time, metrics)
    await engines.inform()
    others = [region for region in config.regions if region.name != here and region.url]
    fleet = here, engines.workers(), [Peer(r.name, r.rtt_ms / 1000) for r in others], config.proxy.policy
    ledger = Ledger(config.proxy.state_dir, config.ledger_sync, asyncio.get_running_loop())  # first: it locks
    recording = Recording(config.proxy.record, asyncio.get_running_loop()) if config.proxy.record else None
    return Services(
        config=config,
        secrets=secrets,
        api_keys=ApiKeys(config.tenant_by_sha256()),
        router=RecordedRouter(recording.write, version("warmroute"), *fleet) if recording else Router(*fleet),
        recording=recording,
        engines=engines,
        peers={region.name: Upstream(region.url, config.limits.connect_timeout_s, clock) for region in others},
        forwards=Forwards(secrets, time.time, random.token_hex),
        ledger=ledger,
        metrics=metrics,
        clock=clock,
        unix_clock=time.time,
    )


async def _import_control_plane(services: Services) -> tuple[Bridge, Bridge]:
    from warmroute_proxy.server.control_plane import admin_app, public_app

    return Bridge(public_app(services), {}), Bridge(admin_app(services), {})


async def _sweep(services: Services, listeners: list[Listener]) -> None:
    while True:
        await asyncio.sleep(SWEEP_EVERY_S)
        now = services.clock()
        for turn in list(services.live):
            try:
                turn.sweep(now)
            except Exception as error:
                log.error("the sweep of a turn failed: %s", type(error).__name__)
                services.live.discard(turn)
        services.admission.sweep(now)
        for listener in listeners:
            listener.sweep()
        services.engines.sweep()
        services.joins.sweep()
        for peer in services.peers.values():
            peer.sweep()


async def _probe(services: Services) -> None:
    while True:
        await services.engines.probe(services.router)
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
    services.joins.drain()
    services.admission.shut_down()
    grace_s = services.config.limits.shutdown_grace_s
    log.info("shutting down: %d turns have %g s to end; a second signal ends them now", len(services.live), grace_s)
    public.stop()
    deadline = services.clock() + grace_s
    while (services.live or public.connections) and services.clock() < deadline and not signals.hurry:
        await asyncio.sleep(0.02)
    for turn in list(services.live):
        turn.shut_down()
    await asyncio.gather(public.close(CLOSE_S), admin.close(CLOSE_S))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CLOSE_S)
    services.engines.close()
    for peer in services.peers.values():
        peer.close()
    if services.recording is not None:
        services.recording.close()
    services.ledger.close()
