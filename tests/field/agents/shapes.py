"""The shapes of what programs send: names of headers, members and kinds of items, and no values.

Relays in front of the proxies see each request as its program has written it. Inside of schemas, arguments of calls and
metadata, names are those of the user's tools, so they are left out. Frames of a WebSocket are masked, and not read.
"""

import json
import threading
from collections.abc import Iterator
from typing import Any, Final

from .taps import Taps

MAX_DEPTH: Final = 8
USERS: Final = frozenset(
    {
        "parameters", "input_schema", "parametersJsonSchema", "schema", "arguments", "input", "args", "response",
        "metadata", "client_metadata", "output",
    }
)  # fmt: skip
"""Members whose inside is the user's, where they hold an object."""

OWN: Final = ("/usage", "/v1/models/")
"""Routes that `warmroute run` asks itself."""

KINDS: Final = frozenset({"type", "role"})


def names_in(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """The names of members below a value, with their places, and the kinds of its items."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        for each in value:
            yield from names_in(each, f"{path}[]", depth + 1)
    elif isinstance(value, dict):
        for name, inner in value.items():
            here = f"{path}.{name}".removeprefix(".")
            if name in KINDS and isinstance(inner, str):
                yield f"{here}={inner}"
                continue
            yield here
            if not (name in USERS and isinstance(inner, dict)):
                yield from names_in(inner, here, depth + 1)


class ShapeTaps(Taps):
    """Relays that keep the names. `take` gives those since the last call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()
        super().__init__()

    def listener(self) -> Any:
        """What the parser of a connection calls."""
        return _Names(self)

    def add(self, names: set[str]) -> None:
        """Keep these."""
        with self._lock:
            self._names |= names

    def take(self) -> list[str]:
        """The names since the last call, sorted."""
        with self._lock:
            found, self._names = sorted(self._names), set()
        return found


class _Names:
    """What the parser calls."""

    def __init__(self, taps: ShapeTaps) -> None:
        self._taps = taps
        self._url = b""
        self._body = b""
        self._headers: set[str] = set()

    def on_message_begin(self) -> None:
        self._url = self._body = b""
        self._headers = set()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, _value: bytes) -> None:
        self._headers.add(name.decode("latin-1").lower())

    def on_headers_complete(self) -> None:
        route = self._url.partition(b"?")[0].decode("latin-1")
        if not any(own in route for own in OWN):
            self._taps.add({f"route {route}", *(f"header {name}" for name in self._headers)})

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        try:
            found = json.loads(self._body)
        except ValueError:
            return
        self._taps.add(set(names_in(found)))
