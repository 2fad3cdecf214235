"""Lists the APIs that are served, finds the API of a path, and refuses paths of other APIs.

Paths of other APIs get a 400, because agents misread a 404: Claude Code says that the model may not exist, and Codex
connects again five times. Both show the text of a 400 at once. Routes that only engines have (`/generate`, ...) get
a 404.
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
COUNTS_FIRST: Final = frozenset(api.route for api in APIS if api.counts_first)
"""The routes whose streamed answers begin with the prompt's token count."""

_WITH_PREFIX: Final = tuple(api for api in APIS if api.prefix)
"""The APIs with paths that are not fixed, because a model is in them."""

PREFIXES: Final = ("/v1/", *(api.prefix for api in _WITH_PREFIX))
"""The beginnings of all paths for tenants."""

KEY_HEADERS: Final = ("api-key", *sorted(api.key_header for api in APIS if api.key_header))
"""The headers in which clients send their key, if not in `Authorization`."""

_STRAYS: Final = (
    (("/api/chat", "/api/generate"),
     "Ollama's API is not served here: set the client to an OpenAI-compatible server and this base_url"),
    (("/chat/completions", "/completions"),
     "set base_url to this server's address and /v1, and nothing behind it: this request came to {}"),
    (("/embeddings", "/moderations", "/files", "/batches", "/generations", "/edits"), CHAT_ALONE),
    (("/speech", "/transcriptions", "/translations"), CHAT_ALONE),
)  # fmt: skip
"""Endings of paths that are not served, with the error's text; `{}` is the path."""


def dialect_for(request: Request) -> Dialect | None:
    """The dialect that translates a request: the one set on it, as for a turn on a WebSocket, else that of its path."""
    return dialect_of(request.path) if request.dialect is None else request.dialect


def without_key(request: Request) -> None:
    """Remove an API key from a request's address, since addresses end up in logs."""
    if request.query:
        for api in APIS:
            api.cut_key(request)


def dialect_of(path: str) -> Dialect | None:
    found = DIALECT_OF_PATH.get(path)
    return next((api for api in _WITH_PREFIX if api.serves(path)), None) if found is None else found


def shape_of(path: str) -> Dialect | None:
    """The dialect in whose format the clients of a path expect errors; None for chat's."""
    found = DIALECT_OF_PATH.get(path)
    return next((api for api in _WITH_PREFIX if api.has_its_shape(path)), None) if found is None else found


def refuse_other_api(path: str) -> None:
    """Refuse a POST to a path of an API that is not served. Raises: Refusal."""
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
