"""`transport`: warmroute below any library that is built on httpx or httpx2, for whole answers and streams.

A request that computes a prompt gets the key of its session, and is compared and repaired like a call of `OpenAI`. So
the request's JSON body is parsed once more here. The transport finds the usage in the bytes of the answer while the
library reads them. A stream has usage only if the library asks for it.
"""

import asyncio
import json
from collections.abc import Iterable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakKeyDictionary

from warmroute._cache import CacheView
from warmroute._guard import Guard
from warmroute._observer import Call, Observer, is_turn_path, options_of
from warmroute._redirects import has_left, note
from warmroute._watch import ZLIB


def plain_encodings(accepted: str) -> str:
    """The encodings of `accept-encoding` that `AnswerBytes` can unpack; `identity` if it can unpack none."""
    names = map(str.strip, accepted.split(","))
    return ", ".join(name for name in names if name.partition(";")[0] in ZLIB) or "identity"


MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""A longer request is sent unchanged and is not observed."""

_GEMINI: Final = (":generateContent", ":streamGenerateContent")
_NO_HEADERS: Final = SimpleNamespace(headers={})


class Transport:
    """A transport of httpx or httpx2, for synchronous and asynchronous clients."""

    def __init__(self, observer: Observer, inner: Any = None) -> None:
        self._observer = observer
        self._inner = inner
        self._made: dict[str, Any] = {}
        self._made_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        """httpx's transports by event loop, because a pool's connections belong to the loop that opened them."""

    @property
    def cache(self) -> CacheView:
        """The cache observations of this transport."""
        return CacheView(self._observer.books)

    def handle_request(self, request: Any) -> Any:
        """Send a request of a synchronous client. The name is httpx's."""
        prepared = self._prepared(request)
        inner = self._below(request)
        if prepared is None:
            return inner.handle_request(request)
        call, changed = prepared
        try:
            response = inner.handle_request(changed)
            if call.retry_as_given(response.status_code):
                response.close()
                response = inner.handle_request(request)
            self._answered(call, response)
            return response
        finally:
            call.ended()

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request of an asynchronous client. The name is httpx's."""
        prepared = self._prepared(request)
        inner = self._below_in_loop(request)
        if prepared is None:
            return await inner.handle_async_request(request)
        call, changed = prepared
        try:
            response = await inner.handle_async_request(changed)
            if call.retry_as_given(response.status_code):
                await response.aclose()
                response = await inner.handle_async_request(request)
            self._answered(call, response)
            return response
        finally:
            call.ended()

    def __enter__(self) -> "Transport":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Transport":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connections."""
        for inner in [self._inner, *self._made.values()]:
            if hasattr(inner, "close"):
                inner.close()

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        for inner in (self._inner, self._made_by_loop.pop(asyncio.get_running_loop(), None)):
            if hasattr(inner, "aclose"):
                await inner.aclose()

    def _below(self, request: Any) -> Any:
        if self._inner is not None:
            return self._inner
        library = _library(request)
        if library.__name__ not in self._made:
            self._made[library.__name__] = library.HTTPTransport()
        return self._made[library.__name__]

    def _below_in_loop(self, request: Any) -> Any:
        if self._inner is not None:
            return self._inner
        loop = asyncio.get_running_loop()
        if loop not in self._made_by_loop:
            self._made_by_loop[loop] = _library(request).AsyncHTTPTransport()
        return self._made_by_loop[loop]

    def _prepared(self, request: Any) -> tuple[Call, Any] | None:
        """The call, and the changed request to send; None for a request that is not observed."""
        with self._observer.books.shelter():
            url = request.url
            path = str(url.path)
            if has_left(request):
                return None
            if request.method != "POST" or not (is_turn_path(path) or path.endswith(_GEMINI)):
                return None
            note(request)
            content = request.content
            if len(content) > MAX_BODY_BYTES:
                return None
            body = json.loads(content)
            if not isinstance(body, dict):
                return None
            streamed = bool(body.get("stream")) or path.endswith(_GEMINI[1])
            if path.endswith(_GEMINI):  # the path has model and verb
                options = options_of("/messages", dict(request.headers), {"model": _gemini_model(path), **body})
            else:
                options = options_of(path, dict(request.headers), body)
            # A client, as `Observer.begin` reads it. Its headers are empty, because the options have all headers.
            client = SimpleNamespace(base_url=_base_url(url, path), _custom_headers={}, _client=_NO_HEADERS)
            call = self._observer.begin(client, options, stream=streamed, stream_cls=None)
            return call, _sent(request, call, body)
        return None

    def _answered(self, call: Call, response: Any) -> None:
        if response.status_code < 300:
            call.field_refused()
            self._observer.answered(call, response)


def transport(
    inner: Any = None,
    *,
    session: str | None = None,
    guard: str = "warn",
    repair: str | Iterable[str] | None = None,
    backend: str | None = None,
) -> Any:
    """Return a transport for `httpx.Client(transport=...)`, `httpx.AsyncClient(transport=...)` and httpx2.

    Type checkers accept the result in each place. `inner`: the transport that sends the requests, such as one with a
    proxy (default: the library's). The other parameters are those of `OpenAI`. With `guard="raise"`, a broken prefix
    surfaces as the library's connection error.
    """
    return Transport(Observer(session, Guard(guard, repair), backend), inner)


def _library(request: Any) -> Any:
    """httpx or httpx2, also for a subclass of its request."""
    names = (kind.__module__.partition(".")[0] for kind in type(request).__mro__)
    return import_module(next(name for name in names if name in ("httpx", "httpx2")))


def _gemini_model(path: str) -> str:
    return path.rpartition("/")[2].partition(":")[0]


def _base_url(url: Any, path: str) -> str:
    return f"{url.scheme}://{url.netloc.decode()}{path.rpartition('/')[0]}"


def _sent(request: Any, call: Call, body: dict[str, Any]) -> Any:
    """The request with the additions of the call; the object `request` itself if only headers were added."""
    for name, value in (call.sent.headers or {}).items():
        if name not in request.headers:
            request.headers[name] = value
    request.headers["accept-encoding"] = plain_encodings(request.headers.get("accept-encoding", ""))
    found = call.sent.json_data
    if found is call.given.json_data:
        return request
    fields = {name: value for name, value in found.items() if name in body or name != "model"}
    content = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    head = {name: value for name, value in request.headers.items() if name != "content-length"}
    return type(request)(request.method, request.url, headers=head, content=content, extensions=request.extensions)
