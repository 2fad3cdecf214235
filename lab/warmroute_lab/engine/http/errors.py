"""The one error that endpoints raise, and its forms in answers.

The form depends on the endpoint and on the reason. If the body breaks the schema, or the request breaks HTTP, the form
is flat on every endpoint. If the body is well formed but cannot be served, the form is flat on the OpenAI endpoints and
`{"error": {"message"}}` on `/generate`. In a stream that has begun, the error is an event.
"""

import json
from http import HTTPStatus

import msgspec

_encode = msgspec.json.Encoder().encode


class Refusal(Exception):
    """A request that is not served, by a fault of the client (`status` 4xx) or of the engine (5xx)."""

    def __init__(self, status: int, message: str, *, flat_type: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self._flat_type = str(status) if flat_type is None and status != 400 else flat_type

    @classmethod
    def schema(cls, message: str) -> "Refusal":
        """The refusal of a body that breaks the endpoint's schema."""
        return cls(400, message, flat_type="Bad Request")

    @classmethod
    def http(cls, message: str) -> "Refusal":
        """The refusal of a header or a query."""
        return cls(400, message, flat_type="400")

    @property
    def semantic(self) -> bool:
        """Whether the body is well formed, but cannot be served."""
        return self._flat_type is None

    def flat(self) -> dict[str, object]:
        return self._error(self._flat_type or "BadRequestError")

    def body(self, *, native: bool) -> bytes:
        """The body of an answer. `native`: for `/generate`."""
        return _encode({"error": {"message": self.message}} if native and self.semantic else self.flat())

    def event(self) -> bytes:
        """The event in a stream of the OpenAI endpoints. As in SGLang, error events alone have spaces in their JSON."""
        return b"data: %b\n\n" % json.dumps({"error": self._error(HTTPStatus(self.status).name)}).encode()

    def native_event(self) -> bytes:
        """The event in a stream of `/generate`."""
        error = {"message": self.message, "type": "invalid_request_error", "code": self.status, "retryable": False}
        return b"data: %b\n\n" % _encode({"error": error})

    def _error(self, kind: str) -> dict[str, object]:
        return {"object": "error", "message": self.message, "type": kind, "param": None, "code": self.status}
