"""Errors of the request path, with the shape and the status that a client of the OpenAI API expects.

All codes are in docs/reference/errors.md. By cause:

    Refusal
        cause                status  code
        client               400     invalid_value, context_length_exceeded, ...
                             401     invalid_api_key
                             404     model_not_found, not_found
                             409     idempotency_key_spent      must not be retried with this key
                             413     request_too_large
                             422     idempotency_key_reused     must not be retried with this key
                             431     headers_too_large
        proxy, or its load   429     rate_limit_exceeded        safe to retry after `retry-after`
                             504     deadline_exceeded          nothing was charged
                             503     no_worker, draining        safe to retry
        engine               502     engine_error               safe to retry: nothing was charged
                             504     engine_timeout

A refusal is raised before a dispatch, or made from an engine's failure before the first byte of the answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

MAX_MESSAGE_CHARS: Final = 4096  # longer messages are cut, since some engines quote the whole request
MAX_NAME_CHARS: Final = 256  # length of a code or a parameter's name
MAX_QUOTED_CHARS: Final = 128
MAX_MODELS: Final = 10  # how many models one message names

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


UNREADABLE: Final = "the engine's answer cannot be translated"


class Refusal(Exception):
    """The error with which a request is answered. `message` says what is wrong, where, and what to do."""

    internals: str | None = None
    """Words of an engine's error that may be logged, but not sent to the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        message = message[:MAX_MESSAGE_CHARS]
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param if param is None else param[:MAX_NAME_CHARS]
        self.retry_after_s = retry_after_s
        self.headers = headers

    def body(self) -> bytes:
        return error_body(self.status, self.message, self.code, self.param)


def shutting_down() -> Refusal:
    """The refusal of all requests while the proxy shuts down."""
    return Refusal(503, "the proxy is shutting down", code="draining", retry_after_s=1)


def is_websocket(headers: Mapping[str, str]) -> bool:
    return headers.get("upgrade", "").strip().lower() == "websocket"


def check_plain(headers: Mapping[str, str]) -> None:
    """Raises: Refusal, if a body is compressed. Compressed bodies are not read: a few bytes may expand to very many."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        problem = f"compressed bodies ({quoted(encoding)}) are not read: send plain JSON, without content-encoding"
        raise Refusal(415, problem, code="bad_request", headers=(("accept-encoding", "identity"),))


def wrong_method(path: str, method: str, headers: Mapping[str, str]) -> Refusal:
    """The refusal of a method other than POST: 405, or 426 for a WebSocket. After a 426, clients use POST at once."""
    if is_websocket(headers):
        message = f"{path} is not served as a WebSocket: send a POST"
        return Refusal(426, message, code="websocket_not_served", headers=(("upgrade", "HTTP/1.1"),))
    return Refusal(405, f"{path} takes POST, not {method}", code="method_not_allowed")


def quoted(value: str) -> str:
    """A client's value in quotes, for a message. Only the beginning of a long value is quoted."""
    return repr(value) if len(value) <= MAX_QUOTED_CHARS else f"{value[:MAX_QUOTED_CHARS]!r}..."


def no_model(asked: str, usable: Sequence[str]) -> str:
    """The message for a model that a tenant cannot use, with up to `MAX_MODELS` names of models that it can use."""
    more = f" and {len(usable) - MAX_MODELS} more" if len(usable) > MAX_MODELS else ""
    names = ", ".join([quoted(name) for name in usable[:MAX_MODELS]]) or "none"
    return f"the model {quoted(asked)} does not exist or you have no access to it; you may use: {names}{more}"


def error_object(status: int, message: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """`{"message", "type", "param", "code"}`, as OpenAI defines it."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def error_body(status: int, message: str, code: str | None, param: str | None = None) -> bytes:
    return msgspec.json.encode({"error": error_object(status, message, code, param)})


def error_event(status: int, message: str, code: str | None) -> bytes:
    return b"data: " + error_body(status, message, code) + b"\n\n"
