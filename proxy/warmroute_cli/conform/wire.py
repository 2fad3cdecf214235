"""One request on the wire, and what is shown of it. A key is in no value that this module returns.

Limits: of an answer `MAX_ANSWER_BYTES` are read, of an error `MAX_ERROR_BYTES` are shown.
"""

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from warmroute_cli.conform.shapes import Counts, Shape, answers_in, counts_of, key_headers, usage_in

MAX_ANSWER_BYTES: Final = 4 << 20
MAX_ERROR_BYTES: Final = 400
HIDDEN: Final = "$KEY"


class NotReached(Exception):
    """The endpoint does not answer; the message says why."""


class Exchange(NamedTuple):
    """A request and its answer. `events`: those of a stream, or the one body; `broken`: why it ended early."""

    api: str
    shape: Shape
    tenant: int
    status: int
    headers: Mapping[str, str]
    usage: Mapping[str, Any]
    answer: Mapping[str, Any]
    error: str = ""
    broken: str = ""
    has_key: bool = False
    """Whether a key was sent."""

    @property
    def ok(self) -> bool:
        """Whether it was answered whole."""
        return self.status == 200 and not self.broken

    @property
    def counts(self) -> Counts:
        """The counts of its usage."""
        return counts_of(self.api, self.usage)

    @property
    def answers(self) -> int:
        """How many answers it holds."""
        return answers_in(self.api, self.answer)

    def as_dict(self) -> dict[str, Any]:
        """The request and what came back, without keys; for JSON."""
        given = {**self.shape.headers, **key_headers(self.api, HIDDEN if self.has_key else "")}
        return {
            "request": {"method": "POST", "path": self.shape.path, "headers": given, "body": self.shape.body},
            "key": "first" if self.tenant == 0 else "second",
            "status": self.status,
            "usage": dict(self.usage),
            "error": self.error or self.broken,
        }

    def line(self) -> str:
        """The same in a line, with long texts by their size."""
        body = json.dumps({name: _short(value) for name, value in self.shape.body.items()})
        named = {name: value for name, value in self.shape.headers.items() if name.startswith(("x-", "idempotency"))}
        with_headers = f" {json.dumps(named)}" if named else ""
        came = self.error or self.broken or json.dumps(dict(self.usage))[:MAX_ERROR_BYTES]
        return f"POST {self.shape.path}{with_headers} {body} -> {self.status} {came}"


class Endpoint:
    """An address. Raises of all methods: NotReached."""

    def __init__(self, url: str, keys: tuple[str, ...], timeout_s: float) -> None:
        """`keys`: of the first and, where it is given, of the second tenant; empty: no key is sent."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise NotReached(f"{self._hide(url, keys)!r} is no http address")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/").removesuffix("/v1").removesuffix("/v1beta")
        self._keys = keys
        self._timeout_s = timeout_s
        self.name = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{self._base}"

    def models(self) -> list[str]:
        """The models that it lists."""
        status, _, body = self._get("/v1/models", key_headers("openai", self._keys[0]))
        try:
            found = [str(model["id"]) for model in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError):
            raise NotReached(f"/v1/models answers {status} without a list: name one by --model") from None
        if not found:
            raise NotReached("/v1/models lists none: name one by --model")
        return found

    def receipt(self, receipt_id: str, tenant: int = 0) -> dict[str, Any] | None:
        """A receipt that the endpoint keeps; None where it keeps none."""
        path = f"/v1/usage/receipts/{receipt_id}"
        status, _, body = self._get(path, key_headers("openai", self._keys[tenant]))
        try:
            found = json.loads(body)
        except ValueError:
            return None
        return found if status == 200 and isinstance(found, dict) else None

    def send(self, api: str, shape: Shape, tenant: int = 0, *, cancel: bool = False) -> Exchange:
        """Send a request, and read its answer. `cancel`: leave after the first event of the stream."""
        connection = self._kind(self._host, self._port, timeout=self._timeout_s)
        given = {**shape.headers, **key_headers(api, self._keys[tenant])}
        has_key = bool(self._keys[tenant])
        try:
            connection.request("POST", self._base + shape.path, json.dumps(shape.body), given)
            response = connection.getresponse()
            found = {name.lower(): self._hidden(value) for name, value in response.getheaders()}
            if response.status != 200:
                text = self._hidden(response.read(MAX_ERROR_BYTES).decode(errors="replace"))
                return Exchange(api, shape, tenant, response.status, found, {}, {}, error=text, has_key=has_key)
            if "event-stream" in found.get("content-type", ""):
                usage, last_event, broken = _streamed(api, response, cancel)
            else:
                last_event, broken = _whole(response)
                usage = usage_in(api, last_event)
            return Exchange(
                api, shape, tenant, 200, found, usage, last_event, broken=self._hidden(broken), has_key=has_key
            )
        except (OSError, HTTPException, ValueError) as error:
            text = self._hidden(f"{self._host}: {error or type(error).__name__}")
            return Exchange(api, shape, tenant, 0, {}, {}, {}, error=text, has_key=has_key)
        finally:
            connection.close()

    def _get(self, path: str, given: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = self._kind(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request("GET", self._base + path, headers=given)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read(MAX_ANSWER_BYTES)
        except (OSError, HTTPException, ValueError) as error:
            raise NotReached(self._hidden(f"{self._host}: {error or type(error).__name__}")) from None
        finally:
            connection.close()

    def _hidden(self, text: str) -> str:
        return self._hide(text, self._keys)

    @staticmethod
    def _hide(text: str, keys: tuple[str, ...]) -> str:
        for key in keys:
            if key:
                text = text.replace(key, HIDDEN)
        return text


def _whole(response: HTTPResponse) -> tuple[dict[str, Any], str]:
    body = response.read(MAX_ANSWER_BYTES)
    try:
        found = json.loads(body)
    except ValueError:
        return {}, "the answer is no JSON"
    return (found, "") if isinstance(found, dict) else ({}, "the answer is no object")


def _streamed(api: str, response: HTTPResponse, cancel: bool) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Usage, the last event, and why it is broken; of usages of several events, a later count replaces an earlier."""
    usage: dict[str, Any] = {}
    last_event: dict[str, Any] = {}
    for event in _events(response):
        if "error" in event:
            return usage, event, f"the stream ends with an error: {json.dumps(event['error'])[:MAX_ERROR_BYTES]}"
        usage |= usage_in(api, event)
        last_event = event
        if cancel and (event.get("choices") or event.get("candidates") or event.get("type") == "content_block_start"):
            return usage, last_event, "left by the client"
    return usage, last_event, "" if last_event else "the stream has no event"


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    size = 0
    while size < MAX_ANSWER_BYTES:
        line = response.readline(MAX_ANSWER_BYTES)
        if not line:
            return
        size += len(line)
        text = line.strip()
        if not text.startswith(b"data:") or text.endswith(b"[DONE]"):
            continue
        try:
            event = json.loads(text[5:])
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _short(value: object) -> object:
    text = json.dumps(value)
    return value if len(text) <= 80 else f"({len(text):,} bytes)"
