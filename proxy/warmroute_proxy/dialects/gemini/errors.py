"""Translates errors of chat to Google's error object, with Google's name for each status."""

from typing import Final

from warmroute_proxy.dialects.raw_json import encode

_STATUSES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"


def error(status: int, message: str, code: object) -> bytes:
    """The error object for a status of chat; its `reason` is chat's error code."""
    found = {"code": status, "message": message, "status": _STATUSES.get(status, "INVALID_ARGUMENT")}
    details = [{"@type": _INFO, "reason": code, "domain": "warmroute"}] if isinstance(code, str) else []
    return encode({"error": {**found, "details": details}})
