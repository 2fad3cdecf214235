"""The events that a client sends on a WebSocket: `response.create` with a request's members, `response.cancel`, ..."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, Members, encode, given_members, is_list, list_at, object_at
from warmroute_proxy.dialects.responses.settings import READ

CREATE: Final = "response.create"
CANCEL: Final = "response.cancel"
INTERRUPT: Final = "response.interrupt"
"""Codex sends this event if the user writes while the model answers. The next turn continues the whole items."""

STEER: Final = "response.steer"
PROCESSED: Final = "response.processed"
"""Codex sends this event for each response that it has read; the proxy ignores it."""

MAX_STREAM_CHARS: Final = 256
_ENVELOPE: Final = frozenset({"type", "stream_id", "generate", "event_id", "previous_response_id", "idempotency_key"})
_REQUEST: Final = tuple(sorted(READ - _ENVELOPE))
_AT_STREAM: Final = "`$.stream_id`"  # as msgspec's messages name the member
_STREAM_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class ClientEvent(msgspec.Struct):
    """The members of a client's event that are read before its turn begins.

    `generate`: whether the model should answer. `idempotency_key` stands for the header `Idempotency-Key` of a POST,
    since a message has no headers.
    """

    type: str
    stream_id: str | None = None
    generate: bool | None = None
    previous_response_id: str | None = None
    response_id: str | None = None
    idempotency_key: str | None = None
    input: Raw = Raw()


class InvalidStream(ValueError):
    """`stream_id` is not a valid name of a stream."""


_KnownEvent: Any = msgspec.defstruct(
    "_KnownEvent",
    [(name, Raw, Raw()) for name in _REQUEST if name != "input"],
    bases=(ClientEvent,),
    forbid_unknown_fields=True,
)
"""An event with known members only. One pass decodes the event and finds the members of its request."""

_decode_known: Final[Callable[[bytes], ClientEvent]] = msgspec.json.Decoder(_KnownEvent).decode
_decode: Final = msgspec.json.Decoder(ClientEvent).decode


def client_event(raw: bytes) -> ClientEvent:
    """Read an event; the members of its request stay raw JSON. Raises: BadRequest, InvalidStream."""
    try:
        try:
            event = _decode_known(raw)
        except msgspec.ValidationError:
            event = _decode(raw)
    except msgspec.ValidationError as error:
        if _AT_STREAM in str(error):
            raise InvalidStream from None
        raise BadRequest("", f"the event cannot be read: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadRequest("", "the event is not valid JSON") from None
    stream = event.stream_id
    if stream is not None and not _names_stream(stream):
        raise InvalidStream
    return event


def steer_failed(event: ClientEvent) -> bytes:
    """The answer to `response.steer`, which gives the input back. An `error` event would seem to end the turn."""
    given = event.input if bytes(event.input) else Raw(b"null")
    steer = {"id": f"steer_{uuid4().hex}", "previous_response_id": event.previous_response_id, "input": given}
    problem = "a response is not steered here: send the input with the next turn"
    error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": problem}
    stream = {} if event.stream_id is None else {"stream_id": event.stream_id}
    return encode({"type": f"{STEER}.failed", "sequence_number": 0, "steer": steer, "error": error, **stream})


def _names_stream(value: str) -> bool:
    return 0 < len(value) <= MAX_STREAM_CHARS and _STREAM_CHARS.issuperset(value)


class CreatedRequest(NamedTuple):
    """The request of a `response.create`: its members, as a POST would have them, and the elements of its input.

    `items` is None if `members` holds the input, or there is no input.
    """

    members: Members
    items: list[Raw] | None


def created_request(raw: bytes, event: ClientEvent | None = None) -> CreatedRequest:
    """The request of a `response.create`, which always asks for a stream. Raises: BadRequest.

    `event`: the decoded event; None: it is read from `raw`.
    """
    event, items = event or client_event(raw), None
    if isinstance(event, _KnownEvent) and event.response_id is None:  # a request has no `response_id`
        members = given_members(event, _REQUEST)
        if "input" in members and is_list(event.input):
            items = list_at(members.pop("input"), "input")
    else:
        members = {name: value for name, value in object_at(raw, "").items() if name not in _ENVELOPE}
    members["stream"] = Raw(b"true")
    return CreatedRequest(members, items)
