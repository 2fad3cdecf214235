"""One request on the wire, and its answer. No key is in an `Exchange` or in the message of an error.

Limits: an answer longer than `MAX_ANSWER_BYTES` counts as broken; `MAX_ERROR_BYTES` of an error are shown.
"""

import io
import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import socket
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from warmroute.contract.usage import Counts, counts_of, tokens_of, usage_in
from warmroute.files.printable import printable
from warmroute_lab.conform.shapes import Shape, answers_in, begins, ends, key_headers

HIDDEN: Final = "$KEY"
MAX_DEPTH: Final = 64
"""JSON is shown to this depth; what is nested deeper is left out."""

LEAST_DIGITS: Final = 8
"""A number that contains a key is hidden only if the key has at least this length; a short one would hide counts."""


class Hider:
    """Replaces keys by `HIDDEN`, in plain text and as JSON escapes them."""

    def __init__(self, keys: Iterable[str]) -> None:
        """`keys`: empty keys are ignored."""
        forms = {form for key in keys if key for form in _forms(key)}
        self._forms = sorted(forms, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._forms)) or r"(?!)")
        self.longest = max([0, *map(len, self._forms)])
        """The length of the longest form of a key. Callers read this many characters more than they show, since a key
        that is cut at the end is not recognised."""

    def text(self, text: str) -> str:
        return self._any.sub(HIDDEN, text)

    def value(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """A JSON value without keys. `depth`: how deep it may be nested."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict | list) and depth == 0:
            return "(nested too deeply)"
        if isinstance(value, dict):
            return {self.text(str(name)): self.value(each, depth - 1) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each, depth - 1) for each in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return HIDDEN if any(len(form) >= LEAST_DIGITS and form in repr(value) for form in self._forms) else value
        return value

    def beginning(self, text: str, most: int, *, is_cut: bool) -> str:
        """The first `most` characters of a text without keys. `is_cut`: the text may end within a key."""
        if is_cut:
            for form in self._forms:
                cut_size = next((size for size in range(len(form) - 1, 0, -1) if text.endswith(form[:size])), 0)
                text = text[: len(text) - cut_size]
        return self.text(text)[:most]


def _forms(key: str) -> set[str]:
    """A key as it is, and as JSON escapes it."""
    forms = {key, json.dumps(key)[1:-1]}
    return forms | {form.replace("/", "\\/") for form in forms}


MAX_ANSWER_BYTES: Final = 4 << 20
MAX_ERROR_BYTES: Final = 400
LEFT: Final = "left by the client"


class TimedResponse(HTTPResponse):
    """An answer whose reads raise TimeoutError after `deadline_s` of the monotonic clock."""

    def __init__(self, sock: socket, *args: Any, deadline_s: float, **settings: Any) -> None:
        """`args`, `settings`: as `HTTPResponse` takes them."""
        super().__init__(sock, *args, **settings)
        self.fp: io.BufferedReader = io.BufferedReader(_Timed(sock, self.fp.detach(), deadline_s))


class _Timed(io.RawIOBase):
    def __init__(self, sock: socket, raw: io.RawIOBase, deadline_s: float) -> None:
        self._sock, self._raw, self._deadline_s = sock, raw, deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Clock:
    """A stopwatch that starts when it is made. `read_s`: the time until the first `stop`."""

    def __init__(self) -> None:
        self.read_s = 0.0
        self._began_s = time.perf_counter()

    def stop(self) -> None:
        self.read_s = self.read_s or time.perf_counter() - self._began_s


class NotReached(Exception):
    """The endpoint does not answer; the message says why."""


class Exchange(NamedTuple):
    """A request and its answer. `answer`: the body, or a stream's last event, with the `items` of a Responses stream.
    `broken`: why the answer ended early.
    """

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

    ttft_s: float = 0.0
    """Seconds from the request, on an open connection, to the first part of the answer's stream."""

    counts_cached: bool = False
    """Whether an earlier answer has a count of cached tokens. Then a usage that may omit 0 means 0."""

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.broken

    @property
    def counts(self) -> Counts:
        found = counts_of(self.usage, signed=True)
        if found.cached is None and self.counts_cached:
            return found._replace(cached=tokens_of(self.usage).cached)
        return found

    @property
    def answers(self) -> int:
        return answers_in(self.api, self.answer)

    def as_dict(self) -> dict[str, Any]:
        """The request and its answer, without keys, for JSON."""
        given = {**self.shape.headers, **key_headers(self.api, HIDDEN if self.has_key else "")}
        return {
            "request": {"method": "POST", "path": self.shape.path, "headers": given, "body": self.shape.body},
            "key": "first" if self.tenant == 0 else "second",
            "status": self.status,
            "usage": dict(self.usage),
            "error": self.error or self.broken,
        }

    def line(self) -> str:
        """The request and its answer in a line; long texts are replaced by their size."""
        body = json.dumps({name: _short(value) for name, value in self.shape.body.items()})
        named = {name: value for name, value in self.shape.headers.items() if name.startswith(("x-", "idempotency"))}
        with_headers = f" {json.dumps(named)}" if named else ""
        came = self.error or self.broken or json.dumps(dict(self.usage))[:MAX_ERROR_BYTES]
        return printable(f"POST {self.shape.path}{with_headers} {body} -> {self.status} {came}")


class Endpoint:
    """A server under test. `hider` hides its keys. All methods may raise NotReached."""

    def __init__(self, url: str, keys: tuple[str, ...], timeout_s: float) -> None:
        """`keys`: the key of each tenant; for an empty key none is sent. `timeout_s`: for one whole answer."""
        self.hider = Hider(keys)
        wrong = NotReached(f"{self.hider.text(url)!r} is not an http address")
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in {"http", "https"} or not self._host:
            raise wrong
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._base = parts.path.rstrip("/").removesuffix("/v1").removesuffix("/v1beta")
        self._keys = keys
        self._timeout_s = timeout_s
        self.name = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{self._base}"

    def models(self) -> list[str]:
        """The models that the server lists. The names are not checked for keys."""
        status, body = self._get("/v1/models")
        try:
            found = [str(model["id"]) for model in (_object(body) or {})["data"]]
        except (KeyError, TypeError):
            raise NotReached(f"/v1/models answers {status} without a list: name one by --model") from None
        if not found:
            raise NotReached("/v1/models lists none: name one by --model")
        return found

    def receipt(self, receipt_id: str) -> dict[str, Any] | None:
        """A receipt that the server keeps, as the server sends it; None if the server does not have it."""
        status, body = self._get(f"/v1/usage/receipts/{quote(receipt_id, safe='')}")
        return _object(body) if status == 200 else None

    def send(self, api: str, shape: Shape, tenant: int = 0, *, cancel: bool = False) -> Exchange:
        """Send a request, and read its answer. `cancel`: leave after the first event of the stream."""
        hide, given = self.hider, {**shape.headers, **key_headers(api, self._keys[tenant])}
        shown = Shape(hide.text(shape.path), hide.value(shape.headers), hide.value(shape.body))
        found = Exchange(api, shown, tenant, 0, {}, {}, {}, has_key=bool(self._keys[tenant]))
        with closing(self._connection()) as connection:
            try:
                connection.connect()
                clock = _Clock()
                connection.request("POST", self._base + shape.path, json.dumps(shape.body), given)
                response = connection.getresponse()
                headers = {name.lower(): hide.text(value) for name, value in response.getheaders()}
                found = found._replace(status=response.status, headers=headers)
                if response.status != 200:
                    return found._replace(error=self._error_in(response))
                if "event-stream" in headers.get("content-type", ""):
                    usage, answer, broken = _streamed(api, response, cancel, hide, clock)
                else:
                    answer, broken = _whole(response)
                    usage = dict(usage_in(answer))
                return found._replace(
                    usage=hide.value(usage), answer=hide.value(answer), broken=broken, ttft_s=clock.read_s
                )
            except (OSError, HTTPException, ValueError) as error:
                text = self._problem(error)
                return found._replace(broken=text) if found.status else found._replace(error=text)

    def _get(self, path: str) -> tuple[int, bytes]:
        with closing(self._connection()) as connection:
            try:
                connection.request("GET", self._base + path, headers=key_headers("openai", self._keys[0]))
                response = connection.getresponse()
                return response.status, response.read(MAX_ANSWER_BYTES)
            except (OSError, HTTPException, ValueError) as error:
                raise NotReached(self._problem(error)) from None

    def _connection(self) -> HTTPConnection:
        connection = self._kind(self._host, self._port, timeout=self._timeout_s)
        timed = partial(TimedResponse, deadline_s=time.monotonic() + self._timeout_s)
        connection.response_class = timed  # type: ignore[assignment]  # a factory is enough
        return connection

    def _problem(self, error: Exception) -> str:
        what = f"no whole answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        text = printable(self.hider.text(f"{self._host}: {what or type(error).__name__}"))
        return text[:MAX_ERROR_BYTES]

    def _error_in(self, response: HTTPResponse) -> str:
        most = MAX_ERROR_BYTES + self.hider.longest
        body = response.read(most)
        return self.hider.beginning(body.decode(errors="replace"), MAX_ERROR_BYTES, is_cut=len(body) == most)


def _whole(response: HTTPResponse) -> tuple[dict[str, Any], str]:
    body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        return {}, f"the answer has more than {MAX_ANSWER_BYTES:,} bytes"
    found = _object(body)
    return ({}, "the answer is not a JSON object, or it is nested too deeply") if found is None else (found, "")


def _streamed(
    api: str, response: HTTPResponse, cancel: bool, hide: Hider, clock: _Clock
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Usage, the last event, and why the stream broke. Later counts of usage replace earlier counts."""
    usage: dict[str, Any] = {}
    newest: dict[str, Any] = {}
    items: list[Any] = []
    size, is_ended = 0, False
    while line := response.readline(MAX_ANSWER_BYTES):
        size += len(line)
        if size > MAX_ANSWER_BYTES:
            return usage, newest, f"the stream has more than {MAX_ANSWER_BYTES:,} bytes"
        text = line.strip()
        if not text.startswith(b"data:"):
            continue
        if text[5:].strip() == b"[DONE]":
            is_ended = True
            break
        event = _object(text[5:])
        if event is None:
            continue
        if begins(event):
            clock.stop()
        if event.get("error"):
            sent = json.dumps(hide.value(event["error"]))[:MAX_ERROR_BYTES]
            return usage, event, f"the stream ends with an error: {sent}"
        usage |= usage_in(event)
        if event.get("type") == "response.output_item.done":
            items.append(event.get("item"))
        newest, is_ended = event, is_ended or ends(api, event)
        if cancel and begins(event):
            return usage, newest, LEFT
    if not newest:
        return usage, newest, "the stream has no event"
    if items:
        newest = {**newest, "items": items}
    return usage, newest, "" if is_ended else "the stream is cut: nothing in it says that it ends"


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a body; None if the body is another value or nested too deeply."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _short(value: object) -> object:
    text = json.dumps(value)
    return value if len(text) <= 80 else f"({len(text):,} bytes)"
