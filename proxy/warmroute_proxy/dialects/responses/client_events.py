"""What a client says on a WebSocket: `response.create` with the members of a request, `response.cancel`, and more."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.raw_json import BadRequest, Members, encode, given_members, is_list, list_at, object_at
from warmroute_proxy.dialects.responses.settings import READ

CREATE: Final = "response.create"
CANCEL: Final = "response.cancel"
STEER: Final = "response.steer"
PROCESSED: Final = "response.processed"
"""Codex says so of each response that it has read; nothing follows from it."""

MAX_STREAM_CHARS: Final = 256
_ENVELOPE: Final = frozenset({"type", "stream_id", "generate", "event_id", "previous_response_id", "idempotency_key"})
_REQUEST: Final = tuple(sorted(READ - _ENVELOPE))
_AT_STREAM: Final = "`$.stream_id`"  # msgspec's words
_STREAM_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class ClientEvent(msgspec.Struct):
    """An event of a client: what is read of it before its turn. `generate`: whether the model is to answer;
    `idempotency_key`: what a POST says in the header of that name, since a message has no headers.
    """

    type: str
    stream_id: str | None = None
    generate: bool | None = None
    previous_response_id: str | None = None
    response_id: str | None = None
    idempotency_key: str | None = None
    input: Raw = Raw()


class InvalidStream(ValueError):
    """`stream_id` is not a name of a stream."""


_KnownEvent: Any = msgspec.defstruct(
    "_KnownEvent",
    [(name, Raw, Raw()) for name in _REQUEST if name != "input"],
    bases=(ClientEvent,),
    forbid_unknown_fields=True,
)
"""An event without members that are not known here: those of its request are found in the same pass."""

_decode_known: Final[Callable[[bytes], ClientEvent]] = msgspec.json.Decoder(_KnownEvent).decode
_decode: Final = msgspec.json.Decoder(ClientEvent).decode


def client_event(raw: bytes) -> ClientEvent:
    """Read an event, the members of its request as they stand there. Raises: BadRequest, InvalidStream."""
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
    """The answer to a `response.steer`, which gives its input back. It ends no turn, as an `error` would seem to."""
    given = event.input if bytes(event.input) else Raw(b"null")
    steer = {"id": f"steer_{uuid4().hex}", "previous_response_id": event.previous_response_id, "input": given}
    problem = "a response is not steered here: send the input with the next turn"
    error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": problem}
    stream = {} if event.stream_id is None else {"stream_id": event.stream_id}
    return encode({"type": f"{STEER}.failed", "sequence_number": 0, "steer": steer, "error": error, **stream})


def _names_stream(value: str) -> bool:
    return 0 < len(value) <= MAX_STREAM_CHARS and _STREAM_CHARS.issuperset(value)


class CreatedRequest(NamedTuple):
    """The request of a `response.create`: its members, as those of a POST, and the elements of its input."""

    members: Members
    items: list[Raw] | None


def created_request(raw: bytes, event: ClientEvent | None = None) -> CreatedRequest:
    """The request of a `response.create`; `event`: what was read of it, if it was. The answer of each is a stream.

    Raises: BadRequest.
    """
    event, items = event or client_event(raw), None
    if isinstance(event, _KnownEvent) and event.response_id is None:  # no member of a request
        members = given_members(event, _REQUEST)
        if "input" in members and is_list(event.input):
            items = list_at(members.pop("input"), "input")
    else:
        members = {name: value for name, value in object_at(raw, "").items() if name not in _ENVELOPE}
    members["stream"] = Raw(b"true")
    return CreatedRequest(members, items)
