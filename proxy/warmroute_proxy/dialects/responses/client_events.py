"""What a client says on a WebSocket: `response.create` with the members of a request, `response.cancel`, and more."""

from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.one_pass import BodyReader
from warmroute_proxy.dialects.raw_json import BadRequest, Members, encode
from warmroute_proxy.dialects.responses.settings import READ

CREATE: Final = "response.create"
CANCEL: Final = "response.cancel"
STEER: Final = "response.steer"
PROCESSED: Final = "response.processed"
"""Codex says so of each response that it has read; nothing follows from it."""

MAX_STREAM_CHARS: Final = 256
_ENVELOPE: Final = frozenset({"type", "stream_id", "generate", "event_id", "previous_response_id", "idempotency_key"})
_BODY: Final = BodyReader("input", READ | _ENVELOPE)
_STREAM_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class ClientEvent(msgspec.Struct):
    """An event of a client: what is read of it before its turn. `generate`: whether the model is to answer;
    `idempotency_key`: what a POST says in the header of that name, since a message has no headers.
    """

    type: str
    stream_id: Any = None
    generate: bool | None = None
    previous_response_id: str | None = None
    response_id: str | None = None
    idempotency_key: str | None = None
    input: Raw = Raw()


class InvalidStream(ValueError):
    """`stream_id` is no name of a stream."""


_decode: Final = msgspec.json.Decoder(ClientEvent).decode


def client_event(raw: bytes) -> ClientEvent:
    """Read an event, without its request. Raises: BadRequest, InvalidStream."""
    try:
        event = _decode(raw)
    except msgspec.ValidationError as error:
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


def _names_stream(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_STREAM_CHARS and _STREAM_CHARS.issuperset(value)


class CreatedRequest(NamedTuple):
    """The request of a `response.create`: its members, as those of a POST, and the elements of its input."""

    members: Members
    items: list[Raw] | None


def created_request(raw: bytes) -> CreatedRequest:
    """Read the request of a `response.create`. The answer of each is a stream. Raises: BadRequest."""
    members, items = _BODY.read(raw)
    members = {name: value for name, value in members.items() if name not in _ENVELOPE}
    members["stream"] = Raw(b"true")
    return CreatedRequest(members, items)
