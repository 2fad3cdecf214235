"""One request, and what its sender can see of it: the time to the first token, and the cached tokens."""

import json
import secrets
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from warmroute.contract.receipt import TIERS, cached_tokens

TIMEOUT_S: Final = 600.0
MAX_ERROR_BYTES: Final = 2_000


class AuditError(Exception):
    """The audit cannot go on; the message says why."""


class Probe(NamedTuple):
    """What was seen of a request. `tiers`: cached tokens by tier, all on the device where no receipt says more.
    `worker`: who had the prefix cache; empty where no receipt names one."""

    ttft_s: float
    cached: int
    tiers: dict[str, int]
    worker: str


def new_prompt(size: int) -> str:
    """A prompt that nobody has sent before, of about `size` bytes."""
    words = [secrets.token_hex(2) for _ in range(max(8, size // 5))]
    return " ".join(words)


class Sender:
    """A tenant who sends prompts."""

    def __init__(self, base_url: str, key: str, model: str) -> None:
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise AuditError(f"{base_url!r} is not an http address")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._path = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._model = model

    def send(self, prompt: str) -> Probe:
        """Send a prompt as a conversation of its own, and wait for its end. Raises: AuditError."""
        asked = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.connect()
            began_s = time.perf_counter()
            connection.request("POST", self._path, json.dumps(asked), self._headers)
            return _read(connection.getresponse(), began_s)
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            raise AuditError(f"{self._host}: {error or type(error).__name__}") from None
        finally:
            connection.close()


def _read(response: HTTPResponse, began_s: float) -> Probe:
    if response.status != 200:
        raise AuditError(f"the server answers {response.status}: {_reason(response.read(MAX_ERROR_BYTES))}")
    ttft_s: float | None = None
    usage: dict[str, Any] = {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        if ttft_s is None and b'"delta"' in line:
            ttft_s = time.perf_counter() - began_s
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        if "error" in event:
            raise AuditError(f"the stream ends with an error: {event['error'].get('message', event['error'])}")
    if not usage:
        raise AuditError("the server reports no usage")
    cached, receipt = cached_tokens(usage), usage.get("warmroute") or {}
    tiers = receipt.get("cached") or {**dict.fromkeys(TIERS, 0), "device": cached}
    caching = [worker["id"] for worker in receipt.get("workers", ()) if worker["role"] != "decode"]
    return Probe(ttft_s or 0.0, cached, tiers, caching[0] if caching else "")


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason that can be read"
