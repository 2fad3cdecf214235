"""The APIs that are served: which paths are whose, and where their clients have their keys."""

from collections.abc import Mapping
from typing import Final

from warmroute_proxy.server.dialects.dialect import Dialect
from warmroute_proxy.server.dialects.gemini import API_KEY, GEMINI, Gemini, cut_key, has_its_shape, is_gemini
from warmroute_proxy.server.dialects.messages import COUNT_TOKENS, MESSAGES, Messages
from warmroute_proxy.server.dialects.responses import COMPACT, INPUT_TOKENS, RESPONSES, Responses
from warmroute_proxy.server.http.exchange import Request

_GEMINI: Final = Gemini()
_MESSAGES: Final = Messages()
_RESPONSES: Final = Responses()

DIALECT_OF_PATH: Final[Mapping[str, Dialect]] = {
    MESSAGES: _MESSAGES,
    COUNT_TOKENS: _MESSAGES,
    RESPONSES: _RESPONSES,
    INPUT_TOKENS: _RESPONSES,
    COMPACT: _RESPONSES,
}

PREFIXES: Final = ("/v1/", GEMINI)
"""How all paths of tenants begin."""

KEY_HEADERS: Final = ("api-key", "x-api-key", API_KEY)
"""Where clients have their keys, if not in `Authorization`."""


def dialect_for(request: Request) -> Dialect | None:
    """What translates a request: what it came with, as a turn on a WebSocket does, or the dialect of its path."""
    return dialect_of(request.path) if request.dialect is None else request.dialect


def without_key(request: Request) -> None:
    """Take an API key out of a request's address: it would end up in logs."""
    if request.query:
        cut_key(request)


def dialect_of(path: str) -> Dialect | None:
    found = DIALECT_OF_PATH.get(path)
    return _GEMINI if found is None and is_gemini(path) else found


def shape_of(path: str) -> Dialect | None:
    """The dialect whose errors the clients of a path read; None for chat's."""
    found = dialect_of(path)
    return _GEMINI if found is None and has_its_shape(path) else found
