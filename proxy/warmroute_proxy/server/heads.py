"""Messages that come whole in one read, as almost all do: their heads are looked up line by line, not parsed.

Peers send the same few header lines again and again, so each line is parsed once and kept as (name, value). A head all
of whose lines are known is then one dict made of them, a tenth of what a parser's callbacks cost. What is taken here is
what the parser would take without a second thought; everything else is left to it, by returning None:

- another request line than a plain POST of HTTP/1.1, another status line than `200 OK`;
- a line that is not `token: printable text`, or a header that says something about the connection or the framing other
  than its length (`connection`, `transfer-encoding`, `expect`, `upgrade`, ...);
- a name that stands twice, no `host` in a request, no `content-length`;
- a message that goes on after this read, or is followed by another.

Limits: `MAX_LINES` lines are kept, of at most `MAX_LINE_BYTES` each; all are dropped when it is full.
"""

import re
from typing import Final

MAX_LINES: Final = 4096
MAX_LINE_BYTES: Final = 512

_LINE: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*"
    rb"([\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)[ \t]*"
)
_LENGTH: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_NOT_PLAIN: Final = frozenset(
    {"connection", "expect", "http2-settings", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
     "upgrade"}
)  # fmt: skip
_LINES: Final[dict[bytes, tuple[str, str]]] = {}
_TARGETS: Final = {
    b"POST %b HTTP/1.1" % target.encode(): target for target in ("/v1/chat/completions", "/v1/completions")
}


def whole_request(data: bytes, max_head_bytes: int, max_headers: int) -> tuple[str, dict[str, str], bytes] | None:
    """Path, headers and body."""
    end = data.find(b"\r\n\r\n", 0, max_head_bytes)
    if end < 0:
        return None
    lines = data[:end].split(b"\r\n")
    path = _TARGETS.get(lines.pop(0))
    if path is None or len(lines) > max_headers:
        return None
    headers = _headers(lines)
    if headers is None or "host" not in headers or len(data) - end - 4 != int(headers["content-length"]):
        return None
    return path, headers, data[end + 4 :]


def whole_answer(data: bytes) -> tuple[dict[str, str], bytes] | None:
    """Headers and body of a 200."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or not data.startswith(b"HTTP/1.1 200 OK\r\n"):
        return None
    headers = _headers(data[17:end].split(b"\r\n"))
    if headers is None or len(data) - end - 4 != int(headers["content-length"]):
        return None
    return headers, data[end + 4 :]


def _headers(lines: list[bytes]) -> dict[str, str] | None:
    """The headers, a length among them; None where the parser is to look."""
    try:
        headers = dict(map(_LINES.get, lines))  # type: ignore[arg-type]  # an unknown line is the TypeError
    except TypeError:
        pairs = [_LINES.get(line) or _learn(line) for line in lines]
        if None in pairs:
            return None
        headers = dict(pairs)  # type: ignore[arg-type]
    return headers if len(headers) == len(lines) and "content-length" in headers else None


def _learn(line: bytes) -> tuple[str, str] | None:
    """Name and value of a line, kept; None unless it is a plain one."""
    found = _LINE.fullmatch(line) if len(line) <= MAX_LINE_BYTES else None
    if found is None:
        return None
    name, value = found[1].decode("ascii").lower(), found[2].decode("latin-1")
    if name in _NOT_PLAIN or (name == "content-length" and _LENGTH.fullmatch(value) is None):
        return None
    if len(_LINES) >= MAX_LINES:
        _LINES.clear()
    pair = _LINES[line] = name, value
    return pair
