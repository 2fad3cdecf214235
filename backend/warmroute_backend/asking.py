"""Asks an HTTP server of the fleet with a time limit, and reads no more of its answer than a limit allows.

`http.client` does not read `HTTP_PROXY`, so that no proxy of a company stands between programs of one machine.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

MAX_ANSWER_BYTES: Final = 8 << 20
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Answer(NamedTuple):
    """Status and body of an answer. `status`: 0 if there is no answer."""

    status: int = 0
    body: bytes = b""

    def fields(self) -> dict[str, Any]:
        """The JSON object of the answer; empty if the status is not 200, or the body is not a JSON object."""
        try:
            found = json.loads(self.body) if self.status == 200 else {}
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def reachable(host: str) -> str:
    """The address at which a server that listens on `host` answers programs of this machine."""
    return _EVERYWHERE.get(host, host)


def connection(host: str, port: int | None, timeout_s: float, *, has_tls: bool = False) -> http.client.HTTPConnection:
    """A connection to a server of the fleet. Its certificate is not verified, since it names the host that clients
    use."""
    if not has_tls:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=unverified)


def ask(
    url: str, timeout_s: float, headers: Mapping[str, str] | None = None, max_bytes: int = MAX_ANSWER_BYTES
) -> Answer:
    """The answer to a GET request, without what is beyond `max_bytes` of it."""
    try:
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        has_tls = parts.scheme == "https"
        with closing(connection(parts.hostname or "", parts.port, timeout_s, has_tls=has_tls)) as opened:
            opened.request("GET", path, headers=headers or {})
            response = opened.getresponse()
            return Answer(response.status, response.read(max_bytes))
    except (OSError, ValueError, http.client.HTTPException):  # also a host that no name can have
        return Answer()
