"""The headers of a request to an engine: those of the client's headers that are on an allow-list.

`engine` adds the proxy's own headers, such as the engine's key.
"""

from collections.abc import Mapping
from typing import Final

from warmroute.contract.steering import FORWARDED_HEADERS, well_formed_request_id

CONTENT_TYPE: Final = "content-type: application/json\r\n"
"""The header block of almost every request."""

_MAY_PASS: Final = FORWARDED_HEADERS - {"content-type"}


def engine_headers(request_headers: Mapping[str, str]) -> str:
    if _MAY_PASS.isdisjoint(request_headers):
        return CONTENT_TYPE
    lines = CONTENT_TYPE
    for name in _MAY_PASS.intersection(request_headers):
        value = request_headers[name]
        if name != "x-request-id" or well_formed_request_id(value):
            lines += f"{name}: {value}\r\n"
    return lines
