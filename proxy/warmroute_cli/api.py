"""Calls a proxy's HTTP API: returns the JSON answer, and turns each error into one sentence."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

TIMEOUT_S: Final = 20.0


class ApiError(Exception):
    """The proxy does not answer, or refuses; the message has the reason. `status`: HTTP's; 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One listener of a proxy, and the key for it."""

    def __init__(self, url: str, key: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ApiError(f"{url!r} is not an http address")
        self._url = url.rstrip("/")
        self._key = key

    def ask(
        self,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        session: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """The JSON answer to a call. `session`: a session key, which is sent in a header."""
        try:
            return json.loads(self._answer(path, parameters, method, session, timeout_s))
        except ValueError as error:
            raise ApiError(f"{self._url} does not answer: {error}") from None

    def text(self, path: str, *, timeout_s: float = TIMEOUT_S) -> str:
        return self._answer(path, None, "GET", "", timeout_s)

    def _answer(
        self, path: str, parameters: Mapping[str, str] | None, method: str, session: str, timeout_s: float
    ) -> str:
        target = f"{self._url}{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        request = urllib.request.Request(target, method=method)  # noqa: S310 - http, see above
        request.add_header("authorization", f"Bearer {self._key}")
        if session:
            request.add_header("x-session-affinity", _header(session))
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
                found: bytes = response.read()
                return found.decode()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(_reason(error), error.code) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ApiError(f"{self._url} does not answer: {reason}") from None


def _header(session: str) -> str:
    if not session.isprintable():
        raise ApiError(f"{session!r} is not a session key: it has characters that cannot be printed")
    return session.encode().decode("latin-1")


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the proxy answers {error.code}"
