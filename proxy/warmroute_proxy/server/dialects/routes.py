"""Which paths are whose."""

from collections.abc import Mapping
from typing import Final

from warmroute_proxy.server.dialects.dialect import Dialect
from warmroute_proxy.server.dialects.messages import COUNT_TOKENS, MESSAGES, Messages
from warmroute_proxy.server.dialects.responses import INPUT_TOKENS, RESPONSES, Responses

_MESSAGES: Final = Messages()
_RESPONSES: Final = Responses()

DIALECT_OF_PATH: Final[Mapping[str, Dialect]] = {
    MESSAGES: _MESSAGES,
    COUNT_TOKENS: _MESSAGES,
    RESPONSES: _RESPONSES,
    INPUT_TOKENS: _RESPONSES,
}


def dialect_of(path: str) -> Dialect | None:
    """The dialect that a path is of."""
    return DIALECT_OF_PATH.get(path)
