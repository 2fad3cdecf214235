"""What reading a request costs the event loop: CPU seconds until it is read, refused or handed over."""

import asyncio
import gc
import json
import time
from enum import Enum
from typing import Any, Final, NamedTuple

from tests.apis.case import PATHS
from tests.field.fuzz.body_template import CONFIG, SECRETS, TENANT
from warmroute.contract.conversations import Conversations
from warmroute_proxy.dialects.work import TooMuch
from warmroute_proxy.server.arrival import translate
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.dialects.routes import dialect_of
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.parsed_request import CHAT
from warmroute_proxy.server.intake.request_parser import RequestParser

MESSAGES: Final = PATHS["messages"]
RESPONSES: Final = PATHS["responses"]
GEMINI: Final = PATHS["gemini"]


class Became(Enum):
    """What became of a body in the event loop."""

    READ = 1
    REFUSED = 2
    HANDED_OVER = 3


class Reading(NamedTuple):
    """One body's."""

    cost_s: float
    became: Became


def request_parser() -> RequestParser:
    """What an endpoint reads with."""
    loop = asyncio.new_event_loop()
    parser = RequestParser(CONFIG, Callers(SECRETS, Conversations("x")), loop, Metrics())
    loop.close()  # only a process that reads large bodies would use it
    return parser


def read(path: str, raw: bytes, headers: dict[str, str] | None = None) -> Reading:
    """Read a body as the endpoint does."""
    parser = request_parser()
    caller = parser.callers.of(CHAT, TENANT, headers or {})
    request = Request(0.0, "POST", path)
    request.body = raw
    became = Became.READ
    threshold = gc.get_threshold()
    gc.freeze()  # as the proxy's own main: else a collection walks all that other tests have left here
    gc.set_threshold(50_000, 50, 100)
    began_s = time.process_time()
    try:
        if path == CHAT:
            parser.read(request, caller)
        else:
            dialect = dialect_of(path)
            assert dialect is not None
            chat, _ = translate(request, dialect, parser.terms(TENANT))
            parser.read_translated(chat, caller)
    except Refusal:
        became = Became.REFUSED
    except TooMuch:
        became = Became.HANDED_OVER
    taken_s = time.process_time() - began_s
    gc.set_threshold(*threshold)
    gc.unfreeze()
    return Reading(taken_s, became)


def cost_s(path: str, body: dict[str, Any]) -> float:
    """CPU seconds of one body, of a program whose prompts are cleaned."""
    return read(path, json.dumps(body).encode(), {"x-claude-code-session-id": "s"}).cost_s
