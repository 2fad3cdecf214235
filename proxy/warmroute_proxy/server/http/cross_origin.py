"""Requests of web pages (CORS): a page may read an answer only if it names the page's origin (fetch.spec.whatwg.org).

A browser first sends a preflight (`OPTIONS`), without the key. The config lists the allowed origins; by default the
list is empty. Pages send API keys themselves, so cookies and other credentials of a browser are not allowed.
"""

from collections.abc import Collection
from typing import Final

from warmroute_proxy.server.http.exchange import Request

NO_STORE: Final = b"cache-control: no-store\r\n"
"""The header of answers to requests with a key, which neither browsers nor caches may keep."""

ANY_ORIGIN: Final = "*"
_ASKED_METHOD: Final = "access-control-request-method"
_ASKED_HEADERS: Final = "access-control-request-headers"
_MAX_AGE_S: Final = 86_400


def is_allowed_preflight(request: Request, origins: Collection[str]) -> bool:
    """Add the headers that let pages of `origins` read the answer. Returns whether this is an allowed preflight."""
    origin = request.headers["origin"]
    if ANY_ORIGIN in origins:
        lines = ["access-control-allow-origin: *"]
    elif origin in origins:
        lines = [f"access-control-allow-origin: {origin}", "vary: origin"]
    else:
        return False
    lines.append("access-control-expose-headers: *")
    asks = request.method == "OPTIONS" and _ASKED_METHOD in request.headers
    if asks:
        lines.append("access-control-allow-methods: GET, POST")
        lines.append(f"access-control-max-age: {_MAX_AGE_S}")
        if _ASKED_HEADERS in request.headers:
            lines.append(f"access-control-allow-headers: {request.headers[_ASKED_HEADERS]}")
    request.more_lines = "".join([f"{line}\r\n" for line in lines]).encode("latin-1", "replace")
    return asks
