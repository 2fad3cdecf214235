"""Keys of paths, what is attached or detached at run time, and the switch between prefill and decode.

With `--api-key`, all paths but health and metrics need `Authorization: Bearer <key>`. With `--admin-api-key`, control
paths need that key instead; alone it leaves inference and information open. Without either, control paths are open,
except for the storage backend: it can be cleared, but not attached or detached.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from warmroute_backend.costs import Role
from warmroute_lab.engine.http import fields
from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.fields import Body
from warmroute_lab.engine.http.http1 import EngineExchange
from warmroute_lab.engine.request.prompt_request import parse
from warmroute_lab.engine.serving.engine import EmbeddedEngine

BACKEND: Final = "/hicache/storage-backend"
PATHS: Final = frozenset({"/flush_cache", "/abort_request", "/pd_role_switch", BACKEND, f"{BACKEND}/clear"})
OPEN: Final = ("/health", "/ready", "/metrics")
"""Paths that begin so need no key."""

_TEXT = b"text/plain; charset=utf-8"
_NO_KEY = (
    "This endpoint requires admin API key, but this server was started without one (admin-api-key). "
    "Restart with --admin-api-key to enable."
)
_FIELDS = (
    "hicache_storage_backend",
    "hicache_storage_backend_extra_config_json",
    "hicache_storage_prefetch_policy",
    "hicache_write_policy",
)
_encode = msgspec.json.Encoder().encode


class Admin:
    """The guard of all paths, and the handlers of the storage backend by method and path."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.handlers: dict[str, dict[str, Callable[[EngineExchange], None]]] = {
            "GET": {BACKEND: self._status},
            "PUT": {BACKEND: self._attach},
            "DELETE": {BACKEND: self._detach},
            "POST": {f"{BACKEND}/clear": self._clear},
        }

    def refuses(self, exchange: EngineExchange) -> bool:
        """Whether the request lacks the key for its path; it has been answered then."""
        settings = self._engine.settings
        if exchange.path.startswith(OPEN):
            return False
        key = settings.api_key
        if exchange.path in PATHS:
            key = settings.admin_api_key or key
        if key is not None and not _shows(exchange, key):
            exchange.respond(401, _encode({"error": "Unauthorized"}))
            return True
        if exchange.path == BACKEND and settings.admin_api_key is None:
            exchange.respond(400, _encode({"error": _NO_KEY}))
            return True
        return False

    def _status(self, exchange: EngineExchange) -> None:
        storage = self._engine.storage
        exchange.respond(200, _encode(dict.fromkeys(_FIELDS) if storage is None else storage.status()))

    def _attach(self, exchange: EngineExchange) -> None:
        body = parse(exchange.body)
        changes = {name: fields.string(body, name) for name in _FIELDS}
        if changes[_FIELDS[0]] is None:
            raise Refusal.schema(f"{_FIELDS[0]} is missing")
        storage = self._engine.storage
        if storage is None:
            done, message = False, "Hierarchical cache is not enabled."
        elif not self._engine.idle():
            done, message = False, "Reject attach: scheduler is not idle."
        else:
            done, message = storage.attach(changes)
        head = "HiCache storage backend attached." if done else "Failed to attach HiCache storage backend."
        exchange.respond(200 if done else 400, f"{head}\n{message}\n".encode(), _TEXT)

    def _detach(self, exchange: EngineExchange) -> None:
        storage = self._engine.storage
        if storage is None or self._engine.idle():
            message = "HiCache storage backend is detached." if storage is None else storage.detach()
            exchange.respond(200, f"HiCache storage backend detached.\n{message}\n".encode(), _TEXT)
        else:
            message = "Reject detach: scheduler is not idle."
            exchange.respond(400, f"Failed to detach HiCache storage backend.\n{message}\n".encode(), _TEXT)

    def _clear(self, exchange: EngineExchange) -> None:
        storage = self._engine.storage
        if storage is not None and storage.store is not None:
            storage.store.clear()
        status = 400 if storage is None else 200
        exchange.respond(status, b"Hierarchical cache storage backend cleared.\n", _TEXT)


def _shows(exchange: EngineExchange, key: str) -> bool:
    scheme, _, given = exchange.headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and secrets.compare_digest(given, key.encode())


_ROLES = ("prefill", "decode")


def role_switch(engine: EmbeddedEngine, body: Body) -> tuple[int, dict[str, Any]]:
    old, new = engine.settings.role, (fields.string(body, "new_role") or "").lower()
    reason = _reason(engine, new)
    message = reason or ("already in target role" if new == old else "ok")
    if reason is None and new != old:
        engine.switch_role(cast("Role", new))
    answer = {"success": reason is None, "message": message, "old_role": old, "new_role": new}
    return 400 if reason else 200, {**answer, "safe_to_restore": reason is not None}


def _reason(engine: EmbeddedEngine, new: str) -> str | None:
    if not engine.settings.role_switch:
        return "--enable-pd-role-switch is not set on this server"
    if new not in _ROLES:
        return f"invalid new_role={new!r}"
    if not engine.idle():
        return "instance is not idle; drain all requests before switching"
    return None
