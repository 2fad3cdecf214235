"""Removes the session's headers from a request that a redirect sends to another host.

httpx itself removes the API key. httpx copies a request's `extensions` to the requests that follow its redirects, so a
hook notes the first request's origin there. The hook runs after the client's other hooks, which may change the host.
"""

from typing import Any, Final

from warmroute.contract.identity import SESSION_HEADERS

_ORIGIN: Final = "warmroute.origin"
_OURS: Final = "x-warmroute-"


def note(request: Any) -> None:
    """Note the origin of a call's first request; requests that follow a redirect keep it."""
    request.extensions.setdefault(_ORIGIN, _origin(request.url))


def has_left(request: Any) -> bool:
    """Whether a request goes to another origin than its call's first one. If so, remove the session's headers."""
    if request.extensions.get(_ORIGIN) in (None, _origin(request.url)):
        return False
    for name in list(request.headers):
        if name.lower() in SESSION_HEADERS or name.lower().startswith(_OURS):
            request.headers.pop(name, None)
    return True


def follow(http_client: Any, hook: Any) -> None:
    """Have a client of httpx call `hook` with each request, including those that follow a redirect."""
    hooks = http_client.event_hooks
    if hook not in hooks["request"]:
        http_client.event_hooks = {**hooks, "request": [*hooks["request"], hook]}


def keep(request: Any) -> None:
    """The hook of a synchronous client."""
    note(request)
    has_left(request)


async def keep_async(request: Any) -> None:
    """The hook of an asynchronous client."""
    keep(request)


def _origin(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
