"""A server may redirect a call to another host, which learns nothing of the session: its headers are taken out.

httpx takes the key out by itself. The request that follows a redirect has the extensions of the first one, so the first
one notes its origin there, behind the hooks of the client, which may choose its host.
"""

from typing import Any, Final

from warmroute.contract.identity import SESSION_HEADERS

_ORIGIN: Final = "warmroute.origin"
_OURS: Final = "x-warmroute-"


def note(request: Any) -> None:
    """Note where a call begins, unless it follows a redirect."""
    request.extensions.setdefault(_ORIGIN, _origin(request.url))


def has_left(request: Any) -> bool:
    """Whether a request goes to another host than its call; it is without the session then."""
    if request.extensions.get(_ORIGIN) in (None, _origin(request.url)):
        return False
    for name in list(request.headers):
        if name.lower() in SESSION_HEADERS or name.lower().startswith(_OURS):
            request.headers.pop(name, None)
    return True


def follow(http_client: Any, hook: Any) -> None:
    """Have a client of httpx call `hook` with each request, also with those that follow a redirect."""
    hooks = http_client.event_hooks
    if hook not in hooks["request"]:
        http_client.event_hooks = {**hooks, "request": [*hooks["request"], hook]}


def keep(request: Any) -> None:
    """The hook of a client that waits."""
    note(request)
    has_left(request)


async def keep_async(request: Any) -> None:
    """The hook of a client that is awaited."""
    keep(request)


def _origin(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
