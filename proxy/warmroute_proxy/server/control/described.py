"""Descriptions of the control plane's routes, and the OpenAPI document that FastAPI makes of them.

A route is described by the types of its answer, its body and its query parameters. The same types encode answers and
decode bodies. Schemas are made when the document is requested, and not at the start.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from fastapi import FastAPI, Response
from fastapi.routing import APIRoute

Schema = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Any])

ERRORS: Final[Mapping[int, str]] = {
    400: "The request is malformed, or a parameter or member cannot be used; or the engine refuses its content.",
    401: "The key is missing or unknown.",
    403: "The key is of another tenant, or only operators may ask this.",
    404: "No such model, receipt, tenant, key, engine or route; or it is not yours.",
    405: "The route takes another method.",
    408: "The request did not arrive in time.",
    409: "There is one already, there are as many as may be, or the answer of this Idempotency-Key is gone.",
    413: "The body is too large.",
    414: "The target is too long.",
    415: "The body is compressed.",
    422: "The Idempotency-Key was used with another body.",
    429: "Too many requests; `retry-after` says when to come back.",
    431: "The head is too large.",
    500: "A fault of the proxy.",
    502: "A fault of the engine; nothing was charged.",
    503: "Nothing can serve it now; `retry-after` says when to come back.",
    504: "The engine did not answer in time; nothing was charged.",
    529: "Nothing can serve it now; `retry-after` says when to come back.",
}
READING: Final = (400, 401, 404, 405, 408, 413, 414, 429, 431, 500, 503)
CHANGING: Final = (400, 401, 404, 405, 408, 409, 413, 414, 415, 431, 500, 503)
VIEWING: Final = (*READING, 403)
_REF: Final = "#/components/schemas/{name}"
_ADMIN: Final = [
    {
        "url": "{admin_url}",
        "description": "The proxy's admin listener.",
        "variables": {"admin_url": {"default": "http://127.0.0.1:9001"}},
    }
]


class Description(NamedTuple):
    """Describes one route. `answers`: the type of the answer with `status`; `also`: status -> type of another answer;
    `asks`: the types of query parameters; `headers`: schemas of request headers; `needs`: the required headers;
    `errors`: the statuses whose answer is an error object; `media_types`: the media types of an answer that is text.
    """

    answers: Any
    status: int = 200
    body: Any = None
    asks: Mapping[str, Any] = {}
    headers: Mapping[str, Schema] = {}
    needs: tuple[str, ...] = ()
    also: Mapping[int, Any] = {}
    errors: tuple[int, ...] = READING
    security: tuple[str, ...] = ("key",)
    media_types: tuple[str, ...] = ()

    def types(self) -> list[Any]:
        found = (self.answers, self.body, *self.asks.values(), *self.also.values())
        return [each for each in found if each is not None]


def described(answers: Any, **more: Any) -> Callable[[Handler], Handler]:
    """Describe a route by the fields of `Description`. `answers`: None if the answer has no body."""

    def mark(handler: Handler) -> Handler:
        handler.__dict__["description"] = Description(answers, **more)
        return handler

    return mark


admin_route = partial(described, security=("admin_key",))
"""Describes a route for operators that changes nothing."""

changing_route = partial(admin_route, errors=CHANGING)
"""Describes a route for operators that changes something."""


def document(apps: list[FastAPI], extra: Mapping[str, Any]) -> Schema:
    """The paths and components of some applications. Their routes are changed here, so the applications must serve no
    request.

    `extra`: types of components that routes outside of the applications refer to, by name.
    """
    routes = [route for app in apps for route in app.routes if isinstance(route, APIRoute)]
    found = [cast("Description", getattr(route.endpoint, "description", None)) for route in routes]
    types = [each for one in found if one is not None for each in one.types()]
    schemas, components = msgspec.json.schema_components([*types, *extra.values()], ref_template=_REF)
    of_type = {id(kind): schema for kind, schema in zip([*types, *extra.values()], schemas, strict=True)}
    for route, one in zip(routes, found, strict=True):
        route.methods = set(route.methods or ()) - {"HEAD"}
        route.include_in_schema = route.include_in_schema and one is not None
        if route.include_in_schema:
            _describe(route, one, of_type)
    paths: dict[str, Any] = {}
    for app in apps:
        for path, item in app.openapi()["paths"].items():
            for operation in item.values():
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]  # the proxy answers 400 instead
            servers = {"servers": _ADMIN} if path.startswith(("/admin", "/metrics")) else {}
            paths[path] = {**servers, **item}
    return {"paths": paths, "components": {"schemas": components}}


def _describe(route: APIRoute, one: Description, of_type: Mapping[int, Schema]) -> None:
    summary = (route.endpoint.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    route.summary, route.description, route.status_code = summary, "", one.status
    route.responses = {
        **{status: answer(ERRORS[status], {"$ref": _REF.format(name="Error")}) for status in one.errors},
        **{status: answer(f"{summary}.", of_type[id(kind)]) for status, kind in one.also.items()},
    }
    if one.answers is not None:
        route.responses[one.status] = answer(f"{summary}.", of_type[id(one.answers)])
    if one.media_types:
        content = {each.partition(";")[0]: {"schema": {"type": "string"}} for each in one.media_types}
        route.responses[one.status] = {"description": f"{summary}.", "content": content}
        route.response_class = Response  # else FastAPI lists JSON as a media type, too
    extra: Schema = {"security": [{name: []} for name in one.security]}
    extra["parameters"] = [
        *(_parameter(name, "query", of_type[id(kind)]) for name, kind in one.asks.items()),
        *(_parameter(name, "header", schema, required=name in one.needs) for name, schema in one.headers.items()),
    ]
    if one.body is not None:
        content = {"application/json": {"schema": of_type[id(one.body)]}}
        extra["requestBody"] = {"required": True, "content": content}
    route.openapi_extra = extra


def _parameter(name: str, where: str, schema: Schema, *, required: bool = False) -> Schema:
    return {"name": name, "in": where, "required": required, "schema": schema}


def answer(summary: str, schema: Schema) -> Schema:
    return {"description": summary, "content": {"application/json": {"schema": schema}}}
