"""Translates errors of chat to Anthropic's error object, with Anthropic's statuses."""

import re
from typing import Final

from warmroute_proxy.dialects.messages.state import THREAD_UNSUPPORTED
from warmroute_proxy.dialects.raw_json import encode

OVERLOADED: Final = 529
_TOO_LONG: Final = "prompt is too long"
_COUNTS: Final = (
    re.compile(
        r"(?<![\d,.])(?<!\+ )(?P<prompt>\d{1,9})(?: tokens)?\)? (?:is longer than|exceeds|>)"
        r" [^0-9]{0,60}(?P<context>\d{1,9})(?![\d,.]\d)"
    ),
    re.compile(
        r"(?:length|limit|size|<=)[^0-9]{0,20}(?P<context>\d{1,9})(?![\d,.]\d)[^0-9]{0,60}?"
        r"(?:resulted in |contains |has |Given: |of \d{1,9} tokens: |\d{1,9} tokens \("
        r"|\d{1,9} output tokens and your prompt contains )(?P<prompt>\d{1,9})"
    ),
)
"""How engines state the length of a prompt that is too long, and the length of their context."""

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def status_of(status: int) -> int:
    """The status for Anthropic's clients. A 503 becomes `OVERLOADED`, which they expect if no worker can serve."""
    return OVERLOADED if status == 503 else status


def error(status: int, message: str, code: object) -> bytes:
    """The error object for a status of chat. The code of a refused thread is also in `details`, where Anthropic's
    clients look for it.
    """
    status = status_of(status)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    if code == "context_length_exceeded" and not message.startswith(_TOO_LONG):
        message = _too_long(message)
    found: dict[str, object] = {"type": kind, "message": message, "code": code}
    if code == THREAD_UNSUPPORTED:
        found["details"] = {"error_code": code}
    return encode({"type": "error", "error": found})


def _too_long(message: str) -> str:
    """The message for a prompt that is too long, by which agents know that they must compact. Some read its numbers, so
    they have Anthropic's form.
    """
    for pattern in _COUNTS:
        found = pattern.search(message)
        if found is not None and int(found["prompt"]) > int(found["context"]):
            return f"{_TOO_LONG}: {found['prompt']} tokens > {found['context']} maximum"
    return f"{_TOO_LONG}: {message}"
