"""Runs one proxy process: reads the config, opens listeners, handles signals, and closes everything in order.

With `processes` above 1, a supervisor (`processes/supervisor.py`) starts several processes, and gives each a slot.
"""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import uvloop

from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import Config, Limits, authority
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.config_source import ConfigSource, ReadConfig
from warmroute_proxy.server.base.descriptors import ADMIN_CONNECTIONS, raise_limit
from warmroute_proxy.server.base.loop_lag import LoopLag
from warmroute_proxy.server.base.metrics import HeldBy
from warmroute_proxy.server.base.secrets import SecretError
from warmroute_proxy.server.build import Proxy, build, control_planes
from warmroute_proxy.server.check import probe, problems_of, shown, zero_digests
from warmroute_proxy.server.control.readiness import Readiness
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.probing import probe as probe_engines
from warmroute_proxy.server.http.asgi import Bridge
from warmroute_proxy.server.http.crowding import Crowding
from warmroute_proxy.server.http.exchange import Endpoint
from warmroute_proxy.server.http.listener import Listener
from warmroute_proxy.server.http.tls import Tls, TlsError, tls_of
from warmroute_proxy.server.intake.conversation_file import ConversationFile
from warmroute_proxy.server.ledger.ledger import LedgerError
from warmroute_proxy.server.processes.supervisor import ProcessSlot, Supervisor
from warmroute_proxy.server.regions.receipt_voider import ReceiptVoider
from warmroute_proxy.server.reload.orders import ReloadOrders
from warmroute_proxy.server.reload.reloads import problems_for_processes
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.stores.stores import send_rest
from warmroute_proxy.server.tracing.traced_request import request_maker

# Log lines are written in one of two formats, text or JSON.

_TEXT: Final = "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"


class _Json(logging.Formatter):
    """Writes each record as one line of JSON, even if its text has several lines."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str | int | None] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as(log_format: Literal["text", "json"]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


log = logging.getLogger("warmroute.proxy")

SWITCH_S: Final = 0.000_5
"""How long another thread, such as one that adds up rows, may hold the interpreter lock while the event loop waits.
Python's default of 5 ms would delay each iteration of the loop.
"""

SWEEP_EVERY_S: Final = 0.25
PROBE_EVERY_S: Final = 1.0
VOIDS_EVERY_S: Final = 1.0
CLOSE_S: Final = 2.0
SAME_SIGNAL_S: Final = 1.0


class PublicListener(Protocol):
    """The listener that receives clients' requests, over HTTP or from a gateway."""

    @property
    def connections(self) -> Any:
        """The open connections. Their `members` are empty once all connections have ended."""

    async def listen(self, host: str, port: int, *, tls: Tls | None = None, shared: bool = False) -> int: ...
    def use_limits(self, limits: Limits) -> None: ...
    def sweep(self) -> None: ...
    def stop(self) -> None: ...
    async def close(self, grace_s: float) -> None: ...


def serve(
    config_path: str,
    check: bool,
    processes: int | str | None = None,
    *,
    probe_servers: bool = False,
    picker: bool = False,
) -> int:
    """Run a proxy until SIGTERM or SIGINT; with `check`, only check the config. Returns an exit code.

    `processes` overrides the number in the config. `probe_servers`: the check also asks all servers of the config.
    `picker`: requests come from a gateway, which asks this proxy to which engine to send each request.
    """
    name = "warmroute epp" if picker else "warmroute proxy"
    try:
        source = ConfigSource(Path(config_path), {} if processes is None else {"processes": processes})
        running = source.read()
        config = running.config
        if config.proxy.tls_client_ca is not None and not picker:
            raise ConfigError(config_path, ["proxy.tls_client_ca: only `warmroute epp` asks for certificates"])
        if check:
            return _check(config_path, config, probe_servers=probe_servers)
        log_as(config.proxy.log_format)
        for problem in zero_digests(config):
            log.warning("%s", problem)
        if config.proxy.processes > 1:
            import warmroute_proxy.server.control.control_plane  # noqa: F401 - imported once, before the forks

            def work(config: Config, slot: ProcessSlot) -> int:
                return _work(config, slot, slot.running, slot.source, picker=picker)

            return Supervisor(running, source, work, problems_for_processes, send_rest).run(_listening)
        return _work(config, None, running, source, picker=picker)
    except (ConfigError, SecretError, LedgerError, TlsError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def _check(config_path: str, config: Config, *, probe_servers: bool) -> int:
    """Check a config, and print its servers' answers. Returns the exit code. Raises: ConfigError, with all problems."""
    problems = problems_of(config, os.environ)
    answers = probe(config) if probe_servers else []
    if problems:
        print("".join(f"{answer.who}: {answer.text}\n" for answer in answers), end="")
        raise ConfigError(config_path, problems)
    print(shown(config_path, answers))
    return 0 if all(answer.ok for answer in answers) else 1


def _work(
    config: Config, slot: ProcessSlot | None, running: ReadConfig, source: ConfigSource, *, picker: bool = False
) -> int:
    """Run one process. Returns its exit code. `running`: the config as read from its file; `source`: that file."""
    sys.setswitchinterval(SWITCH_S)
    try:
        uvloop.run(_run(config, slot, running, source, picker=picker))
    except (ConfigError, SecretError, LedgerError, TlsError, OSError) as error:
        print(f"warmroute {'epp' if picker else 'proxy'}: {error}", file=sys.stderr)
        return 2
    return 0


def _listening(address: dict[str, Any], processes: list[int]) -> None:
    """Print a line with the addresses on which a proxy listens, and the ids of its processes."""
    line = {"event": "listening", **address, "pid": os.getpid()}
    print(json.dumps(line | {"processes": processes} if processes else line), flush=True)


class _Signals:
    """Handles signals to end: the first signal begins a graceful shutdown; a second signal cuts it short.

    Signals within `SAME_SIGNAL_S` after the first signal are ignored, since a process can get one signal twice: systemd
    or a terminal sends it to all processes, and the parent or a wrapper passes it on.
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


async def _run(
    config: Config, slot: ProcessSlot | None, running: ReadConfig, source: ConfigSource, *, picker: bool = False
) -> None:
    signals, hung_up = _Signals(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)  # until reloads are possible
    loop.add_signal_handler(signal.SIGTERM, signals.came)
    if slot is None:
        loop.add_signal_handler(signal.SIGINT, signals.came)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to this process, too; the parent handles it
        loop.add_reader(slot.parent_fd, _orphaned, slot, signals.stop)
    tls = tls_of(config.proxy)
    limits = replace(config.limits, connections=_connections(config))
    proxy = await build(config, slot)
    proxy.follow_directory()
    proxy.follow_templates()
    conversations = _conversations(config, proxy, slot)
    orders = proxy.reload_orders(running, source)
    loop.add_signal_handler(signal.SIGHUP, _hung_up, tls, orders)
    readiness = proxy.readiness(orders)
    page = proxy.metrics_page(orders.reloads.discovery, readiness, tls)
    public_plane, admin_plane = control_planes(proxy, orders, readiness, page)
    public, admin_endpoint = _endpoints(proxy, public_plane, admin_plane, limits, readiness, picker=picker)
    admin_limits = replace(limits, connections=ADMIN_CONNECTIONS)
    crowding = Crowding("admin", proxy.metrics)
    admin = Listener(admin_endpoint, admin_limits, proxy.clock, proxy.body_memory, proxy.loop_lag, crowding)
    orders.reloads.begin()
    orders.reloads.appliers += [lambda live: public.use_limits(live.limits), lambda live: admin.use_limits(live.limits)]
    if slot is not None or hung_up.is_set():
        orders.hung_up()
    shared = slot is not None
    port = await public.listen(config.proxy.host, config.proxy.port, tls=tls, shared=shared)
    admin_port = await admin.listen(config.proxy.admin_host, config.proxy.admin_port, shared=shared)
    steps = [*proxy.sweep_steps([public.sweep, admin.sweep]), page.publish, orders.reloads.sweep]
    watching = [orders.watch(proxy.live), conversations.keep(), *proxy.stores.watching()]
    if slot is None or slot.number == 0:
        watching.append(proxy.deletion_costs(orders.reloads.discovery).watch())
    tasks = [loop.create_task(each) for each in [*_always(proxy, steps), *watching]]
    _collect_less_often()
    address = _address(config, port, admin_port, picker=picker)
    if slot is None:
        _listening(address, [])
    else:
        slot.ready(address)
    await signals.stop.wait()
    orders.reloads.discovery.close()
    await _shut_down(proxy, public, admin, tasks, signals)
    conversations.close()


def _always(proxy: Proxy, steps: list[Callable[[], None]]) -> list[Coroutine[Any, Any, None]]:
    """Background work that runs until the end of every process."""
    return [
        _sweep(proxy.open_requests, steps, proxy.clock, proxy.loop_lag),
        proxy.loop_lag.watch(),
        _probe_engines(proxy.engines, proxy.router),
        proxy.peers.watch(proxy.router),
        _send_voids(proxy.voids),
    ]


def _conversations(config: Config, proxy: Proxy, slot: ProcessSlot | None) -> ConversationFile:
    """Restore conversations into the proxy from their file, and return the file. Only the first process writes it."""
    writes = slot is None or slot.number == 0
    found = ConversationFile(config.proxy.state_dir, proxy.parser.callers.conversations, writes=writes)
    found.restore()
    return found


def _collect_less_often() -> None:
    """Make garbage collection rarer: objects of the start stay until the end, and few later ones are in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def _endpoints(
    proxy: Proxy, public_plane: Bridge, admin_plane: Bridge, limits: Limits, readiness: Readiness, *, picker: bool
) -> tuple[PublicListener, Endpoint]:
    """Make the listener for clients or their gateway, and the endpoint for operators."""
    new_request, admin = request_maker(proxy.tracing), proxy.admin_endpoint(admin_plane)
    if not picker:
        endpoint = proxy.public_endpoint(public_plane, new_request)
        crowding = Crowding("public", proxy.metrics)
        return Listener(endpoint, limits, proxy.clock, proxy.body_memory, proxy.loop_lag, crowding), admin
    from warmroute_proxy.server.picker.admin import PickerAdmin
    from warmroute_proxy.server.picker.listener import PickerListener, for_gateway

    endpoint = proxy.public_endpoint(public_plane, for_gateway(new_request))
    return PickerListener(proxy, endpoint, limits, readiness.can_answer), PickerAdmin(admin, endpoint)


def _address(config: Config, port: int, admin_port: int, *, picker: bool) -> dict[str, str]:
    """The addresses on which a proxy listens, for `_listening`."""
    scheme = "grpc" if picker else "http"
    return {
        "url": f"{scheme if config.proxy.tls_cert is None else f'{scheme}s'}://{authority(config.proxy.host, port)}",
        "admin_url": f"http://{authority(config.proxy.admin_host, admin_port)}",
        "region": config.proxy.region,
    }


def _connections(config: Config) -> int:
    """How many clients may be connected: as many as the config says, or fewer if file descriptors are lacking."""
    engines = len(config.own_engines)
    wanted = config.limits.connections
    try:
        division = raise_limit(wanted, engines)
    except ValueError as error:
        raise ConfigError("limits.connections", [str(error)]) from None
    if division.lowered:
        log.warning(
            "at most %d clients can be connected, not %d: the limit of file descriptors is %d (ulimit -Hn)",
            division.connections,
            wanted,
            division.limit,
        )
    return division.connections


def _hung_up(tls: Tls | None, orders: ReloadOrders) -> None:
    """Handle SIGHUP: read the certificate and the config again. Without a handler, SIGHUP would end the process."""
    if tls is None:
        log.info("no TLS certificate to read again")
    else:
        try:
            tls.reload()
            log.info("the TLS certificate was read again; it is valid until %s", tls.valid_until)
        except TlsError as error:
            log.error("the TLS certificate stays as it was: %s", error)
    orders.hung_up()


def _orphaned(slot: ProcessSlot, stop: asyncio.Event) -> None:
    """End this process, since its parent is gone, so that nobody would restart or end it."""
    asyncio.get_running_loop().remove_reader(slot.parent_fd)
    log.error("the parent is gone: this process ends")
    stop.set()


async def _sweep(
    open_requests: OpenRequests, steps: list[Callable[[], None]], clock: Callable[[], float], lag: LoopLag
) -> None:
    """Run periodic work. A bug in one step must not stop other steps or the requests' deadlines."""
    while True:
        await asyncio.sleep(SWEEP_EVERY_S)
        now = clock()
        for request in list(open_requests.live):
            try:
                request.sweep(now)
            except Exception as error:
                log.error("the sweep of a request failed: %s", type(error).__name__)
                _try(request.crashed)
        for step in steps:
            _try(step)
        lag.ran(HeldBy.SWEEP, clock() - now)


def _try(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:
        log.error("a step of the sweep failed: %s", type(error).__name__)


async def _probe_engines(engines: Engines, router: Router) -> None:
    while True:
        await probe_engines(engines, router)
        await asyncio.sleep(PROBE_EVERY_S)


async def _send_voids(voids: ReceiptVoider) -> None:
    while True:
        try:
            await voids.send()
        except Exception as error:
            log.error("sending voids failed: %s", type(error).__name__)
        await asyncio.sleep(VOIDS_EVERY_S)


async def _shut_down(
    proxy: Proxy, public: PublicListener, admin: Listener, tasks: list[asyncio.Task[None]], signals: _Signals
) -> None:
    """Refuse new requests, let open ones end, fail the rest, and close the ledger. Admin pages work meanwhile."""
    open_requests, admission = proxy.open_requests, proxy.admission
    open_requests.closed = True
    proxy.idempotent_calls.shut_down()
    proxy.parser.large_bodies.shut_down()
    admission.shut_down()
    grace_s = proxy.config.limits.shutdown_grace_s
    live = len(open_requests.live)
    log.info("shutting down: %d requests have %g s to end; a second signal ends them now", live, grace_s)
    public.stop()
    deadline = proxy.clock() + grace_s
    while (open_requests.live or public.connections.members) and proxy.clock() < deadline and not signals.hurry:
        await asyncio.sleep(0.02)
    proxy.re_prefills.close()
    admission.shut_down()  # once more, since a request whose forward failed may have been queued meanwhile
    for request in list(open_requests.live):
        request.shut_down()
    await asyncio.gather(public.close(CLOSE_S), admin.close(CLOSE_S), proxy.engines.all_sent(CLOSE_S))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CLOSE_S)
    proxy.close()
