"""Probes of all engines: whether they answer, and what they report.

Each round of probes requests `/ready` of each engine, then `/v1/loads` (a snapshot of its work) if the engine is up. A
server that answers `/ready` with 404 counts as ready. An engine that was ready and answers 503 drains: it finishes its
requests and gets no new ones. A prefill engine has a bootstrap server, from which decode engines learn where its KV is.
Every `REGISTERED_EVERY_S` this server is asked for the engine's ranks. If it lacks them, the engine is down.

`/server_info` is read when an engine comes up, and every `INFORM_EVERY_S`. An engine is not up until it has answered
`/server_info` as an engine does, because another server may listen at a wrong address. The report has the engine's
ranks and start time. The router gets new ranks; a new start time means an empty cache.

`/health` makes the engine generate a token, so it is requested only if nothing else shows progress
(`core.load.health_monitor`). `/metrics`, if the engine has it, is read every `WATCH_EVERY_S` for metrics of workers and
for conditions (`watching`). If the engine has a host tier, the cost of moving tokens between tiers is taken from
`/metrics` every `MOVES_EVERY_S`.
"""

import asyncio
import logging
from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.load.health_monitor import HEALTH_TIMEOUT_S
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.engines.engine import MOVES_EVERY_S, REGISTERED_EVERY_S, Engine
from warmroute_proxy.server.engines.engine_headers import CONTENT_TYPE
from warmroute_proxy.server.engines.engine_metrics import Found, add_counts, add_reports, counts_of, reports_of
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.kv_move_costs import MoveTotals, Values, add_totals, totals_of
from warmroute_proxy.server.engines.server_info import MAX_DP_RANKS, count, json_object, read_server_info
from warmroute_proxy.server.engines.small_get import OWN_FAULT, SMALL_BYTES, ask
from warmroute_proxy.server.engines.upstream import Upstream

# Each engine renders a small chat, which shows whether its chat template takes a system message after other messages.
#
# Templates of some models (Qwen 3.x, Gemma) raise an error then, and the engine answers 400 or 500. A chat without a
# late system message is rendered first: a server that renders no chat at all must not count as refusing late messages.

PATH: Final = "/v1/tokenize"
TIMEOUT_S: Final = 2.0
_REFUSES: Final = frozenset({400, 422, 500})
_FIRST: Final = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
_LATE: Final = [*_FIRST, {"role": "assistant", "content": "c"}, {"role": "system", "content": "d"}, _FIRST[1]]
PLAIN: Final = msgspec.json.encode({"messages": _FIRST})
WITH_LATE: Final = msgspec.json.encode({"messages": _LATE})


async def refuses_late_system(upstream: Upstream, bearer: str) -> bool:
    status = await _asked(upstream, bearer, PLAIN)
    return status == 200 and await _asked(upstream, bearer, WITH_LATE) in _REFUSES


async def _asked(upstream: Upstream, bearer: str, body: bytes) -> int:
    headers = f"{CONTENT_TYPE}{bearer}"
    status, _ = await ask(upstream, PATH, headers, TIMEOUT_S, method="POST", body=body, limit_bytes=SMALL_BYTES)
    return status


log = logging.getLogger(__name__)

ANSWER_S: float = 2.0
"""The time limit of a probe. An engine that answers later gets no new work."""

ROUND_S: float = 1.0
"""How long a round of probes waits for its slowest engine, whose probe then goes on beside the next rounds."""

GONE_S: Final = 5.0
"""How long an engine must be down to count as lost, since one missed probe says little."""

DRAIN_ANSWERS_WITHIN_S: Final = 10.0
"""An engine that drains answers `/health` with 503 at once. One that hangs does so after 20 s. Its `/ready` then says
503, too, to any proxy, as if it drained.
"""

INFORM_EVERY_S: Final = 60.0
ROUTE: Final = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
"""The path at which a bootstrap server describes a whole engine (SGLang 0.5.23, disaggregation/common/conn.py). The
answer is 404 or 503 until the engine's ranks are registered.
"""

_UNREGISTERED: Final = frozenset({0, 404, 503})

LOADS_BYTES: Final = 262_144
"""The limit for `/v1/loads`, above 64 rows of 1 KB for 64 ranks."""

INFO_BYTES: Final = 1_048_576
METRICS_BYTES: Final = 4_194_304
"""The limit for `/metrics`. An answer above the limit of its route, or without memory for it, counts as missing."""

METRICS_PORTION_BYTES: Final = 8_192


class _Metrics(NamedTuple):
    """The metrics of an engine that were read so far."""

    reports: Found
    counts: dict[str, float]
    moves: Values


async def fetch_server_infos(engines: Engines) -> None:
    """Ask every engine for its ranks and page size, before the first request."""
    await asyncio.gather(*(fetch_server_info(engines, engine, None) for engine in engines.by_id.values()))


async def probe(engines: Engines, router: Router) -> None:
    running = engines.probing
    for engine in engines.by_id.values():
        if engine not in running:
            running[engine] = asyncio.get_running_loop().create_task(_probe_safely(engines, engine, router))
    if running:
        await asyncio.wait(running.values(), timeout=ROUND_S)
    now_s = engines.clock()
    if engines.watching.is_due("", now_s):
        engines.watching.observe_region(engines.workers(), now_s)


async def _probe_safely(engines: Engines, engine: Engine, router: Router) -> None:
    """Probe one engine. An error of the proxy's own must not end the probes of the other engines."""
    try:
        await _probe(engines, engine, router)
    except Exception as error:
        log.error("probing engine %s failed: %s", engine.config.id, type(error).__name__)
    finally:
        engines.probing.pop(engine, None)


async def _probe(engines: Engines, engine: Engine, router: Router) -> None:
    if engine.config.kind == "openai":
        return  # OpenAI-compatible servers have no common probe, so the breaker alone decides
    await _probe_ready(engines, engine, router)
    if not engines.has(engine):
        return
    _check_health(engines, engine, router)
    engines.lost = frozenset(_lost(engines))
    if not engine.up:
        engine.informed = False
        engines.watching.absent(engine.workers())
        return
    now_s = engines.clock()
    may_change = engine.info.can_flip and engines.drains.draining(engine.config.id)
    if not engine.informed or may_change or now_s - engine.informed_at_s >= INFORM_EVERY_S:
        await fetch_server_info(engines, engine, router)
    if not engines.has(engine):
        return
    for worker in engine.workers():
        engines.kv_events.follow(worker, engine.info.kv_source, router)
    await _observe_loads(engines, engine, router)
    engine_id = engine.config.id
    if engine_id not in engines.reading and engines.watching.is_due(engine_id, engines.clock()):
        # In a separate task, since an engine that writes its metrics slowly must not delay its own next probe.
        task = asyncio.get_running_loop().create_task(_observe_metrics(engines, engine, router))
        engines.reading[engine_id] = task
        task.add_done_callback(lambda _: engines.reading.pop(engine_id, None))


async def _probe_ready(engines: Engines, engine: Engine, router: Router) -> None:
    """Set whether an engine is up, and whether it reports that it drains."""
    status, _ = await ask(engine.upstream, "/ready", engine.bearer, ANSWER_S, SMALL_BYTES)
    if status == OWN_FAULT or not engines.has(engine):
        return
    engine.was_ready = status in {200, 404} or (status == 503 and engine.was_ready)
    if engine.was_ready:
        await _probe_bootstrap(engine, engines.clock())
        if not engines.has(engine):
            return
    # SGLang also answers 503 while it hangs. A drain would excuse the 503 of `/health`, and so end the hang.
    drains = engine.was_ready and status == 503 and not engine.health_monitor.unwell
    engines.drain(engine.config.id, "engine", drains, router)
    # Before the engine gets requests: it may have restarted, with an empty cache.
    if engine.was_ready and not engine.serves:
        await fetch_server_info(engines, engine, router)
    if not engines.has(engine):
        return
    fit = engine.recognised and engine.registered and not engine.health_monitor.unwell
    was_up, engine.up = engine.up, engine.was_ready and fit
    if was_up == engine.up:
        return
    engine.down_since_s = engines.clock()
    log.warning(
        "engine %s is %s (/ready answered %s%s%s%s)",
        engine.config.id,
        "up" if engine.up else "down",
        status or "nothing",
        ", /health did not" if engine.health_monitor.unwell else "",
        "" if engine.recognised else ", /server_info not as an engine does",
        "" if engine.registered else ", its bootstrap server does not answer with its ranks",
    )
    for worker in engine.workers():
        router.set_up(worker.id, engine.up)


async def _probe_bootstrap(engine: Engine, now_s: float) -> None:
    """Ask a prefill engine's bootstrap server for the engine's ranks, as decode engines do.

    A bootstrap server on another host than the engine's may be in a network that the proxy cannot reach. So a missing
    answer from another host changes nothing: transfers of KV show whether the bootstrap server works.
    """
    server = engine.bootstrap()
    if server is None:
        engine.registered = True
        return
    if engine.registered and now_s - engine.registered_at_s < REGISTERED_EVERY_S:
        return
    status, _ = await ask(server, ROUTE, "", ANSWER_S, SMALL_BYTES)
    if status == OWN_FAULT or (not status and server.host != engine.upstream.host):
        return
    engine.registered, engine.registered_at_s = status not in _UNREGISTERED, now_s


def _check_health(engines: Engines, engine: Engine, router: Router) -> None:
    """Request `/health` of an engine that answers but shows no progress."""
    now_s, health_monitor = engines.clock(), engine.health_monitor
    if not engine.was_ready:
        health_monitor.restart(now_s)
        return
    works = any(router.running(worker.id) for worker in engine.workers())
    if engine.health_task is None and health_monitor.is_probe_due(works=works, now_s=now_s):
        health_monitor.probe_sent(now_s)
        if engines.peer_updates is not None:
            engines.peer_updates.send_health(engine.config.id, engine.config.url, None)
        engine.health_task = asyncio.get_running_loop().create_task(_request_health(engines, engine))


async def _request_health(engines: Engines, engine: Engine) -> None:
    try:
        began_s = engines.clock()
        status, _ = await ask(engine.upstream, "/health", engine.bearer, HEALTH_TIMEOUT_S, SMALL_BYTES)
        if status == OWN_FAULT or not engines.has(engine):
            return
        if status == 503 and engines.clock() - began_s > DRAIN_ANSWERS_WITHIN_S:
            status = 0
        engines.apply_health(engine.config.id, engine.config.url, status, engines.clock())
        if engines.peer_updates is not None:
            engines.peer_updates.send_health(engine.config.id, engine.config.url, status)
    finally:
        engine.health_task = None


def _lost(engines: Engines) -> list[str]:
    """The ids of engines that are down because they hang, or that have been down for `GONE_S`."""
    gone_s = engines.clock() - GONE_S
    return [
        id_
        for id_, engine in engines.by_id.items()
        if not engine.up and (engine.health_monitor.unwell or engine.down_since_s < gone_s)
    ]


async def fetch_server_info(engines: Engines, engine: Engine, router: Router | None) -> None:
    """Ask an engine for its ranks, page size and role, and pass changes on to the router."""
    memory = engines.memory_of(engine.line)
    status, body = await ask(engine.upstream, "/server_info", engine.bearer, ANSWER_S, INFO_BYTES, memory)
    if not engines.has(engine):
        return
    engine.check_key_accepted(status, "/server_info", "key_file")
    info = read_server_info(body, engine.config, engine.upstream.host) if status == 200 else None
    if info is None:
        if status in {401, 403}:
            engine.recognised = True
        elif 200 <= status < 500:  # a missing answer or a 5xx does not show what kind of server it is
            engine.answered_as_no_engine(status)
        return
    workers_before, info_before = engine.workers(), engine.info
    engine.answered_as_engine(info, engines.clock())
    if router is not None:
        restarted = info_before.started_at is not None and info.started_at != info_before.started_at
        engines.kv_events.engine_restarted(engine.workers() if restarted else ())
        _update_router(router, workers_before, engine.workers(), restarted)
        if workers_before != engine.workers():
            engines.workers_changed()
            draining = engines.drains.draining(engine.config.id)
            for worker in engine.workers():  # a new worker counts as up until it is set
                router.set_up(worker.id, engine.up)
                router.set_draining(worker.id, draining)
        for worker_id in {worker.id for worker in workers_before} - {worker.id for worker in engine.workers()}:
            engines.kv_events.leave(worker_id)
    if engine.rendered_at != info.started_at:
        engine.unsupported = {}
        await _ask_template(engines, engine, info.started_at)


async def _ask_template(engines: Engines, engine: Engine, started_at: object) -> None:
    """Find out whether an engine's template refuses late system messages. Called once for each start of the engine."""
    engine.rendered_at = started_at
    engine.refuses_late_system = await refuses_late_system(engine.upstream, engine.bearer)
    engines.templates_asked()


def _update_router(router: Router, before: list[Worker], now: list[Worker], restarted: bool) -> None:
    """Add new workers of an engine, remove workers that it no longer has, and note a restart as a loss of the cache.

    A worker whose role was switched has lost its cache, so it is removed and added again.
    """
    if before != now:
        stay = {(worker.id, worker.role) for worker in now}
        for worker in before:
            if (worker.id, worker.role) not in stay:
                router.remove_worker(worker.id)
        for worker in now:
            router.add_worker(worker)
    if restarted:
        for worker in now:
            router.worker_restarted(worker.id)


async def _observe_loads(engines: Engines, engine: Engine, router: Router) -> None:
    """Read the engine's loads.

    If a prefill ends while the report is under way, the report may still count its prompt as waiting, although the
    router no longer does. The prompt's tokens are subtracted from the report, or they would look like a prompt that
    another proxy sent. If the report did not count the prompt, the proxy counts too few tokens of other proxies until
    the next report.
    """
    before = {worker.id: router.fleet.ended_prefill_tokens(worker.id) for worker in engine.workers()}
    memory = engines.memory_of(engine.line)
    status, body = await ask(engine.upstream, "/v1/loads", engine.bearer, ANSWER_S, LOADS_BYTES, memory)
    if not engines.has(engine):
        return
    engine.check_key_accepted(status, "/v1/loads", "key_file")  # a restarted engine may require another key
    found = json_object(body) if status == 200 else None
    rows = found.get("loads") if found else None
    rows = rows[:MAX_DP_RANKS] if isinstance(rows, list) else None
    by_rank = {worker.dp_rank: worker for worker in engine.workers()}
    if isinstance(rows, list):
        engine.health_monitor.observe_report(
            [_without_time(row) for row in rows if isinstance(row, dict)], engines.clock()
        )
    for row in rows if isinstance(rows, list) else []:
        worker = by_rank.get(count(row, "dp_rank") or 0) if isinstance(row, dict) else None
        if worker is not None:
            ended = router.fleet.ended_prefill_tokens(worker.id)
            since = max(0, ended - before.get(worker.id, ended))  # below 0 if the worker was removed and added again
            router.observe_loads(worker.id, _loads(row, since), engines.clock())


async def _observe_metrics(engines: Engines, engine: Engine, router: Router) -> None:
    """Read the engine's metrics: each time for conditions and for the comparison of the engine's counts with the
    ledger's, and every `MOVES_EVERY_S` for the cost of moves between tiers.
    """
    memory = engines.memory_of(engine.line)
    status, body = await ask(engine.upstream, "/metrics", engine.bearer, ANSWER_S, METRICS_BYTES, memory)
    if status != 200:
        return
    try:
        read, now_s = await _read_metrics(engine, body), engines.clock()
        if not engines.has(engine):
            return
        engines.watching.observe(engine.workers(), reports_of(read.reports), now_s)
        if engine.info.host_cache and now_s - engine.moves_at_s >= MOVES_EVERY_S:
            engine.moves_at_s = now_s
            _observe_moves(engine, router, totals_of(read.moves))
        counts = counts_of(read.counts)
        if counts is not None:
            await engines.note_counts(engine, counts)
    except Exception as error:
        log.error("reading the metrics of engine %s failed: %s", engine.config.id, type(error).__name__)


async def _read_metrics(engine: Engine, body: bytes) -> _Metrics:
    """Read an engine's metrics, some lines in each iteration of the event loop, so that a long text delays nothing but
    the reading of this text.
    """
    read, at = _Metrics({}, {}, {}), 0
    while at < len(body):
        end = body.rfind(b"\n", at, at + METRICS_PORTION_BYTES) + 1 or body.find(b"\n", at) + 1 or len(body)
        text, at = body[at:end].decode("utf-8", "replace"), end
        add_reports(read.reports, text)
        add_counts(read.counts, text)
        if engine.info.host_cache:
            add_totals(read.moves, text)
        await asyncio.sleep(0)
    return read


def _observe_moves(engine: Engine, router: Router, moves_now: dict[int, MoveTotals]) -> None:
    before, engine.moves = engine.moves, moves_now
    for worker in engine.workers():
        now, then = engine.moves.get(worker.dp_rank), before.get(worker.dp_rank)
        if now is None or then is None:
            continue
        moves: list[tuple[Tier, tuple[int, float]]] = [
            ("host", now.load_since(then)),
            ("storage", now.fetch_since(then)),
        ]
        for tier, (tokens, seconds) in moves:
            if tokens > 0 and seconds > 0:
                router.observe_moves(worker.id, tier, tokens, seconds)


def _without_time(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `/v1/loads` without its timestamp, which changes even if the engine makes no progress."""
    return {name: value for name, value in row.items() if name != "timestamp"}


def _loads(row: dict[str, Any], ended_tokens: int) -> EngineLoads:
    """The loads in a row, minus `ended_tokens`: the tokens of prompts whose prefill has ended since the row was
    requested."""
    waiting = count(row, "num_waiting_uncached_tokens")
    return EngineLoads(
        running=count(row, "num_running_reqs"),
        waiting_uncached_tokens=None if waiting is None else max(0, waiting - ended_tokens),
        used_tokens=count(row, "num_used_tokens"),
        prefill_uncached_tokens_total=count(row, "total_prefill_uncached_tokens"),
        prefill_busy_us_total=count(row, "total_prefill_busy_us"),
        waiting=count(row, "num_waiting_reqs"),
        total_tokens=count(row, "num_total_tokens"),
        max_running=count(row, "max_running_requests"),
        max_tokens=count(row, "max_total_num_tokens"),
    )
