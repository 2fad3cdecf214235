"""The one error that endpoints raise, and its forms in answers.

`Refusal`: the request cannot be served; `status` is 4xx for a fault of the client, 5xx for one of the engine.

The protocol has one shape for the OpenAI endpoints and another for `/generate`, and it matters where a request was
refused: by the schema of the body or by HTTP itself (flat on every endpoint), or by what was asked for (flat on the
OpenAI endpoints, `{"error": {"message"}}` on `/generate`). In a stream under way it is an event.
"""

import json
from http import HTTPStatus

import msgspec

_encode = msgspec.json.Encoder().encode


class Refusal(Exception):
    """A request that is not served: by its own fault (4xx), or because the engine cannot (5xx)."""

    def __init__(self, status: int, message: str, *, flat_type: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self._flat_type = str(status) if flat_type is None and status != 400 else flat_type

    @classmethod
    def schema(cls, message: str) -> "Refusal":
        """A body that is not of the endpoint's schema."""
        return cls(400, message, flat_type="Bad Request")

    @classmethod
    def http(cls, status: int, message: str) -> "Refusal":
        return cls(status, message, flat_type=str(status))

    @property
    def semantic(self) -> bool:
        """Whether the body was well formed, and the request cannot be served."""
        return self._flat_type is None

    def flat(self) -> dict[str, object]:
        return self._error(self._flat_type or "BadRequestError")

    def body(self, *, native: bool) -> bytes:
        """A whole answer: the flat form, or `/generate`'s own."""
        return _encode({"error": {"message": self.message}} if native and self.semantic else self.flat())

    def event(self) -> bytes:
        """An event of a stream of the OpenAI endpoints. It is spaced as the protocol's other events are not."""
        return b"data: %b\n\n" % json.dumps({"error": self._error(HTTPStatus(self.status).name)}).encode()

    def native_event(self) -> bytes:
        """The event with which a stream of `/generate` is refused."""
        error = {"message": self.message, "type": "invalid_request_error", "code": self.status, "retryable": False}
        return b"data: %b\n\n" % _encode({"error": error})

    def _error(self, kind: str) -> dict[str, object]:
        return {"object": "error", "message": self.message, "type": kind, "param": None, "code": self.status}
