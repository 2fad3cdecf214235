"""Observes WebSockets of openai's Responses: each turn is compared, counted and settled like a call over HTTP.

A turn on a WebSocket sends only its new items. So this module builds the input that an HTTP call would have sent: the
items up to the response that the turn continues, the output of that response, and the new items. A repair cannot change
items that were sent before, so a turn that continues another one is not repaired.

A connection may carry several streams (`stream_id`). A server answers the turns of a stream in their order, so each
stream has a queue of turns under way. The event `response.created` belongs to the first turn of the queue that has no
response yet. A response's last event (completed, incomplete or failed) has the response's id. An `error` belongs to a
turn without a response, or to an event that is not a turn, and ends no response.

For each stream of a connection, the items up to the stream's last response are kept in memory. If there are more than
`MAX_STREAMS` streams, the oldest is forgotten. A turn beyond `MAX_UNDER_WAY` ends the observation of all turns under
way.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from warmroute._observer import Call, Observer, options_of

MAX_STREAMS: Final = 64
MAX_UNDER_WAY: Final = 256
_LAST_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_OWN: Final = frozenset({"type", "stream_id", "generate", "previous_response_id", "event_id", "idempotency_key"})


class _LastResponse(NamedTuple):
    """A stream's last response: its id, and all items of the conversation including the response's output."""

    response_id: str
    items: list[Any]


@dataclass(slots=True, eq=False)
class _Asked:
    """A turn under way. `response_id`: None until `response.created` names it."""

    call: Call | None
    items: list[Any] | None  # None: the turn continues a response that the connection does not know
    response_id: str | None = None

    def ended(self) -> None:
        if self.call is not None:
            self.call.ended()


class _Turns:
    """The turns of one connection."""

    def __init__(self, client: Any, observer: Observer) -> None:
        self._client = client
        self._observer = observer
        self._under_way: dict[str | None, deque[_Asked]] = {}  # by stream; an empty queue is removed
        self._last_responses: dict[str | None, _LastResponse] = {}

    def headers(self) -> dict[str, str]:
        with self._observer.books.shelter():
            return self._observer.named_headers(self._client)
        return {}

    def sent(self, data: Any) -> Any:
        """Observe an event of the program. Returns the event to send. Raises: PrefixBroken, if `guard="raise"`."""
        event = None
        with self._observer.books.shelter():
            event = json.loads(data)
        if not isinstance(event, dict) or event.get("type") != "response.create":
            return data
        before, given = self._before(event), event.get("input")
        added = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
        items = None if before is None else [*before, *added]
        if event.get("generate") is False:
            self._begun(event, None, items)
            return data
        own = _OWN if before is not None else _OWN - {"previous_response_id"}
        body = {name: value for name, value in event.items() if name not in own}
        options = options_of("/responses", {}, {**body, "input": added if items is None else items})
        call = self._observer.begin(self._client, options, stream=True, stream_cls=None)
        self._begun(event, call, items)
        if event.get("previous_response_id") is None and call.sent is not call.given:
            changed = {name: value for name, value in call.sent.json_data.items() if body.get(name) != value}
            return json.dumps({**event, **changed}) if changed else data
        return data

    def received(self, data: Any) -> None:
        with self._observer.books.shelter():
            event = json.loads(data)
            kind, stream, response = event.get("type"), event.get("stream_id"), event.get("response")
            if kind == "error":
                self._refused(stream)
            elif not isinstance(response, Mapping):
                return
            elif kind == "response.created":
                first = self._first(stream, None)
                if first is not None:
                    first.response_id = str(response.get("id"))
            elif kind in _LAST_EVENTS:
                self._answered(event, stream, response)

    def closed(self) -> None:
        """End all turns under way, because the connection is closed and no answer will come."""
        with self._observer.books.shelter():
            lines, self._under_way = self._under_way, {}
            for asked in [asked for line in lines.values() for asked in line]:
                asked.ended()

    def _answered(self, event: Mapping[str, Any], stream: str | None, response: Mapping[str, Any]) -> None:
        response_id = str(response.get("id"))
        asked = self._first(stream, response_id) or self._first(stream, None)
        if asked is None:
            return
        self._remove(stream, asked)
        self._last_responses.pop(stream, None)
        if asked.items is not None:
            self._last_responses[stream] = _LastResponse(response_id, asked.items + list(response.get("output") or ()))
        if len(self._last_responses) > MAX_STREAMS:
            del self._last_responses[next(iter(self._last_responses))]
        if asked.call is not None and asked.call.watch is not None:
            self._settle(asked.call, event, response.get("usage"))

    def _refused(self, stream: str | None) -> None:
        """End the turn that an error refuses: the first turn, or the newest turn if the first is being answered."""
        line = self._under_way.get(stream)
        asked = None if line is None else line[0] if line[0].response_id is None else line[-1]
        if asked is not None and asked.response_id is None:
            self._remove(stream, asked)
            asked.ended()

    def _first(self, stream: str | None, response_id: str | None) -> _Asked | None:
        line = self._under_way.get(stream, ())
        return next((asked for asked in line if asked.response_id == response_id), None)

    def _remove(self, stream: str | None, asked: _Asked) -> None:
        line = self._under_way[stream]
        line.remove(asked)
        if not line:
            del self._under_way[stream]

    def _settle(self, call: Call, event: Mapping[str, Any], usage: Any) -> None:
        call.answered = True
        assert call.watch is not None
        receipt = usage.get("warmroute") if isinstance(usage, Mapping) else None
        receipt_id = receipt.get("id") if isinstance(receipt, Mapping) else None
        self._observer.books.answered(call.watch.turn, None, receipt_id if isinstance(receipt_id, str) else None)
        call.watch.observe(event)

    def _before(self, event: Mapping[str, Any]) -> list[Any] | None:
        """The items up to the response that a turn continues; None if this connection does not know that response."""
        previous = event.get("previous_response_id")
        if not previous:
            return []
        return next((found.items for found in self._last_responses.values() if found.response_id == previous), None)

    def _begun(self, event: Mapping[str, Any], call: Call | None, items: list[Any] | None) -> None:
        if sum(map(len, self._under_way.values())) >= MAX_UNDER_WAY:
            self.closed()
        self._under_way.setdefault(event.get("stream_id"), deque()).append(_Asked(call, items))


class _Socket:
    """Wraps the connection (of the library `websockets`) that openai's client uses, to observe the events."""

    def __init__(self, inner: Any, turns: _Turns) -> None:
        self._inner = inner
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, data: Any, *more: Any, **options: Any) -> Any:
        return self._inner.send(self._turns.sent(data), *more, **options)

    def _failed(self, error: Exception) -> None:
        from websockets.exceptions import ConnectionClosed

        if isinstance(error, ConnectionClosed):
            self._turns.closed()


class _WaitingSocket(_Socket):
    """A connection with synchronous methods."""

    def recv(self, *more: Any, **options: Any) -> Any:
        try:
            data = self._inner.recv(*more, **options)
        except Exception as error:
            self._failed(error)
            raise
        self._turns.received(data)
        return data

    def close(self, *more: Any, **options: Any) -> Any:
        self._turns.closed()
        return self._inner.close(*more, **options)


class _AwaitedSocket(_Socket):
    """A connection with asynchronous methods."""

    async def recv(self, *more: Any, **options: Any) -> Any:
        try:
            data = await self._inner.recv(*more, **options)
        except Exception as error:
            self._failed(error)
            raise
        self._turns.received(data)
        return data

    async def close(self, *more: Any, **options: Any) -> Any:
        self._turns.closed()
        return await self._inner.close(*more, **options)


def observe(responses: Any, client: Any, observer: Observer) -> None:
    """Observe the WebSockets of a client's `responses`, if its version of openai has them."""
    connect = getattr(responses, "connect", None)
    if connect is not None:
        responses.connect = lambda *given, **more: _observed(connect(*given, **more), client, observer)


def _observed(manager: Any, client: Any, observer: Observer) -> Any:
    """Change openai's connection manager, so that the connection that it opens is observed."""
    kind: Any = type(manager)
    made: Any = getattr(kind, "_connect_ws", None)
    if made is None:  # another version of openai: its connections work, but are not observed
        observer.books.count_internal_error()
        return manager
    turns = _Turns(client, observer)

    class Waiting(kind):  # type: ignore[misc]
        def _connect_ws(self, extra_query: Any, extra_headers: Any) -> Any:
            return _WaitingSocket(made(self, extra_query, {**turns.headers(), **extra_headers}), turns)

    class Awaited(kind):  # type: ignore[misc]
        async def _connect_ws(self, extra_query: Any, extra_headers: Any) -> Any:
            return _AwaitedSocket(await made(self, extra_query, {**turns.headers(), **extra_headers}), turns)

    manager.__class__ = Awaited if hasattr(kind, "__aenter__") else Waiting
    return manager
