"""Fuzz target: what translators make of any request body.

What must hold of each dialect, of each body: it is refused as a bad request, with the place, or becomes one object with
messages of chat's roles, which a second translation of the same bytes gives again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from warmroute_proxy.dialects.gemini.request import chat_request as gemini
from warmroute_proxy.dialects.messages.request import chat_request as messages
from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.dialects.responses.request import chat_request as responses
from warmroute_proxy.normalising.rules import NAMES
from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.sealing import Seal

ROLES: Final = {"system", "user", "assistant", "tool"}
_KEY: Final = b"k" * 32


def texts_of(_: str) -> Texts:
    return Texts(frozenset(NAMES))


def _gemini(raw: bytes) -> Any:
    return gemini(raw, "m", Seal(_KEY), texts_of("m"), streams=False)


TRANSLATORS: Final[dict[str, Callable[[bytes], Any]]] = {
    "messages": partial(messages, key=_KEY, texts_of=texts_of),
    "responses": partial(responses, seal=Seal(_KEY), texts_of=texts_of),
    "gemini": _gemini,
}


def check(data: bytes) -> None:
    """Raise `AssertionError` where a translator does otherwise."""
    for translate in TRANSLATORS.values():
        try:
            body = translate(data).body
        except (BadRequest, msgspec.DecodeError, UnicodeError, RecursionError):  # what `translated_body` refuses
            continue
        assert translate(data).body == body
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue  # a value that was copied is no JSON, which the intake says
        assert found["messages"], data
        assert {message["role"] for message in found["messages"]} <= ROLES, data
