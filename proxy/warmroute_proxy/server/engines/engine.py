"""One engine: its connections, and what it last said of itself."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from warmroute_proxy.core.load.health_monitor import HealthMonitor
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.secrets import bearer
from warmroute_proxy.server.engines.kv_events import KvSource
from warmroute_proxy.server.engines.kv_move_costs import Totals
from warmroute_proxy.server.engines.small_get import Collector
from warmroute_proxy.server.engines.upstream import Upstream
from warmroute_proxy.server.request.dispatch import CONTENT_TYPE

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S: Final = 5.0
MOVES_EVERY_S: Final = 15.0
DEFAULT_PAGE_TOKENS: Final = 64


class Engine:
    """One engine and what it last said of itself."""

    def __init__(self, config: EngineConfig, connect_timeout_s: float, clock: Callable[[], float]) -> None:
        self.config = config
        self.upstream = Upstream(config.url, connect_timeout_s, clock)
        self.bearer = bearer(config.key_file)
        """The header line with its key, for everything that it is asked; empty where it wants none."""

        self.is_sglang = config.kind == "sglang"
        self._heads: dict[str, bytes] = {}  # by path; the code has two
        self._admin_bearer = bearer(config.admin_key_file) or self.bearer
        self._key_refused = False
        self.dp_size = 1
        self.page_tokens = DEFAULT_PAGE_TOKENS
        self.bootstrap_port = config.bootstrap_port
        self.started_at: object = None
        self.host_cache = False
        self.has_store = False
        self.kv_source: KvSource | None = None
        self.moves: dict[int, Totals] = {}  # by rank, as last read
        self.moves_at_s = -MOVES_EVERY_S
        self.informed_at_s = 0.0
        self.up = True  # until a probe says otherwise: an engine is given the benefit of the doubt
        self.was_ready = False  # since it began: a 503 then means that it wants no more work, not that it starts
        self.down_since_s = 0.0
        self.health_monitor = HealthMonitor(clock())
        self.asking: asyncio.Task[None] | None = None  # `/health`: one at a time
        self.informed = False

    def workers(self) -> list[Worker]:
        """One worker a rank."""
        config = self.config
        many = self.dp_size > 1
        holds = config.role != "decode"
        store = (config.store or config.id) if self.has_store and holds else None
        return [
            Worker(
                f"{config.id}:{rank}" if many else config.id,
                config.id,
                rank,
                config.role,
                config.models,
                self.host_cache and holds,
                store,
                config.max_running,
            )
            for rank in range(self.dp_size)
        ]

    def head(self, path: str, headers: str) -> bytes:
        """The head of a turn's request up to its length; `headers`: what goes with it, see `engine_headers`."""
        if headers != CONTENT_TYPE:
            return self.upstream.head("POST", path, headers + self.bearer)
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = self.upstream.head("POST", path, headers + self.bearer)
        return head

    def abort(self, rid: str) -> None:
        """Ask the engine to stop one request; told, not waited for."""
        if self.is_sglang:
            body = msgspec.json.encode({"rid": rid})
            leg = Collector(self._abort_answered).leg
            headers = f"content-type: application/json\r\n{self._admin_bearer}"
            self.upstream.send("POST", "/abort_request", headers, [body], leg)
            asyncio.get_running_loop().call_later(ABORT_TIMEOUT_S, leg.close)

    def _abort_answered(self, status: int, _body: bytes) -> None:
        self.judge_key(status, "/abort_request", "admin_key_file")

    def judge_key(self, status: int, path: str, key: str) -> None:
        """Say once in this engine's life that it does not take our key: what hangs on it fails in silence."""
        if status in {401, 403} and not self._key_refused:
            self._key_refused = True
            log.error("engine %s answers %d at %s: its %s is missing or wrong", self.config.id, status, path, key)
