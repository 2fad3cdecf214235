"""`wrap`: observe an existing client, which keeps its type.

A client that Stainless generated (openai's, anthropic's) is copied into a subclass of its class, with three observed
methods (`_calls`). Clients of google-genai and mistralai stay the same object, and their http clients get warmroute's
transport.
"""

import inspect
from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeVar, cast, overload

from warmroute._cache import AsyncCache, Cache, CacheView
from warmroute._calls import AsyncCalls, Calls
from warmroute._guard import Guard
from warmroute._observer import Observer
from warmroute.ways.transport import Transport

Client = TypeVar("Client")


class _Waits(Protocol):
    """Synchronous clients of openai and anthropic, for type checkers."""

    @property
    def base_url(self) -> Any: ...
    def close(self) -> None: ...


class _Awaits(Protocol):
    """Asynchronous clients of openai and anthropic, for type checkers."""

    @property
    def base_url(self) -> Any: ...
    async def close(self) -> None: ...


_MARK: Final = "_warmroute_observer"
_HTTP_CLIENTS: Final = (
    ("_api_client", "_httpx_client"),
    ("_api_client", "_async_httpx_client"),
    ("sdk_configuration", "client"),
    ("sdk_configuration", "async_client"),
)
"""Paths of the attributes that hold http clients: the first two are google-genai's, the others mistralai's."""

_classes: dict[type, type] = {}


def wrap(
    client: Client,
    *,
    session: str | None = None,
    guard: str = "warn",
    repair: str | Iterable[str] | None = None,
    backend: str | None = None,
) -> Client:
    """Return a client of the same type that sends session keys and guards its calls. Parameters: those of `OpenAI`.

    For openai and anthropic, the result is a new object that shares the connections of `client`. For google-genai and
    mistralai, it is `client` itself; asynchronous calls of google-genai then use httpx instead of aiohttp. `cache_of`
    returns the observations of the result. Any other object raises `TypeError`, and a client that is wrapped already,
    with other options, raises `ValueError`.
    """
    wrapped = client._observer if isinstance(client, (Calls, AsyncCalls)) else getattr(client, _MARK, None)
    if isinstance(wrapped, Observer):
        if not wrapped.has(session, Guard(guard, repair), backend, str(getattr(client, "base_url", ""))):
            raise ValueError("this client is wrapped already, with other options: wrap a new client")
        return client
    observer = Observer(session, Guard(guard, repair), backend)
    if all(hasattr(client, name) for name in ("request", "_process_response", "_process_response_data", "base_url")):
        return cast("Client", _observed(client, observer))
    found = [http for path in _HTTP_CLIENTS if (http := _inner(client, path)) is not None]
    if not found:
        raise TypeError(
            f"wrap() knows clients of openai, anthropic, google-genai and mistralai, and not {type(client).__name__}; "
            "give the http client below it transport=warmroute.transport()"
        )
    if hasattr(getattr(client, "_api_client", None), "_use_aiohttp"):
        client._api_client._use_aiohttp = _never  # type: ignore[attr-defined]
    for http in found:
        if getattr(http, "_per_loop", False):  # google-genai has a pool for each event loop, as `Transport` has
            http._per_loop = False
            http._transport = Transport(observer)
            continue
        http._transport = Transport(observer, http._transport)
        http._mounts = {pattern: each and Transport(observer, each) for pattern, each in http._mounts.items()}
    object.__setattr__(client, _MARK, observer)
    return client


@overload
def cache_of(client: _Waits) -> Cache: ...


@overload
def cache_of(client: _Awaits) -> AsyncCache: ...


@overload
def cache_of(client: object) -> CacheView: ...


def cache_of(client: object) -> CacheView:
    """Return the cache observations of a wrapped client. For an `OpenAI` client, they are `client.cache`.

    For clients of openai and anthropic, the result also makes calls (`warm`, `keep_warm`, `fetch`).
    """
    found = getattr(client, "cache", None)
    if isinstance(found, CacheView):
        return found
    observer = getattr(client, _MARK, None)
    if not isinstance(observer, Observer):
        raise TypeError(f"{type(client).__name__} is not wrapped: client = warmroute.wrap(client)")
    return CacheView(observer.books)


def _never() -> bool:
    """Replaces google-genai's `_use_aiohttp`: calls through aiohttp would bypass warmroute's transport."""
    return False


def _inner(client: object, path: tuple[str, str]) -> Any:
    """The http client at the end of a path of attributes; None if the path leads to no client with a transport."""
    found: object = client
    for name in path:
        found = getattr(found, name, None)
    return found if hasattr(found, "_transport") and hasattr(found, "_mounts") else None


def _observed(client: Any, observer: Observer) -> Any:
    kind: Any = _observed_class(type(client))
    twin = kind.__new__(kind)
    # Leave out cached resources of the original client: they would call that client.
    twin.__dict__.update({name: v for name, v in vars(client).items() if getattr(v, "_client", None) is not client})
    twin._observer = observer
    return twin


def _observed_class(kind: type) -> type:
    found = _classes.get(kind)
    if found is None:
        awaits = inspect.iscoroutinefunction(kind.__dict__.get("request") or getattr(kind, "request"))  # noqa: B009
        bases = (AsyncCalls if awaits else Calls, kind)
        found = type(kind.__name__, bases, {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
        _classes[kind] = found
    return found
