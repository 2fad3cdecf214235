"""Heads that come whole in one read, as almost all do: they are looked up, whole or line by line, not parsed.

Peers send the same few header lines again and again, so each line is parsed once and kept as (name, value). A head all
of whose lines are known is then one dict made of them, a tenth of what a parser's callbacks cost. A client's whole head
is the same again and again but for the length, and the key that the SDK sends with each call: without them it is the
key of all that follows from it. What is taken here is what the parser would take without a second thought; everything
else is left to it, by returning None:

- another request line than a plain POST of HTTP/1.1, another status line than `200 OK`;
- a line that is not `token: printable text`, or a header that says something about the connection or the framing other
  than its length (`connection`, `transfer-encoding`, `expect`, `upgrade`, ...);
- a name that stands twice, no `host` in a request, no `content-length`;
- an answer that goes on after this read, or is followed by another.

A whole head is kept only after its lines were found to be plain and an endpoint knew who asks; what is looked up is the
same lines in the same order, and the length is read again each time. So nothing is taken that its lines would not be.

Limits: `MAX_LINES` lines are kept, of at most `MAX_LINE_BYTES` each, and `MAX_HEADS` heads of at most `MAX_HEAD_BYTES`;
all are dropped when it is full. Heads with a line of one request alone (`_OF_ONE_REQUEST`) are not kept.
"""

import re
from typing import TYPE_CHECKING, Final

from warmroute.contract.headers import FORWARD, IDEMPOTENCY

if TYPE_CHECKING:
    from warmroute_proxy.server.intake.caller import Caller

MAX_LINES: Final = 4096
MAX_LINE_BYTES: Final = 512
MAX_HEADS: Final = 4096
MAX_HEAD_BYTES: Final = 4096
MAX_LENGTH_DIGITS: Final = 10

MAX_CALL_BYTES: Final = 256

_ZERO: Final = 0x30
_CALL_LINE: Final = b"\r\n%b: " % IDEMPOTENCY.encode()

_LINE: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*"
    rb"([\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)[ \t]*"
)
_LENGTH: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_NOT_PLAIN: Final = frozenset(
    {"connection", "expect", "http2-settings", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
     "upgrade"}
)  # fmt: skip
_OF_ONE_REQUEST: Final = frozenset({FORWARD, "traceparent", "tracestate", "x-request-id"})
_LINES: Final[dict[bytes, tuple[str, str]]] = {}
_ANSWERS: Final[dict[bytes, dict[str, str]]] = {}
_TARGETS: Final = {
    b"POST %b HTTP/1.1" % target.encode(): target for target in ("/v1/chat/completions", "/v1/completions")
}


class Head:
    """A request's head without its length: one for all requests that say the same."""

    __slots__ = ("caller", "headers", "key", "path")

    def __init__(self, path: str, headers: dict[str, str], key: bytes) -> None:
        self.path = path
        self.headers = headers
        self.key = key
        self.caller: Caller | None = None


class Heads:
    """The heads of one listener's requests that an endpoint knows the callers of."""

    def __init__(self, max_head_bytes: int, max_headers: int) -> None:
        self._kept: dict[bytes, Head] = {}
        self._max_text_bytes = max_head_bytes - 4  # without the empty line
        self._max_headers = max_headers

    def find(self, data: bytes) -> tuple[Head, int, bytes] | None:
        """The head that `data` begins with, how many bytes its body has, and what came of them and after them."""
        text, ends, body = data.partition(b"\r\n\r\n")
        if not ends or len(text) > self._max_text_bytes:
            return None
        before, name, after = text.partition(b"\r\nContent-Length: ")
        if not name:
            before, name, after = text.partition(b"\r\ncontent-length: ")
        digits, _, behind = after.partition(b"\r\n")
        key = b"%b\r\n%b" % (before, behind) if name else b""
        call = b""
        if _CALL_LINE in key:
            before, _, after = key.partition(_CALL_LINE)
            call, _, behind = after.partition(b"\r\n")
            key = b"%b%b%b" % (before, _CALL_LINE, behind) if call.isalnum() and len(call) <= MAX_CALL_BYTES else b""
        head = self._kept.get(key)
        if head is None:
            head = self._read(text, key)
            if head is None:
                return None
            digits = head.headers.pop("content-length").encode()
        elif call:
            of_call = Head(head.path, {**head.headers, IDEMPOTENCY: call.decode("ascii")}, b"")
            of_call.caller = head.caller
            head = of_call
        length = len(body)
        if digits == b"%d" % length:
            return head, length, body
        if digits.isdigit() and len(digits) <= MAX_LENGTH_DIGITS and (digits[0] != _ZERO or len(digits) == 1):
            return head, int(digits), body
        return None

    def keep(self, head: Head) -> None:
        """An endpoint knows the caller: look it up the next time."""
        if 0 < len(head.key) <= MAX_HEAD_BYTES and _OF_ONE_REQUEST.isdisjoint(head.headers):
            if len(self._kept) >= MAX_HEADS:
                self._kept.clear()
            if IDEMPOTENCY in head.headers:
                if _CALL_LINE not in head.key:
                    return
                others = {name: value for name, value in head.headers.items() if name != IDEMPOTENCY}
                of_all = Head(head.path, others, head.key)
                of_all.caller = head.caller
                head = of_all
            self._kept[head.key] = head

    def _read(self, data: bytes, key: bytes) -> Head | None:
        lines = data.split(b"\r\n")
        path = _TARGETS.get(lines.pop(0))
        if path is None or len(lines) > self._max_headers:
            return None
        headers = _headers(lines)
        return None if headers is None or "host" not in headers else Head(path, headers, key)


def whole_answer(data: bytes) -> tuple[dict[str, str], bytes] | None:
    """Headers, to be read only, and body of a 200."""
    text, ends, body = data.partition(b"\r\n\r\n")
    if not ends:
        return None
    before, name, after = text.partition(b"\r\ncontent-length: ")
    digits, _, behind = after.partition(b"\r\n")
    key = b"%b\r\n%b" % (before, behind) if name else b""
    headers = _ANSWERS.get(key)
    if headers is None:
        if not data.startswith(b"HTTP/1.1 200 OK\r\n"):
            return None
        headers = _headers(text[17:].split(b"\r\n"))
        if headers is None:
            return None
        digits = headers.pop("content-length").encode()
        if 0 < len(key) <= MAX_HEAD_BYTES:
            if len(_ANSWERS) >= MAX_HEADS:
                _ANSWERS.clear()
            _ANSWERS[key] = headers
    return (headers, body) if digits == b"%d" % len(body) else None


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
    if name == "connection" and value.lower() == "keep-alive":
        pass  # what HTTP/1.1 does without a word
    elif name in _NOT_PLAIN or (name == "content-length" and _LENGTH.fullmatch(value) is None):
        return None
    pair = name, value
    if name != IDEMPOTENCY and name not in _OF_ONE_REQUEST:
        if len(_LINES) >= MAX_LINES:
            _LINES.clear()
        _LINES[line] = pair
    return pair
