"""One engine: its connections, its last reports, and whether it answers."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from warmroute_proxy.core.base.role import Role
from warmroute_proxy.core.load.health_monitor import HealthMonitor
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base.config import EngineConfig
from warmroute_proxy.server.base.secrets import bearer
from warmroute_proxy.server.engines.engine_headers import CONTENT_TYPE
from warmroute_proxy.server.engines.kv_move_costs import MoveTotals
from warmroute_proxy.server.engines.server_info import NO_ENGINE, ServerInfo
from warmroute_proxy.server.engines.small_get import SMALL_BYTES, Collector
from warmroute_proxy.server.engines.upstream import Upstream

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S: Final = 5.0
REGISTERED_EVERY_S: Final = 5.0
MOVES_EVERY_S: Final = 15.0
LOG_EVERY_S: Final = 10.0
MAX_UNSUPPORTED: Final = 1024  # for how many models and share groups a server's refusals are remembered
_NONE: Final[frozenset[str]] = frozenset()


class RefusalLog:
    """Lets one refusal of each status be logged every `LOG_EVERY_S` seconds, since clients may cause any number."""

    def __init__(self) -> None:
        self._logged_s: dict[int, float] = {}  # status -> time of its last log line

    def is_logged(self, status: int, now_s: float) -> bool:
        if now_s - self._logged_s.get(status, -LOG_EVERY_S) < LOG_EVERY_S:
            return False
        self._logged_s[status] = now_s
        return True


class Engine:
    """One engine. `probing` sets the attributes that are learned from its answers."""

    unsupported: Mapping[tuple[str, str], frozenset[str]] = MappingProxyType({})
    """What the engine has refused (`dialects.unsupported`), by salt and model. The salt keeps share groups apart, so
    that no tenant decides what another one's chats lack.
    """

    def __init__(self, config: EngineConfig, connect_timeout_s: float, clock: Callable[[], float]) -> None:
        self.config = config
        self.upstream = Upstream(config.url, connect_timeout_s, clock, config.http_proxy)
        self._bootstrap: Upstream | None = None
        self.bearer = self.admin_bearer = ""
        """Header lines with the engine's keys: for all requests, and for control routes; empty without a key."""
        self._connect_timeout_s = connect_timeout_s
        self.is_sglang = config.kind == "sglang"
        self.shares_answers = self.is_sglang or config.provider.salted
        """Whether the engine counts a prompt as cached once the first of several answers has computed it, as SGLang and
        vLLM do.
        """
        self._session_header = config.provider.header
        self._heads: dict[str, bytes] = {}  # path -> head of its requests; the code uses only two paths
        self._key_refused = False
        self.read_keys()
        self.refusals = RefusalLog()
        self.thoughts = ""
        """The JSON member in which a server other than SGLang writes and reads reasoning; empty if unknown."""

        self.info = ServerInfo(bootstrap_port=config.bootstrap_port)
        self.informed = False
        """Whether the engine has reported `info` since it came up."""

        self.recognised = False
        """Whether the last answer at `/server_info` was an engine's. A refusal of the proxy's key counts as one."""

        self._logged_unknown = False
        self.informed_at_s = 0.0
        self.rendered_at: object = self  # the start for which the template was tested; `self` equals no start
        self.refuses_late_system = False
        """Whether the chat template takes a system message only at the beginning; tested once after each start."""

        self.moves: dict[int, MoveTotals] = {}
        """Rank -> its tokens moved between cache tiers, as last read."""

        self.moves_at_s = -MOVES_EVERY_S
        self.up = True
        """Whether the last probe succeeded. A new engine counts as up, so that requests need not wait for a probe."""

        self.registered = True
        """False if this is a prefill engine whose bootstrap server is known to lack the engine's ranks."""
        self.registered_at_s = -REGISTERED_EVERY_S
        self.was_ready = False
        """Whether the engine has been ready since its start. If so, a 503 means that it drains, else that it starts."""

        self.down_since_s = 0.0
        self.health_monitor = HealthMonitor(clock())
        self.health_task: asyncio.Task[None] | None = None
        """The running request to `/health`, if any. There is at most one."""

    def read_keys(self) -> bool:
        """Read the key files, for requests that are sent from now on. Returns whether a key has changed.

        Raises: SecretError. The old keys then stay in use.
        """
        within, before = self.config.keys_within, (self.bearer, self.admin_bearer)
        of_requests = bearer(self.config.key_file, within)
        of_control = bearer(self.config.admin_key_file, within) or of_requests
        if before == (of_requests, of_control):
            return False
        self.bearer, self.admin_bearer = of_requests, of_control
        self._heads.clear()
        self._key_refused = False
        return True

    @property
    def line(self) -> str:
        """The name under which work and memory for this engine alone count. No tenant has such a name."""
        return f"@{self.config.id}"

    @property
    def serves(self) -> bool:
        """Whether the engine is up and answers as an engine does. Servers other than SGLang only need to be up."""
        return self.up and (self.recognised or not self.is_sglang)

    @property
    def unavailable(self) -> str:
        """Why the engine serves nothing, in words for clients, so without its name; empty if the reason is unknown."""
        if not self.up and not self.registered:
            return "prefill engines whose bootstrap server does not answer"
        if not self.up:
            return "engines that do not answer" if self.was_ready else "engines that do not answer yet, or start"
        if self.is_sglang and not self.recognised:
            return "engines that refuse the key of the proxy" if self._key_refused else "servers that are not engines"
        return ""

    @property
    def role(self) -> Role:
        """The role that the engine reports (it changes with a switch of roles), or else the role in the config."""
        return self.info.role or self.config.role

    def bootstrap(self) -> Upstream | None:
        """The server by which decode engines find a prefill engine's KV; None for other roles or an unknown port."""
        port, host = self.info.bootstrap_port, self.config.bootstrap_host or self.upstream.host
        if self.role != "prefill" or port is None:
            return None
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        if self._bootstrap is None or self._bootstrap.url != url:
            self._close_bootstrap()
            self._bootstrap = Upstream(url, self._connect_timeout_s, self.upstream.clock)
        return self._bootstrap

    def workers(self) -> list[Worker]:
        config, info = self.config, self.info
        many = info.dp_size > 1
        role = self.role
        caches_prompts = role != "decode"
        store = (config.store or config.id) if info.has_store and caches_prompts else None
        return [
            Worker(
                id=f"{config.id}:{rank}" if many else config.id,
                engine=config.id,
                dp_rank=rank,
                role=role,
                models=config.models,
                host_cache=info.host_cache and caches_prompts,
                store=store,
                max_running=config.max_running,
                page_tokens=info.page_tokens,
            )
            for rank in range(info.dp_size)
        ]

    def head(self, path: str, headers: str, session: str | None = None) -> bytes:
        """The head of an inference request, up to the value of `content-length`.

        `headers`: from `engine_headers`; `session`: the session's hash, for a server that takes it in a header.
        """
        if session is not None and self._session_header:
            headers += f"{self._session_header}: {session}\r\n"
        if headers != CONTENT_TYPE:
            return self.upstream.head("POST", path, headers + self.bearer)
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = self.upstream.head("POST", path, headers + self.bearer)
        return head

    def remember_lacks(self, salt: str, model: str, lacks: frozenset[str]) -> None:
        """Remember what the engine has refused, and without which it has served a chat."""
        known = self.unsupported.get((salt, model), _NONE)
        if not lacks <= known:
            before = self.unsupported if len(self.unsupported) < MAX_UNSUPPORTED else {}
            self.unsupported = {**before, (salt, model): known | lacks}

    def abort(self, rid: str) -> None:
        """Ask the engine to stop one request, without waiting for its answer."""
        if self.is_sglang:
            body = msgspec.json.encode({"rid": rid})
            leg = Collector(self._abort_answered, SMALL_BYTES).leg
            headers = f"content-type: application/json\r\n{self.admin_bearer}"
            self.upstream.send("POST", "/abort_request", headers, [body], leg)
            asyncio.get_running_loop().call_later(ABORT_TIMEOUT_S, leg.close)

    def close(self) -> None:
        if self.health_task is not None:
            self.health_task.cancel()
        self.upstream.close()
        self._close_bootstrap()

    def _close_bootstrap(self) -> None:
        if self._bootstrap is not None:
            self._bootstrap.close()

    def _abort_answered(self, status: int, _body: bytes) -> None:
        self.check_key_accepted(status, "/abort_request", "admin_key_file")

    def answered_as_no_engine(self, status: int) -> None:
        """Record that something other than an engine answers at the address. Logged once until an engine answers."""
        self.recognised = False
        if not self._logged_unknown:
            self._logged_unknown = True
            where = self.config.url
            log.error("engine %s: %s answered %d at /server_info, %s", self.config.id, where, status, NO_ENGINE)

    def answered_as_engine(self, info: ServerInfo, now_s: float) -> None:
        self.recognised, self._logged_unknown = True, False
        self.informed, self.informed_at_s = True, now_s
        self.info = info

    def check_key_accepted(self, status: int, path: str, key: str) -> None:
        """Log once if this engine refuses the proxy's key. Later refusals of the key are not logged."""
        if status in {401, 403} and not self._key_refused:
            self._key_refused = True
            log.error("engine %s answers %d at %s: its %s is missing or wrong", self.config.id, status, path, key)
