"""Which path does what. A handler answers its exchange itself, now or when the scheduler is that far."""

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from warmroute_backend.engine import metrics, prompt
from warmroute_backend.engine.api import encode
from warmroute_backend.engine.ask import Kind, parse, read
from warmroute_backend.engine.engine import Engine
from warmroute_backend.engine.errors import Refusal
from warmroute_backend.engine.http1 import Exchange

_log = logging.getLogger(__name__)
_TEXT = b"text/plain; charset=utf-8"
Handler = Callable[[Exchange], None]


class Routes:
    """The HTTP surface of an engine. `bootstrap_port` is set by the server once it listens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
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
        }
        self._table: dict[str, dict[str, Handler]] = {"GET": gets, "HEAD": {}, "POST": posts}

    def handle(self, exchange: Exchange) -> None:
        """Answer one request of the engine's port."""
        handler = self._table.get(exchange.method, {}).get(exchange.path)
        try:
            if handler is None:
                known = any(exchange.path in table for table in self._table.values())
                raise Refusal(405 if known else 404, "Method Not Allowed" if known else "Not Found")
            handler(exchange)
        except Refusal as refusal:
            exchange.respond(refusal.status, refusal.body(native=exchange.path == "/generate"))
        except Exception as error:  # a fault of ours must not take the connection's other requests down
            # The name only: a message may quote a prompt.
            _log.error("%s while answering %s", type(error).__name__, exchange.path)
            exchange.respond(500, Refusal(500, "internal error").body(native=exchange.path == "/generate"))

    def handle_bootstrap(self, exchange: Exchange) -> None:
        """Answer one request of a prefill engine's bootstrap port."""
        settings = self._engine.settings
        number = exchange.path.removeprefix("/room/")
        if exchange.method == "POST" and number != exchange.path and number.isdecimal():
            self._engine.rooms.call(int(number), exchange)
        elif exchange.path == "/health":
            exchange.respond(200, b"OK", _TEXT)
        elif exchange.path == "/route":
            facts = {"attn_tp_size": 1, "dp_size": settings.dp_size, "pp_size": 1, "page_size": settings.page_size}
            exchange.respond(200, encode({**facts, "follow_bootstrap_room": True}))
        else:
            exchange.respond(404, b'{"message":"Not Found"}')

    # --- inference -----------------------------------------------------------------------------------------------

    def _inference(self, kind: Kind) -> Handler:
        def handler(exchange: Exchange) -> None:
            body = _json_body(exchange)
            self._engine.submit(read(kind, body, exchange.headers.get(b"x-data-parallel-rank")), exchange)

        return handler

    def _tokenize(self, exchange: Exchange) -> None:
        body = _json_body(exchange)
        ask = read("chat" if "messages" in body else "completion", body, None)
        step = prompt.TOKEN_BYTES
        ids = [int.from_bytes(ask.rendered[i : i + step], "little") for i in range(0, len(ask.rendered), step)]
        length = self._engine.settings.context_length
        exchange.respond(200, encode({"tokens": ids, "count": len(ids), "max_model_len": length}))

    # --- control -------------------------------------------------------------------------------------------------

    def _health(self, exchange: Exchange) -> None:
        """Active: answers when the first rank's scheduler has come to the end of its step."""
        if self._engine.draining:
            exchange.respond(503, b"", _TEXT)
        else:
            self._engine.pacers[0].probe(lambda: exchange.respond(200, b"", _TEXT))

    def _ready(self, exchange: Exchange) -> None:
        exchange.respond(503 if self._engine.draining else 200, b"", _TEXT)

    def _abort(self, exchange: Exchange) -> None:
        body = parse(exchange.body) if exchange.body else {}
        rid = body.get("rid")
        self._engine.abort(rid if isinstance(rid, str) else "", everything=body.get("abort_all") is True)
        exchange.respond(200, b"", _TEXT)

    def _flush(self, exchange: Exchange) -> None:
        if self._engine.flush():
            exchange.respond(200, b"Cache flushed.\n", _TEXT)
        else:
            exchange.respond(400, b"Flush cache failed: requests are running.\n", _TEXT)

    # --- information ---------------------------------------------------------------------------------------------

    def _json(self, make: Callable[[Engine], Any]) -> Handler:
        return lambda exchange: exchange.respond(200, encode(make(self._engine)))

    def _server_info(self, exchange: Exchange) -> None:
        exchange.respond(200, encode(metrics.server_info(self._engine, self.bootstrap_port)))

    def _loads(self, exchange: Exchange) -> None:
        wanted = parse_qs(exchange.query).get("dp_rank", [None])[0]
        if wanted is not None and not wanted.isdecimal():
            raise Refusal(400, "dp_rank must be an integer", param="dp_rank")
        exchange.respond(200, encode(metrics.loads(self._engine, None if wanted is None else int(wanted))))

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, metrics.prometheus(self._engine).encode(), b"text/plain; version=0.0.4; charset=utf-8")

    def _finished(self, exchange: Exchange) -> None:
        """The embedded engine's own log of ended requests, for audits. SGLang has no such path."""
        engine = self._engine
        body = {"running": len(engine.jobs), "total": engine.finished_total, "finished": list(engine.finished)}
        exchange.respond(200, encode(body))


def _json_body(exchange: Exchange) -> dict[str, Any]:
    kind = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refusal(400, "Unsupported Media Type: Only 'application/json' is allowed")
    return parse(exchange.body)
