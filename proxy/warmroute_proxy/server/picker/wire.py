"""Reads and makes the messages of Envoy's external processing, as the Gateway API Inference Extension uses them.

Reads the fields of a `ProcessingRequest`, and makes the `ProcessingResponse` for each step, as bytes (proposal 004 of
the Inference Extension).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

DESTINATION: Final = "x-gateway-destination-endpoint"
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
CHUNK_BYTES: Final = 62_000
"""How many bytes of a body one message has, at most: some data planes accept only 64 KB."""

MAX_ADDRESSES: Final = 4096
"""How many addresses of a gateway's subset are read, at most."""

NONE: Final = 0
BUFFERED: Final = 2
FULL_DUPLEX: Final = 4
"""`NONE`, `BUFFERED` and `FULL_DUPLEX` are body modes of `ProtocolConfiguration`."""

Headers = Iterable[tuple[str, str]]

parse: Final = ext_proc.ProcessingRequest.FromString
_LB: Final = "envoy.lb"
_SUBSET_HINT: Final = "envoy.lb.subset_hint"
_ATTRIBUTES: Final = "envoy.filters.http.ext_proc"


def pairs(headers: Any) -> list[tuple[str, str]]:
    return [(each.key.lower(), (each.raw_value.decode("latin-1") or each.value)) for each in headers.headers.headers]


def subset(message: Any) -> frozenset[str] | None:
    """The addresses that may be picked; None if the gateway does not limit them."""
    found = _metadata(message, _SUBSET_HINT, SUBSET)
    if found is None:
        return None
    if found.WhichOneof("kind") == "string_value":
        listed: Sequence[str] = found.string_value.split(",")
    else:
        listed = [each.string_value for each in found.list_value.values[:MAX_ADDRESSES]]
    return frozenset(address for each in listed[:MAX_ADDRESSES] if (address := each.strip()))


def served(message: Any) -> str:
    """The address of the engine that has answered; empty if the gateway does not say."""
    found = _metadata(message, _LB, SERVED)
    return found.string_value if found is not None else _attribute(message, "upstream.address")


def broke_off(message: Any) -> str:
    """Why the gateway has answered instead of an engine; empty if an engine has answered, or without a reason."""
    details = _attribute(message, "response.code_details")
    return "" if details in {"", "via_upstream"} else details


def is_engines(details: str) -> bool:
    """Whether the engine's connection failed or was reset. False if Envoy itself refused, such as in an overflow."""
    return details.startswith("upstream_reset") and "overflow" not in details


def _metadata(message: Any, namespace: str, key: str) -> Any:
    spaces = message.metadata_context.filter_metadata
    if namespace not in spaces:
        return None
    fields = spaces[namespace].fields
    return fields.get(key)


def _attribute(message: Any, name: str) -> str:
    if _ATTRIBUTES not in message.attributes:
        return ""
    fields = message.attributes[_ATTRIBUTES].fields
    return fields[name].string_value if name in fields else ""


def destination(addresses: str, path: str, headers: Headers, removed: Iterable[str], length: int) -> bytes:
    """The reply to a request's headers, with the engine to which the request goes."""
    answer = ext_proc.ProcessingResponse()
    _send_to(answer, answer.request_headers.response, addresses, path, headers, removed, length)
    return bytes(answer.SerializeToString())


def buffered_destination(addresses: str, path: str, headers: Headers, removed: Iterable[str], body: bytes) -> bytes:
    """The reply to a body that came whole, with the engine to which the request goes and its new body."""
    answer = ext_proc.ProcessingResponse()
    _send_to(answer, answer.request_body.response, addresses, path, headers, removed, len(body))
    answer.request_body.response.body_mutation.body = body
    return bytes(answer.SerializeToString())


def _send_to(
    answer: Any, response: Any, addresses: str, path: str, headers: Headers, removed: Iterable[str], length: int
) -> None:
    mutation = response.header_mutation
    mutation.remove_headers.extend(removed)
    for name, value in ((DESTINATION, addresses), (":path", path), ("content-length", str(length)), *headers):
        _set(mutation, name, value)
    answer.dynamic_metadata.fields[_LB].struct_value.fields[DESTINATION].string_value = addresses


def request_body(data: bytes | memoryview, *, ends: bool) -> bytes:
    answer = ext_proc.ProcessingResponse()
    streamed = answer.request_body.response.body_mutation.streamed_response
    streamed.body, streamed.end_of_stream = bytes(data), ends
    return bytes(answer.SerializeToString())


def answer_headers(status: int, headers: Headers, removed: Iterable[str]) -> bytes:
    answer = ext_proc.ProcessingResponse()
    mutation = answer.response_headers.response.header_mutation
    mutation.remove_headers.extend(removed)
    _set(mutation, ":status", str(status))
    for name, value in headers:
        _set(mutation, name, value)
    return bytes(answer.SerializeToString())


def answer_body(data: bytes | memoryview, *, ends: bool) -> bytes:
    answer = ext_proc.ProcessingResponse()
    streamed = answer.response_body.response.body_mutation.streamed_response
    streamed.body, streamed.end_of_stream = bytes(data), ends
    return bytes(answer.SerializeToString())


def wait_longer(seconds: float) -> bytes:
    """Ask the gateway to wait `seconds` for the next reply. Its config may disallow this."""
    answer = ext_proc.ProcessingResponse()
    answer.override_message_timeout.FromNanoseconds(int(seconds * 1e9))
    return bytes(answer.SerializeToString())


def immediate(status: int, headers: Headers, body: bytes) -> bytes:
    """A reply that gives the client a whole answer, without an engine."""
    answer = ext_proc.ProcessingResponse()
    response = answer.immediate_response
    response.status.code = status
    response.body = body
    response.details = "warmroute"
    for name, value in headers:
        _set(response.headers, name, value)
    return bytes(answer.SerializeToString())


def _set(mutation: Any, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.header.key, option.header.raw_value = name, value.encode("latin-1", "replace")
    option.append_action = _OVERWRITE


def _empty(name: str) -> bytes:
    answer = ext_proc.ProcessingResponse()
    getattr(answer, name).SetInParent()
    return bytes(answer.SerializeToString())


GO_ON: Final = _empty("request_headers")
"""Has the gateway send the body."""

REQUEST_TRAILERS: Final = _empty("request_trailers")
"""Leaves a request's trailers unchanged."""

ANSWER_TRAILERS: Final = _empty("response_trailers")
"""Leaves an answer's trailers unchanged."""

UNREAD_HEADERS: Final = _empty("response_headers")
"""Lets the answer pass unread."""

_OVERWRITE: Final = 2  # OVERWRITE_IF_EXISTS_OR_ADD
