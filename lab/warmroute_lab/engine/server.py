"""An engine process: listens, announces its address, and stops."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable

from warmroute_lab.engine.http.http1 import EngineExchange, HttpProtocol
from warmroute_lab.engine.routes.routes import Routes
from warmroute_lab.engine.serving.engine import EmbeddedEngine
from warmroute_lab.engine.settings import Settings

DRAIN_S = 2.0
FLUSH_S = 0.02
START_LOG = "warmroute_lab.engine.start"
"""The logger of the two lines that SGLang writes about its KV pool, in SGLang's words."""
BACKLOG = 4096


class StartError(Exception):
    """An address or a directory cannot be used; the message says which one, and why."""


async def serve(settings: Settings, host: str, port: int, bootstrap_port: int) -> None:
    """Run an engine until SIGTERM or SIGINT, then let live requests end for at most `DRAIN_S`.

    Raises: StartError.
    """
    loop = asyncio.get_running_loop()
    try:
        engine = EmbeddedEngine(settings)
    except OSError as error:  # from the port of KV events or the directory of the storage tier
        raise StartError(str(error)) from None
    routes = Routes(engine)
    connections: set[HttpProtocol] = set()
    servers = [await _listen(routes.handle, connections, host, port)]
    if settings.role == "prefill" or settings.role_switch:
        servers.append(await _listen(routes.handle_bootstrap, connections, host, bootstrap_port))
        routes.bootstrap_port = _port(servers[1])
    if engine.feed is not None:
        engine.feed.open()
    _log_pool(settings)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    _announce(f"http://{_url_host(host)}:{_port(servers[0])}", routes.bootstrap_port)
    await stopped.wait()
    engine.draining = True
    for server in servers:
        server.close()
    await _drain(engine, connections)
    if engine.feed is not None:
        engine.feed.close()


async def _drain(engine: EmbeddedEngine, connections: set[HttpProtocol]) -> None:
    """Wait for live requests, abort what is left, close every connection."""
    for connection in list(connections):
        connection.close_if_idle()
    if engine.jobs:
        engine.emptied.clear()
        try:
            await asyncio.wait_for(engine.emptied.wait(), DRAIN_S)
        except TimeoutError:
            engine.abort("", everything=True)
    await asyncio.sleep(FLUSH_S)
    for connection in list(connections):
        connection.abort()


async def _listen(
    handle: Callable[[EngineExchange], None], connections: set[HttpProtocol], host: str, port: int
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(lambda: HttpProtocol(handle, connections), host, port, backlog=BACKLOG)
    except OSError as error:
        raise StartError(f"cannot listen on {_url_host(host)}:{port}: {error.strerror or error}") from None


def _log_pool(settings: Settings) -> None:
    """Log the two lines that a launcher compares with its plan of the pool."""
    log, tokens = logging.getLogger(START_LOG), settings.kv_tokens // settings.page_size * settings.page_size
    size_gb = tokens * settings.kv_bytes_per_token / 2**30
    log.info(
        "KV Cache is allocated. dtype: %s, #tokens: %d, KV size: %.2f GB", settings.kv_cache_dtype, tokens, size_gb
    )
    log.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%d, max_running_requests=%d, context_len=%d",
        tokens,
        settings.costs.chunk_tokens,
        settings.max_running,
        settings.context_length,
    )


def _port(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _announce(url: str, bootstrap_port: int | None) -> None:
    line = {"event": "listening", "url": url, "bootstrap_port": bootstrap_port, "pid": os.getpid()}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
