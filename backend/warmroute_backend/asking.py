"""Asks an HTTP server of the fleet with a time limit, and reads no more of its answer than a limit allows.

`http.client` does not read `HTTP_PROXY`, so that no proxy of a company stands between programs of one machine.
"""

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

MAX_ANSWER_BYTES: Final = 8 << 20


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


def ask(
    url: str, timeout_s: float, headers: Mapping[str, str] | None = None, max_bytes: int = MAX_ANSWER_BYTES
) -> Answer:
    """The answer to a GET request, without what is beyond `max_bytes` of it."""
    try:
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)) as connection:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.read(max_bytes))
    except (OSError, ValueError, http.client.HTTPException):  # also a host that no name can have
        return Answer()
