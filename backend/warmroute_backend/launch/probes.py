"""Small questions to a launched process, each within `PROBE_TIMEOUT_S`: is it ready, what is it, who registered, what
does it compute?"""

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from warmroute_backend.launch.program import Program

PROBE_TIMEOUT_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 8 << 20
ROUTE: Final = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
"""All ranks -1: facts of the whole group, or 503 until all of its ranks have registered
(`sglang/srt/disaggregation/common/conn.py`, `_handle_route_get`)."""


def serves(program: Program) -> bool:
    """Whether it answers as ready, and prefill's bootstrap server has all ranks. Without a port it serves once it
    runs.
    """
    if not program.ready_path:
        port = program.port("http")
        return port is None or listens(program.host, port)
    if _get(program.url + program.ready_path).status != 200:
        return False
    return program.bootstrap_url is None or bool(route(program.bootstrap_url))


def listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), PROBE_TIMEOUT_S):
        return True
    return False


def route(bootstrap_url: str) -> Mapping[str, Any]:
    """What a prefill engine's bootstrap server says of its group; empty if it is not complete or not there."""
    return _object(_get(bootstrap_url + ROUTE))


def metrics(url: str) -> str | None:
    """What `/metrics` shows; None without an answer. An engine that has no metrics answers, and shows none."""
    answer = _get(f"{url}/metrics")
    if not answer.status:
        return None
    return answer.body.decode("utf-8", "replace") if answer.status == 200 else ""


def server_info(url: str) -> Mapping[str, Any]:
    """What an engine says of itself; empty if it does not."""
    return _object(_get(f"{url}/server_info"))


class _Answer:
    def __init__(self, status: int = 0, body: bytes = b"") -> None:
        self.status = status
        self.body = body


def _get(url: str) -> _Answer:
    """Status and body; status 0 without an answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path)
        response = connection.getresponse()
        return _Answer(response.status, response.read(MAX_ANSWER_BYTES))
    except (OSError, http.client.HTTPException):
        return _Answer()
    finally:
        connection.close()


def _object(answer: _Answer) -> Mapping[str, Any]:
    try:
        found = json.loads(answer.body) if answer.status == 200 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
