"""The paths of an engine and their handlers. A handler answers at once, or when the scheduler has done the work."""

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qs

from warmroute_backend.costs import Role
from warmroute_lab.engine.http import fields
from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.fields import Body
from warmroute_lab.engine.http.http1 import EngineExchange
from warmroute_lab.engine.model import prompt
from warmroute_lab.engine.request.api import encode
from warmroute_lab.engine.request.prompt_request import Kind, overridden, parse, read
from warmroute_lab.engine.request.reply import DONE
from warmroute_lab.engine.routes import metrics
from warmroute_lab.engine.routes.faults import Faults
from warmroute_lab.engine.routes.metrics import HIDDEN_HITS, Shown
from warmroute_lab.engine.serving.bootstrap import route
from warmroute_lab.engine.serving.engine import EmbeddedEngine

# Which API key a path needs; the storage backend (attached and detached at run time); the switch of an engine between
# prefill and decode.
#
# With `--api-key`, all paths but health, readiness and metrics need `Authorization: Bearer <key>`. With
# `--admin-api-key`, control paths need that key instead; without `--api-key`, all other paths stay open. Without
# `--admin-api-key`, the storage backend can be cleared, but not read, attached or detached.

BACKEND: Final = "/hicache/storage-backend"
PATHS: Final = frozenset({"/flush_cache", "/abort_request", "/pd_role_switch", BACKEND, f"{BACKEND}/clear"})
OPEN: Final = ("/health", "/ready", "/metrics")
"""Paths that begin with these strings need no key."""

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


class Admin:
    """Checks the keys of all paths, and handles the paths of the storage backend."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.handlers: dict[str, dict[str, Callable[[EngineExchange], None]]] = {
            "GET": {BACKEND: self._status},
            "PUT": {BACKEND: self._attach},
            "DELETE": {BACKEND: self._detach},
            "POST": {f"{BACKEND}/clear": self._clear},
        }

    def refuses(self, exchange: EngineExchange) -> bool:
        """Whether the request lacks the key for its path. If so, this method has answered it."""
        settings = self._engine.settings
        if exchange.path.startswith(OPEN):
            return False
        key = settings.api_key
        if exchange.path in PATHS:
            key = settings.admin_api_key or key
        if key is not None and not _shows(exchange, key):
            exchange.respond(401, encode({"error": "Unauthorized"}))
            return True
        if exchange.path == BACKEND and settings.admin_api_key is None:
            exchange.respond(400, encode({"error": _NO_KEY}))
            return True
        return False

    def _status(self, exchange: EngineExchange) -> None:
        storage = self._engine.storage
        exchange.respond(200, encode(dict.fromkeys(_FIELDS) if storage is None else storage.status()))

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


# Requests that a browser sends for a web page of another host. Such a page could use any engine without a key, so they
# are refused.
#
# Browsers name the page's origin in a POST, and tell this machine where each request comes from (Fetch Metadata). The
# name of a page's host may resolve to this machine, so the name in `Host` proves nothing.

_OWN = frozenset({b"none", b""})
"""Values of `sec-fetch-site` for an address that a person has typed, and for a client that is not a browser."""


def is_of_another_page(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a web page has sent the request. The engine has no pages, so each page is another host's."""
    return b"origin" in headers or headers.get(b"sec-fetch-site", b"") not in _OWN


_log = logging.getLogger(__name__)
BOOTSTRAP_ROOM = re.compile(r"[0-9]{1,20}")
"""The number of a bootstrap room in a path. A number of 64 bits has at most 20 digits."""

Handler = Callable[[EngineExchange], None]


class Routes:
    """The HTTP surface of an engine. `bootstrap_port` is set by the server once it listens."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._faults = Faults()
        self._shown = Shown()
        self.bootstrap_port: int | None = None
        gets: dict[str, Handler] = {
            "/health": self._health,
            "/health_generate": self._health,
            "/ready": self._ready,
            "/ping": self._ready,
            "/model_info": self._json(metrics.model_info),
            "/get_model_info": self._json(metrics.model_info),
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/loads": self._loads,
            "/v1/models": self._json(metrics.models),
            "/metrics": self._metrics,
            "/flush_cache": self._flush,
            "/engine/finished": self._finished,
        }
        posts: dict[str, Handler] = {
            "/v1/chat/completions": self._inference("chat"),
            "/v1/completions": self._inference("completion"),
            "/generate": self._inference("generate"),
            "/v1/tokenize": self._tokenize,
            "/tokenize": self._tokenize,
            "/flush_cache": self._flush,
            "/abort_request": self._abort,
            "/engine/faults": self._arm,
            "/engine/conditions": self._show,
            "/pd_role_switch": self._flip,
            "/engine/draining": self._set_draining,
        }
        self._admin = Admin(engine)
        self._table: dict[str, dict[str, Handler]] = {**self._admin.handlers, "HEAD": {}}
        self._table["GET"] = {**gets, **self._admin.handlers["GET"]}
        self._table["POST"] = {**posts, **self._admin.handlers["POST"]}

    def handle(self, exchange: EngineExchange) -> None:
        handler = self._table.get(exchange.method, {}).get(exchange.path)
        if exchange.method == "GET" and exchange.path.startswith("/v1/models/"):
            handler = self._model
        try:
            if is_of_another_page(exchange.headers):
                exchange.respond(403, encode({"detail": "pages in browsers cannot use this engine"}))
                return
            if self._admin.refuses(exchange):
                return
            if handler is None:
                known = any(exchange.path in table for table in self._table.values())
                detail = "Method Not Allowed" if known else "Not Found"
                exchange.respond(405 if known else 404, encode({"detail": detail}))
                return
            handler(exchange)
        except Refusal as refusal:
            exchange.respond(refusal.status, refusal.body(native=exchange.path == "/generate"))
        except Exception as error:  # our own error must not end the connection's other requests
            # Only the error's name is logged: a message may quote a prompt.
            _log.error("%s while answering %s", type(error).__name__, exchange.path)
            exchange.respond(500, Refusal(500, "internal error").body(native=exchange.path == "/generate"))

    def handle_bootstrap(self, exchange: EngineExchange) -> None:
        settings = self._engine.settings
        number = exchange.path.removeprefix("/room/")
        if is_of_another_page(exchange.headers):
            exchange.respond(403, b'{"message":"Forbidden"}')
        elif exchange.method == "POST" and number != exchange.path and BOOTSTRAP_ROOM.fullmatch(number):
            self._engine.bootstrap_rooms.call(int(number), exchange)
        elif exchange.path == "/health":
            exchange.respond(200, b"OK", _TEXT)
        elif exchange.path == "/route":
            status, kind, answer = route(exchange.query, settings.dp_size, settings.page_size, settings.kv_cache_dtype)
            exchange.respond(status, answer, kind)
        else:
            exchange.respond(404, b'{"message":"Not Found"}')

    # --- inference -----------------------------------------------------------------------------------------------

    def _inference(self, kind: Kind) -> Handler:
        def handler(exchange: EngineExchange) -> None:
            body: Body = _json_body(exchange)
            if self._engine.settings.header_overrides and kind != "completion":
                body = overridden(body, exchange.headers)
            try:
                requests = read(kind, body, exchange.headers, obey_prompts=self._engine.settings.obey_prompts)
                self._engine.submit(requests, self._faults.struck(exchange))
            except Refusal as refusal:
                if kind != "generate" or not refusal.semantic or body.get("stream") is not True:
                    raise
                exchange.start_stream()  # this endpoint begins a stream before it checks the request
                exchange.send(refusal.native_event() + DONE)
                exchange.end()

        return handler

    def _tokenize(self, exchange: EngineExchange) -> None:
        """Token ids of a chat, of a prompt, or of each of several prompts."""
        body = _json_body(exchange)
        if (body.get("prompt") is None) == (body.get("messages") is None):
            raise Refusal.schema("Exactly one of 'prompt' or 'messages' must be provided.")
        requests = read("chat" if body.get("messages") is not None else "completion", body, exchange.headers)
        step = prompt.TOKEN_BYTES
        found = [
            [int.from_bytes(request.rendered[i : i + step], "little") for i in range(0, len(request.rendered), step)]
            for request in requests
        ]
        counts = [len(ids) for ids in found]
        ids, count = (found, counts) if requests[0].batch else (found[0], counts[0])
        length = self._engine.settings.context_length
        exchange.respond(200, encode({"tokens": ids, "count": count, "max_model_len": length}))

    # --- control -------------------------------------------------------------------------------------------------

    def _health(self, exchange: EngineExchange) -> None:
        """Active check: answers when the first rank's scheduler has ended its current step."""
        if self._engine.draining:
            exchange.respond(503, b"", _TEXT)
        else:
            self._engine.pacers[0].probe(lambda: exchange.respond(200, b"", _TEXT))

    def _ready(self, exchange: EngineExchange) -> None:
        exchange.respond(503 if self._engine.draining else 200, b"", _TEXT)

    def _abort(self, exchange: EngineExchange) -> None:
        body = parse(exchange.body)
        self._engine.abort(fields.string(body, "rid") or "", everything=fields.flag(body, "abort_all"))
        exchange.respond(200, b"", _TEXT)

    def _flush(self, exchange: EngineExchange) -> None:
        if self._engine.flush():
            exchange.respond(200, b"Cache flushed.\n", _TEXT)
        else:
            exchange.respond(400, b"Flush cache failed.\n", _TEXT)

    # --- information ---------------------------------------------------------------------------------------------

    def _json(self, make: Callable[[EmbeddedEngine], Any]) -> Handler:
        return lambda exchange: exchange.respond(200, encode(make(self._engine)))

    def _server_info(self, exchange: EngineExchange) -> None:
        exchange.respond(200, encode(metrics.server_info(self._engine, self.bootstrap_port)))

    def _loads(self, exchange: EngineExchange) -> None:
        query = {name: values[-1] for name, values in parse_qs(exchange.query).items()}
        sections = {name.strip() for name in query["include"].split(",")} if query.get("include") else {"all"}
        if not sections <= metrics.SECTIONS:
            raise Refusal.http(f"Invalid include sections: {sections - metrics.SECTIONS}")
        exchange.respond(200, encode(metrics.loads(self._engine, fields.integer(query, "dp_rank"), sections)))

    def _model(self, exchange: EngineExchange) -> None:
        name = exchange.path.removeprefix("/v1/models/")
        cards = [card for card in metrics.models(self._engine)["data"] if card["id"] == name]
        if cards:
            exchange.respond(200, encode(cards[0]))
            return
        error = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error", "param": "model"}
        exchange.respond(404, encode({"error": {**error, "code": "model_not_found"}}))

    def _metrics(self, exchange: EngineExchange) -> None:
        exchange.respond(
            200, metrics.prometheus(self._engine, self._shown).encode(), b"text/plain; version=0.0.4; charset=utf-8"
        )

    def _arm(self, exchange: EngineExchange) -> None:
        """Break the next requests as ordered. SGLang has no such path."""
        self._faults.arm(exchange.body)
        exchange.respond(200, b"{}")

    def _show(self, exchange: EngineExchange) -> None:
        """Show conditions: report like an engine in trouble. SGLang has no such path."""
        self._shown.order(exchange.body)
        self._faults.hides_hits = HIDDEN_HITS in self._shown.names
        exchange.respond(200, b"{}")

    def _flip(self, exchange: EngineExchange) -> None:
        """Switch between prefill and decode, as SGLang's `/pd_role_switch` does."""
        status, answer = role_switch(self._engine, parse(exchange.body))
        exchange.respond(status, encode(answer))

    def _set_draining(self, exchange: EngineExchange) -> None:
        """Start or stop draining. SGLang has no such path.

        As in SGLang after SIGTERM, `/ready` and `/health` answer 503 while the engine still serves requests.
        """
        self._engine.draining = fields.flag(parse(exchange.body), "draining")
        exchange.respond(200, b"{}")

    def _finished(self, exchange: EngineExchange) -> None:
        """The log of ended requests, for audits. SGLang has no such path."""
        engine = self._engine
        body = {"running": len(engine.jobs), "total": engine.finished_total, "finished": list(engine.finished)}
        exchange.respond(200, encode(body))


def _json_body(exchange: EngineExchange) -> dict[str, Any]:
    kind = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refusal.schema("Unsupported Media Type: Only 'application/json' is allowed")
    return parse(exchange.body)
