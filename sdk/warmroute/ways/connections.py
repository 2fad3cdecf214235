"""WebSockets of openai's Responses, observed: each turn is compared, counted and settled like a call over HTTP.

A turn on a WebSocket says only what is new. So what a call would have sent is put together here: the items of the
response that it continues, what the model said, and the new ones. A repair cannot change what was sent before, so
only a turn that continues nothing is repaired.

What is kept: of each stream of a connection the items up to its last response, as the program and the server hold
them; of at most `MAX_STREAMS` streams, the oldest go first.
"""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from warmroute._observer import Call, Observer

MAX_STREAMS: Final = 64
_PATH: Final = "/responses"
_LAST_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_OWN: Final = frozenset({"type", "stream_id", "generate", "previous_response_id", "event_id"})


class _LastResponse(NamedTuple):
    """A stream's last response: its id, and the items that it ends."""

    response_id: str
    items: list[Any]


class _Turns:
    """The turns of one connection."""

    def __init__(self, client: Any, observer: Observer) -> None:
        self._client = client
        self._observer = observer
        self._under_way: dict[str | None, tuple[Call | None, list[Any]]] = {}
        self._last_responses: dict[str | None, _LastResponse] = {}

    def headers(self) -> dict[str, str]:
        """What the connection says of its session, where the program names one."""
        with self._observer.books.shelter():
            return self._observer.named_headers(self._client)
        return {}

    def sent(self, data: Any) -> Any:
        """An event of the program: what is sent in its place. Raises: PrefixBroken, where the guard was told to."""
        event = None
        with self._observer.books.shelter():
            event = json.loads(data)
        if not isinstance(event, dict) or event.get("type") != "response.create":
            return data
        items = self._items(event)
        if event.get("generate") is False:
            self._begun(event, None, items)
            return data
        body = {name: value for name, value in event.items() if name not in _OWN}
        options = SimpleNamespace(
            method="post", url=_PATH, headers={}, json_data={**body, "input": items}, extra_json=None,
            idempotency_key=None,
        )  # fmt: skip
        call = self._observer.begin(self._client, options, stream=True, stream_cls=None)
        self._begun(event, call, items)
        if event.get("previous_response_id") is None and call.sent is not call.given:
            changed = {name: value for name, value in call.sent.json_data.items() if body.get(name) != value}
            return json.dumps({**event, **changed}) if changed else data
        return data

    def received(self, data: Any) -> None:
        """An event of the server."""
        with self._observer.books.shelter():
            event = json.loads(data)
            if event.get("type") not in _LAST_EVENTS:
                return
            stream = event.get("stream_id")
            call, items = self._under_way.pop(stream, (None, []))
            response = event.get("response")
            if not isinstance(response, Mapping):
                if call is not None:
                    call.ended()
                return
            self._last_responses.pop(stream, None)
            self._last_responses[stream] = _LastResponse(
                str(response.get("id")), items + list(response.get("output") or ())
            )
            if len(self._last_responses) > MAX_STREAMS:
                del self._last_responses[next(iter(self._last_responses))]
            if call is not None and call.watch is not None:
                self._settle(call, event, response.get("usage"))

    def _settle(self, call: Call, event: Mapping[str, Any], usage: Any) -> None:
        call.answered = True
        assert call.watch is not None
        receipt = usage.get("warmroute") if isinstance(usage, Mapping) else None
        receipt_id = receipt.get("id") if isinstance(receipt, Mapping) else None
        self._observer.books.answered(call.watch.turn, None, receipt_id if isinstance(receipt_id, str) else None)
        call.watch.observe(event)

    def _items(self, event: Mapping[str, Any]) -> list[Any]:
        """The whole input of a turn."""
        given = event.get("input")
        added = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
        previous = event.get("previous_response_id")
        before = next((found.items for found in self._last_responses.values() if found.response_id == previous), [])
        return [*before, *added]

    def _begun(self, event: Mapping[str, Any], call: Call | None, items: list[Any]) -> None:
        if len(self._under_way) >= MAX_STREAMS:
            self._under_way.clear()
        self._under_way[event.get("stream_id")] = call, items


class _Socket:
    """A connection of `websockets` between openai's client and the server."""

    def __init__(self, inner: Any, turns: _Turns) -> None:
        self._inner = inner
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, data: Any, *more: Any, **options: Any) -> Any:
        return self._inner.send(self._turns.sent(data), *more, **options)


class _WaitingSocket(_Socket):
    """One whose methods wait."""

    def recv(self, *more: Any, **options: Any) -> Any:
        data = self._inner.recv(*more, **options)
        self._turns.received(data)
        return data


class _AwaitedSocket(_Socket):
    """One whose methods are awaited."""

    async def recv(self, *more: Any, **options: Any) -> Any:
        data = await self._inner.recv(*more, **options)
        self._turns.received(data)
        return data


def observe(responses: Any, client: Any, observer: Observer) -> None:
    """Have the connections of a client's `responses` observed, where its openai has them."""
    connect = getattr(responses, "connect", None)
    if connect is not None:
        responses.connect = lambda *given, **more: _observed(connect(*given, **more), client, observer)


def _observed(manager: Any, client: Any, observer: Observer) -> Any:
    """The manager of a connection that is to be made, as one whose connection is observed."""
    kind: Any = type(manager)
    made: Any = getattr(kind, "_connect_ws", None)
    if made is None:  # another openai's: its connections work, and are not counted
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
