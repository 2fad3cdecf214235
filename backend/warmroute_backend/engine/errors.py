"""The one error that endpoints raise, and the shapes in which it is told.

`Refusal`: the request cannot be served; `status` says whose fault it is (4xx the client's, 5xx the engine's).
"""

import msgspec

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 413: "BadRequestError", 503: "ServiceUnavailableError"}
_encode = msgspec.json.Encoder().encode


class Refusal(Exception):
    """A request that is not served."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: int | str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = status if code is None else code

    def flat(self) -> dict[str, object]:
        """The flat form of the OpenAI endpoints."""
        return {
            "object": "error",
            "message": self.message,
            "type": _TYPES.get(self.status, "InternalServerError"),
            "param": self.param,
            "code": self.code,
        }

    def body(self, *, native: bool) -> bytes:
        """A whole answer: the flat form, or `/generate`'s own."""
        return _encode({"error": {"message": self.message}} if native else self.flat())
