"""Answers of the control plane: JSON, errors in the form that clients know, and GET routes that take HEAD, too."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Response

from warmroute_proxy.server.base.errors import Refusal, error_body

Answering = TypeVar("Answering", bound=Callable[..., Any])


def get(app: FastAPI, path: str) -> Callable[[Answering], Answering]:
    """Add a route for GET, and for HEAD, whose answer is that of GET without the body."""
    return app.api_route(path, methods=["GET", "HEAD"])


def json_answer(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def error_answer(status: int, message: str, code: str | None) -> Response:
    return Response(error_body(status, message, code), status, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    after = {} if refusal.retry_after_s is None else {"retry-after": str(refusal.retry_after_s)}
    return Response(refusal.body(), refusal.status, headers=after, media_type="application/json")
