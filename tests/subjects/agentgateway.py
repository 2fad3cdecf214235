"""What agentgateway does with a picker's answers, by its source: no registry that the tests reach has its program.

Of github.com/agentgateway/agentgateway (Apache-2.0), crates/agentgateway/src/http at 029e7826:

    ext_proc.rs, `InferencePoolRouter::mutate_request`     the destination is the first value of the header, as one
                                                           `SocketAddr`; anything else is an error of the request
    ext_proc/mutation.rs, `handle_response_for_request_mutation`   first the headers' answer, then the body, until a
                                                           streamed one ends; metadata is kept, and decides nothing
    ext_proc/mutation.rs, `to_immediate_response`          an immediate answer is the client's, with its status and body
    ext_proc/headers.rs, `apply_header_mutations_request`  removals first, then each header by its action
"""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Any, Final

from envoy.config.core.v3.base_pb2 import HeaderValueOption

from tests.subjects.ext_proc_client import Conversation

DESTINATION: Final = "x-gateway-destination-endpoint"


class InvalidAddress(Exception):
    """`EPP returned invalid address`."""


@dataclass
class Routed:
    """A request as the engine gets it, or what the client gets in its place (`status`)."""

    headers: dict[str, list[str]] = field(default_factory=dict)
    body: bytes = b""
    destination: str | None = None
    status: int | None = None


def socket_address(text: str) -> str:
    """Rust's `SocketAddr::from_str`: `ip:port`, `[ip6]:port`, and nothing around it. Raises: InvalidAddress."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65_535:
        raise InvalidAddress(text)
    try:
        ipaddress.IPv6Address(found[1]) if found[1] else ipaddress.IPv4Address(found[2])
    except ValueError as error:
        raise InvalidAddress(text) from error
    return text


def routed(conversation: Conversation, headers: dict[str, str]) -> Routed:
    """Read a picker's answers to a request with `headers` and a body. Raises: InvalidAddress."""
    found = Routed({name: [value] for name, value in headers.items()})
    while True:
        answer = conversation.read()
        kind = answer.WhichOneof("response")
        if kind == "immediate_response":
            found.status, found.body = answer.immediate_response.status.code, bytes(answer.immediate_response.body)
            return found
        response = getattr(answer, kind).response
        _apply(found.headers, response.header_mutation)
        streamed = response.body_mutation.streamed_response
        found.body += streamed.body
        if streamed.end_of_stream:
            values = found.headers.get(DESTINATION, [])
            found.destination = socket_address(values[0]) if values else None
            return found


def _apply(headers: dict[str, list[str]], mutation: Any) -> None:
    for name in mutation.remove_headers:
        headers.pop(name, None)
    for option in mutation.set_headers:
        name, value = option.header.key, (option.header.raw_value or option.header.value.encode()).decode()
        overwrites = option.append_action == HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        headers[name] = [value] if overwrites else [*headers.get(name, []), value]
