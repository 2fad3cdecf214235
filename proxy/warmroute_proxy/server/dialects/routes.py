"""The APIs that are served, each a line here: which paths are whose, and what a client of another API is told.

Agents take a 404 for something else: Claude Code says that the model may not exist, and Codex connects again five
times. The text of a 400 they show at once. Routes that only engines have (`/generate`, ...) stay 404.
"""

from collections.abc import Mapping
from typing import Final

from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.dialects.dialect import CHAT_ALONE, Dialect
from warmroute_proxy.server.dialects.gemini import Gemini
from warmroute_proxy.server.dialects.messages import Messages
from warmroute_proxy.server.dialects.responses import Responses
from warmroute_proxy.server.http.exchange import Request

APIS: Final[tuple[Dialect, ...]] = (Gemini(), Messages(), Responses())

DIALECT_OF_PATH: Final[Mapping[str, Dialect]] = {path: api for api in APIS for path in api.paths}
_WITH_PREFIX: Final = tuple(api for api in APIS if api.prefix)
"""Those with paths that are not known by name."""

PREFIXES: Final = ("/v1/", *(api.prefix for api in _WITH_PREFIX))
"""How all paths of tenants begin."""

KEY_HEADERS: Final = ("api-key", *sorted(api.key_header for api in APIS if api.key_header))
"""Where clients have their keys, if not in `Authorization`."""

_STRAYS: Final = (
    (("/api/chat", "/api/generate"),
     "Ollama's API is not served here: set the client to an OpenAI-compatible server and this base_url"),
    (("/chat/completions", "/completions"),
     "set base_url to this server's address and /v1, and nothing behind it: this request came to {}"),
    (("/embeddings", "/moderations", "/files", "/batches", "/generations", "/edits"), CHAT_ALONE),
    (("/speech", "/transcriptions", "/translations"), CHAT_ALONE),
)  # fmt: skip
"""How the paths of APIs end that are not served, and what their clients are told; `{}` is the path."""


def dialect_for(request: Request) -> Dialect | None:
    """What translates a request: what it came with, as a turn on a WebSocket does, or the dialect of its path."""
    return dialect_of(request.path) if request.dialect is None else request.dialect


def without_key(request: Request) -> None:
    """Take an API key out of a request's address: it would end up in logs."""
    if request.query:
        for api in APIS:
            api.cut_key(request)


def dialect_of(path: str) -> Dialect | None:
    found = DIALECT_OF_PATH.get(path)
    return next((api for api in _WITH_PREFIX if api.serves(path)), None) if found is None else found


def shape_of(path: str) -> Dialect | None:
    """The dialect whose errors the clients of a path read; None for chat's."""
    found = DIALECT_OF_PATH.get(path)
    return next((api for api in _WITH_PREFIX if api.has_its_shape(path)), None) if found is None else found


def refuse_other_api(path: str) -> None:
    """Raises: Refusal, where a POST to a path that is not served is one to another API."""
    for api in APIS:
        refusal = api.stray(path)
        if refusal is not None:
            raise refusal
    for ends, text in _STRAYS:
        if path.endswith(ends):
            raise Refusal(400, text.format(quoted(path)), code="api_not_served")


def no_route(path: str) -> str:
    prefix = "" if path.startswith("/v1/") else ", so a base_url ends with /v1"
    return (
        f"there is no route {path[:200]!r}: answers come from /v1/chat/completions and /v1/completions{prefix}; "
        "GET /openapi.json lists all routes"
    )
