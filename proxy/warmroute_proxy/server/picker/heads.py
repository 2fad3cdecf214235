"""Reads the heads of requests: a client's head from a gateway, and the head for an engine, made by `Engine.head`."""

import re
from typing import Final

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.http.request_reader import MAX_TARGET_BYTES

_NAME: Final = re.compile(r":?[!#$%&'*+.^_`|~0-9a-z-]+")
_IN_NO_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def path_of(pairs: list[tuple[str, str]]) -> str:
    """The path without its query, from a head that was not checked yet; empty if the target is too long."""
    target = next((value for name, value in pairs if name == ":path"), "")
    return target.partition("?")[0] if len(target) <= MAX_TARGET_BYTES else ""


def read_head(request: Request, pairs: list[tuple[str, str]], limits: Limits) -> None:
    """Read a client's method, target and headers. Raises: Refusal."""
    if (
        len(pairs) > limits.header_count + 8
        or sum(len(name) + len(value) for name, value in pairs) > limits.header_bytes
    ):
        problem = f"the request head exceeds {limits.header_bytes} bytes or {limits.header_count} headers"
        raise Refusal(431, problem, code="headers_too_large")
    headers: dict[str, str] = {}
    for name, value in pairs:
        if _NAME.fullmatch(name) is None or _IN_NO_VALUE.search(value) is not None:
            raise Refusal(400, "a header has a character that no header may have", code="bad_request")
        headers.setdefault(name, value)
    request.method = headers.pop(":method", "")
    target = headers.pop(":path", "")
    if len(target) > MAX_TARGET_BYTES:
        raise Refusal(414, f"the request target is longer than {MAX_TARGET_BYTES} bytes", code="uri_too_long")
    if not target.startswith("/") or "#" in target:
        raise Refusal(400, "the request target must be a path, with a query at most", code="bad_request")
    path, _, query = target.partition("?")
    request.path, request.query = path, query.encode("latin-1", "replace")
    if authority := headers.pop(":authority", ""):
        headers.setdefault("host", authority)
    request.headers = {name: value for name, value in headers.items() if not name.startswith(":")}


def length_of(request: Request, limits: Limits) -> int | None:
    """The body's length as its header says; None without a valid header. Raises: Refusal, if the body is too long."""
    given = request.headers.get("content-length", "")
    if not given.isascii() or not given.isdigit():
        return None
    if int(given) > limits.body_bytes:
        raise Refusal(413, f"the request body exceeds {limits.body_bytes} bytes", code="request_too_large")
    return int(given)


def parsed(head: bytes) -> tuple[str, list[tuple[str, str]]]:
    """The path and headers of a head that `Engine.head` has made."""
    line, _, *lines = head.decode("latin-1").split("\r\n")  # skips the host; the last line is an unfinished length
    pairs = [each.partition(": ") for each in lines[:-1]]
    return line.split(" ")[1], [(name, value) for name, _, value in pairs]
