"""Which path does what. A handler answers its exchange itself, now or when the scheduler is that far."""

import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from warmroute_lab.engine.http import fields
from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.http.fields import Body
from warmroute_lab.engine.http.http1 import EngineExchange
from warmroute_lab.engine.model import prompt
from warmroute_lab.engine.request.api import encode
from warmroute_lab.engine.request.prompt_request import Kind, overridden, parse, read
from warmroute_lab.engine.request.reply import DONE
from warmroute_lab.engine.routes import metrics
from warmroute_lab.engine.routes.admin import Admin, role_switch
from warmroute_lab.engine.routes.browsers import is_of_another_page
from warmroute_lab.engine.routes.faults import Faults
from warmroute_lab.engine.routes.shown import HIDDEN_HITS, Shown
from warmroute_lab.engine.serving.bootstrap import route
from warmroute_lab.engine.serving.engine import EmbeddedEngine

_log = logging.getLogger(__name__)
_TEXT = b"text/plain; charset=utf-8"
BOOTSTRAP_ROOM = re.compile(r"[0-9]{1,20}")
"""The number of a bootstrap room in a path: 64 bits."""

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
        except Exception as error:  # a fault of ours must not take the connection's other requests down
            # The name only: a message may quote a prompt.
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
                exchange.start_stream()  # this endpoint's streams begin before they are looked into
                exchange.send(refusal.native_event() + DONE)
                exchange.end()

        return handler

    def _tokenize(self, exchange: EngineExchange) -> None:
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
        """Active: answers when the first rank's scheduler has come to the end of its step."""
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
            raise Refusal.http(400, f"Invalid include sections: {sections - metrics.SECTIONS}")
        exchange.respond(200, encode(metrics.loads(self._engine, fields.integer(query, "dp_rank"), sections)))

    def _model(self, exchange: EngineExchange) -> None:
        """`/v1/models/<id>`."""
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
        """The embedded engine's own: break the next requests as ordered."""
        self._faults.arm(exchange.body)
        exchange.respond(200, b"{}")

    def _show(self, exchange: EngineExchange) -> None:
        """The embedded engine's own: report as an engine in trouble does."""
        self._shown.order(exchange.body)
        self._faults.hides_hits = HIDDEN_HITS in self._shown.names
        exchange.respond(200, b"{}")

    def _flip(self, exchange: EngineExchange) -> None:
        """Switch between prefill and decode, as SGLang's `/pd_role_switch`."""
        status, answer = role_switch(self._engine, parse(exchange.body))
        exchange.respond(status, encode(answer))

    def _set_draining(self, exchange: EngineExchange) -> None:
        """The embedded engine's own: be as SGLang after SIGTERM, `/ready` and `/health` 503 while it serves, or not."""
        self._engine.draining = fields.flag(parse(exchange.body), "draining")
        exchange.respond(200, b"{}")

    def _finished(self, exchange: EngineExchange) -> None:
        """The embedded engine's own log of ended requests, for audits. SGLang has no such path."""
        engine = self._engine
        body = {"running": len(engine.jobs), "total": engine.finished_total, "finished": list(engine.finished)}
        exchange.respond(200, encode(body))


def _json_body(exchange: EngineExchange) -> dict[str, Any]:
    kind = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refusal.schema("Unsupported Media Type: Only 'application/json' is allowed")
    return parse(exchange.body)
