"""What the SDK adds to a call: the session, and the request for usage. Nothing in this module sends anything.

*Session.* The first of these that is present names the session:

    1. a session header set by the caller (on the call, the client or its http client): the SDK adds nothing
    2. `with_options(session=...)`, then the `with warmroute.session(...)` block, then the client's own `session=`
    3. a session field of the body (`prompt_cache_key` and similar ones): the SDK repeats its value in a header
    4. the key of the conversation that the prompt continues or begins, marked as derived from the prompt

*Usage.* The usage of a stream, with its receipt (cached tokens, losses, price), comes in a chunk that a server sends
only if `stream_options.include_usage` is set. So the SDK sets the option if the caller did not, and withholds the chunk
from the caller.

A few servers refuse this option or the session's body field. `Servers` remembers which.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warmroute._backends import Signal
from warmroute.contract.bounded import put
from warmroute.contract.identity import SESSION_FIELDS, SESSION_HEADERS, InvalidSessionKey, session_of

MAX_SERVERS: Final = 1000
"""Servers of which it is remembered whether they accept a field; the least recently used is dropped."""

USAGE_FIELD: Final = "stream_options"

_REFUSALS: Final = frozenset({400, 422})
"""Statuses with which servers refuse unknown fields."""

_USAGE_REFUSALS: Final = _REFUSALS | {404, 415, 500, 501}
"""Statuses with which servers refuse `stream_options`."""


class Identity(NamedTuple):
    """The session of a call. `header`: the key that the SDK sends; None if it need not, such as if the caller does."""

    key: str | None
    header: str | None
    derived: bool


class Server(NamedTuple):
    """A server, one of its models, and a body field: a gateway may accept the field for some models only."""

    base_url: str
    model: str
    field: str

    @property
    def refusals(self) -> frozenset[int]:
        """The statuses that may mean that the server refuses the field."""
        return _USAGE_REFUSALS if self.field == USAGE_FIELD else _REFUSALS


class Servers:
    """Which servers are known to accept a field, and which to refuse it. Bounded by `MAX_SERVERS`."""

    def __init__(self) -> None:
        self._takes: OrderedDict[Server, bool] = OrderedDict()
        self._lock = threading.Lock()

    def takes(self, server: Server) -> bool | None:
        """Whether `server` accepts its field; None if that is not known."""
        with self._lock:
            if server in self._takes:
                self._takes.move_to_end(server)
            return self._takes.get(server)

    def learn(self, server: Server, *, takes: bool) -> None:
        """Remember whether `server` accepted its field."""
        with self._lock:
            put(self._takes, server, takes, MAX_SERVERS)


SERVERS: Final = Servers()
"""All clients of the process share this instance, since some programs make a client for each call."""


def lower_headers(*sources: object) -> dict[str, object]:
    """The headers of all sources by lower-case name; the last source wins. Values may be openai's `Omit`."""
    return {
        str(name).lower(): value for source in sources if isinstance(source, Mapping) for name, value in source.items()
    }


def body_of(json_data: object, extra_json: object) -> dict[str, Any]:
    """The top-level fields of the body that will be sent."""
    return {
        **(json_data if isinstance(json_data, Mapping) else {}),
        **(extra_json if isinstance(extra_json, Mapping) else {}),
    }


def identity_of(named: str | None, caller: Mapping[str, object], body: Mapping[str, Any]) -> Identity | None:
    """The identity that a call names, or None. `named`: the key that the program set by `session()`, a copy or the
    client, if any.
    """
    if any(name in caller for name in SESSION_HEADERS):
        values = (caller.get(name) for name in SESSION_HEADERS)
        return Identity(next((value for value in values if isinstance(value, str) and value), None), None, False)
    if named:
        return Identity(named, named, False)
    try:
        found = session_of({}, body)
    except InvalidSessionKey:
        return Identity(None, None, False)  # left to the server, whose error is clearer
    if found:
        sendable = found.key.isascii() and found.key == found.key.strip()
        return Identity(found.key, found.key if sendable else None, False)
    return None


def added_signal(identity: Identity, found: Signal, caller: Mapping[str, object], body: Mapping[str, Any]) -> Signal:
    """The headers and fields of a session that the caller has not set. Body fields are left out if a header or field
    of the caller names a session.
    """
    fields = found.fields if identity.header and not any(body.get(name) for name in SESSION_FIELDS[:-1]) else {}
    return Signal({name: value for name, value in found.headers.items() if name not in caller}, fields)


def stream_options_with_usage(body: Mapping[str, Any], *, in_extra: bool) -> dict[str, Any] | None:
    """The `stream_options` that request usage, or None if the caller has set the option.

    `in_extra`: the caller gave `stream_options` through `extra_body`, which would replace the SDK's field as a whole.
    """
    given = body.get("stream_options")
    if in_extra or (given is not None and (not isinstance(given, Mapping) or "include_usage" in given)):
        return None
    return {**(given or {}), "include_usage": True}


def printable(value: object, limit: int) -> str | None:
    """A header's value if it can be sent back, else None."""
    if isinstance(value, str) and 0 < len(value) <= limit and value.isascii() and value.isprintable():
        return value
    return None
