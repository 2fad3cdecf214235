"""Which paths are whose."""

from collections.abc import Mapping
from typing import Final

from warmroute_proxy.server.dialects.dialect import Dialect
from warmroute_proxy.server.dialects.gemini import Gemini, has_its_shape, is_gemini
from warmroute_proxy.server.dialects.messages import COUNT_TOKENS, MESSAGES, Messages
from warmroute_proxy.server.dialects.responses import COMPACT, INPUT_TOKENS, RESPONSES, Responses

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


def dialect_of(path: str) -> Dialect | None:
    found = DIALECT_OF_PATH.get(path)
    return _GEMINI if found is None and is_gemini(path) else found


def shape_of(path: str) -> Dialect | None:
    """The dialect whose errors the clients of a path read; None for chat's."""
    found = dialect_of(path)
    return _GEMINI if found is None and has_its_shape(path) else found
