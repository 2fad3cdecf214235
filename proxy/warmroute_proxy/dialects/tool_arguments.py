"""Turns call arguments in a history into objects: engines parse them, and a call that broke off stays there."""

from typing import Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import encode

NO_OBJECT: Final = "arguments"
"""The name in the receipt under which arguments that are not objects are counted."""

_check: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_PROBLEMS: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


def object_text(arguments: str) -> str:
    """The arguments of a call unchanged if they are a JSON object; otherwise an object that holds them.

    Blank arguments and null are an empty object: the call has no arguments.
    """
    if arguments.strip() in ("", "null"):
        return "{}"
    try:
        _check(arguments)
    except _PROBLEMS:
        return encode({"arguments": arguments}).decode()
    return arguments
