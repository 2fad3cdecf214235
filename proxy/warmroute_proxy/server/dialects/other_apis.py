"""What a client is told that posts to an API which is not served here: what to set, in one sentence.

Agents take a 404 for something else: Claude Code says that the model may not exist, and Codex connects again five
times. The text of a 400 they show at once. Routes that only engines have (`/generate`, ...) stay 404.
"""

from typing import Final

from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.dialects.dialect import DialectRefusal
from warmroute_proxy.server.dialects.gemini import GEMINI, GOOGLES_OTHERS
from warmroute_proxy.server.dialects.messages import Messages

_MESSAGES: Final = "set ANTHROPIC_BASE_URL to this server's address, and nothing behind it: this request came to {}"
_BATCHES: Final = "Anthropic's batches are not served here, only messages: send each of them to /v1/messages"
_RESPONSES: Final = (
    "set base_url to this server's address and /v1, and nothing behind it: responses are served at /v1/responses and "
    "/v1/responses/input_tokens, and this request came to {}"
)
_GEMINI: Final = "set GOOGLE_GEMINI_BASE_URL to this server's address, and nothing behind it: this request came to {}"
_OLLAMA: Final = "Ollama's API is not served here: set the client to an OpenAI-compatible server and this base_url"
_CHAT_ALONE: Final = "{} is not served here, only conversations and completions: set another base_url for it"
_BASE: Final = "set base_url to this server's address and /v1, and nothing behind it: this request came to {}"

_OTHERS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("/messages", "/messages/count_tokens"), _MESSAGES),
    (("/messages/batches",), _BATCHES),
    (("/responses", "/responses/compact", "/responses/input_tokens"), _RESPONSES),
    ((":generateContent", ":streamGenerateContent", ":countTokens"), _GEMINI),
    (("/api/chat", "/api/generate"), _OLLAMA),
    (("/chat/completions", "/completions"), _BASE),
    (("/embeddings", "/moderations", "/files", "/batches", "/generations", "/edits"), _CHAT_ALONE),
    (("/speech", "/transcriptions", "/translations"), _CHAT_ALONE),
    (GOOGLES_OTHERS, _CHAT_ALONE),
)
"""How the paths of an API end, and what its clients are told; `{}` is the path."""


def refuse_other_api(path: str) -> None:
    """Raises: Refusal, if a POST to a path that is not served is one to another API."""
    for ends, text in _OTHERS:
        if path.endswith(ends):
            refusal = Refusal(400, text.format(quoted(path)), code="api_not_served")
            raise DialectRefusal(Messages(), refusal) if text in (_MESSAGES, _BATCHES) else refusal
    if path.startswith(GEMINI):
        raise Refusal(400, _CHAT_ALONE.format(quoted(path)), code="api_not_served")


def no_route(path: str) -> str:
    prefix = "" if path.startswith("/v1/") else ", so a base_url ends with /v1"
    return (
        f"there is no route {path[:200]!r}: answers come from /v1/chat/completions and /v1/completions{prefix}; "
        "GET /openapi.json lists all routes"
    )
