"""Error texts in which engines name their internals: what a client is told instead, and what the log keeps.

Internals are ids of requests, bootstrap rooms (SGLang's numbers for transfers of KV), ranks and addresses. They are of
no use to a client, which gets the meaning of the text instead. Operators need the text, but engines quote requests in
their errors, and nothing of a request may be logged. So the log keeps only words of a fixed list (`_WORDS`), and
numbers of ranks, up to three digits each. The whole text is in the engine's log, under the request id that our log
names beside the words.
"""

import re
from typing import Final

MAX_READ_CHARS: Final = 4096
MAX_WORDS: Final = 40

_ADDRESS: Final = (
    r"(?<![\w.-])(?:[\w.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):\d{2,5}\b"
    r"|https?://|\b\d{1,3}(?:\.\d{1,3}){3}\b"
)
_OF_A_REQUEST: Final = (
    r"\b\w{0,40}(?:\b|[_.])rids?\b|bootstrap|\b\w{0,40}rank\b\s{0,4}[=:]?\s{0,4}\d|\broom\b|KVPoll|KVTransfer"
)
_IN_OURS: Final = re.compile(rf"{_OF_A_REQUEST}|{_ADDRESS}|\bhost(?:name)?\b|\bport\b|0x[0-9a-f]{{6}}", re.IGNORECASE)
"""Internals in a text about a fault of the engine."""

_IN_THEIRS: Final = re.compile(r"\brids?\s{0,4}[=:]|bootstrap_|\brank\s{0,4}=|KVTransfer", re.IGNORECASE)
"""Internals in a text about a fault of the request. Addresses are not among them: such a text may quote the client's,
such as those of images.
"""

_MEANINGS: Final = (
    (re.compile(r"memory", re.IGNORECASE), "the engine has run out of memory"),
    (re.compile(r"abort", re.IGNORECASE), "the engine aborted the request"),
    (re.compile(r"time[sd]?[ -]?out", re.IGNORECASE), "the engine timed out"),
    (
        re.compile(r"transfer|bootstrap|prefill|handshake|kvpoll", re.IGNORECASE),
        "the prompt could not be handed over from the prefill to the decode engine",
    ),
    (re.compile(r"queue|full|overload", re.IGNORECASE), "the engine takes no more requests now"),
    (re.compile(r"connect|reach|refused|reset", re.IGNORECASE), "the engine lost a connection that it needs"),
)

_HAND_OVER: Final = re.compile(r"transfer|bootstrap|handshake|kvpoll", re.IGNORECASE)
_WORDS: Final = frozenset({
    "abort", "aborted", "account", "allocated", "allowed", "api", "balance", "billing", "body", "bootstrap",
    "cancelled", "cannot", "completion", "connect", "connection", "content", "context", "could", "credit", "credits",
    "decode", "disconnected", "error", "exceed", "exceeded", "exceeds", "exception", "exist", "failed", "failure",
    "fetch", "field", "for", "found", "from", "full", "get", "host", "image", "images", "info", "input",
    "insufficient", "invalid", "key", "kvpoll", "kvtransfererror", "large", "length", "limit", "limits", "long",
    "longer", "lost", "maximum", "memory", "message", "messages", "missing", "model", "moderation", "no", "not",
    "number", "of", "out", "parallel", "parameter", "payment", "policy", "pool", "port", "prefill", "prompt",
    "provider", "queue", "quota", "rank", "rate", "received", "refused", "register", "request", "requests",
    "required", "reset", "room", "runtime", "runtimeerror", "scheduler", "schema", "server", "size", "status",
    "stream", "support", "supported", "temperature", "template", "timed", "timeout", "to", "token", "tokens", "too",
    "tool", "tools", "transfer", "type", "unknown", "unreachable", "unsupported", "validation", "value", "waiting",
    "when", "while", "with", "worker", "zmq",
})  # fmt: skip
_TOKEN: Final = re.compile(r"\w+(?:\s{0,2}=\s{0,2}\d{1,3}\b(?!\.))?")
_RANK: Final = re.compile(r"(?P<kind>(?:\w{1,8}_)?rank)\s*=\s*(?P<number>\d{1,3})", re.ASCII)


def names_internals(status: int, message: str) -> bool:
    """Whether an engine's error names internals, which only operators should know."""
    pattern = _IN_OURS if status >= 500 else _IN_THEIRS
    return pattern.search(message, 0, MAX_READ_CHARS) is not None


def names_hand_over(words: str) -> bool:
    """Whether an error is about a failed transfer of KV from prefill to decode. `words`: the result of `loggable`."""
    return _HAND_OVER.search(words) is not None


def meaning_of(status: int, message: str) -> str:
    """What a client is told instead of an error that names internals."""
    read = message[:MAX_READ_CHARS]
    unknown = "the engine failed" if status >= 500 else "the engine refused the request"
    return next((meaning for pattern, meaning in _MEANINGS if pattern.search(read)), unknown)


def loggable(message: str) -> str:
    """The words of an engine's error that cannot come from the request, in their order."""
    words: list[str] = []
    for token in _TOKEN.findall(message[:MAX_READ_CHARS]):
        rank = _RANK.fullmatch(token)
        if rank is not None and rank["kind"] in {"rank", "dp_rank", "tp_rank", "pp_rank"}:
            words.append("{kind}={number}".format(**rank.groupdict()))
        elif token.lower() in _WORDS:
            words.append(token)
    return " ".join(words[:MAX_WORDS])
