"""Translates an engine's refusal for the client: a status and a code that clients know, with the engine's words.

Status, code and words show whether a refusal is about the client's request, or only about the engine or its operator's
account. `Meaning` has these cases. Another engine may serve the request unless the refusal is about the request.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from warmroute_proxy.dialects.unsupported import IMAGES, LATE_SYSTEM, QUERY, TURNS, unsupported_in
from warmroute_proxy.server.base.engine_text import loggable, meaning_of, names_internals
from warmroute_proxy.server.base.errors import MAX_MESSAGE_CHARS, Refusal

# `words_of` reads the message, code and type of an engine's error, whatever form its body has.
#
# Servers write errors as OpenAI does, flat as SGLang does, with `detail` as FastAPI does, as problem details (RFC
# 7807), in a list, as a text, or as a page of HTML. Gateways put one error into the message of another. The result is
# bounded, without secrets and without paths of the engine's machine.

MAX_READ_CHARS: Final = 65_536
MAX_CODE_CHARS: Final = 256
MAX_DEPTH: Final = 4
MAX_PROBLEMS: Final = 8  # how many entries of a list of errors are read

_SOURCE_LINES: Final = re.compile(r"\n\n  File |Traceback \(most recent call last\)")
"""The marker after which an SGLang message contains file paths of the server and echoes the request's body."""

_TITLE: Final = re.compile(r"<(title|h1)[^>]{0,200}>(?P<text>.{1,200}?)</\1", re.IGNORECASE | re.DOTALL)
_MARKUP: Final = re.compile(r"\s{0,8}<(?:!doctype|html|head|body|\?xml)\b", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_SECRET: Final = re.compile(
    r"\b(?:sk|pk|rk|hf|gsk|xai|nvapi|key|ghp|wr|org|proj|req|AIza)[-_][\w-]{6,}|\bAIza[\w-]{20,}|\beyJ[\w.-]{20,}"
    r"|\bBearer {1,4}[^ ]{1,512}|(?<=api_key=)[^ ]{1,512}|(?<=api-key: )[^ ]{1,512}"
    r"|(?<=://)[^ /@:]{1,256}:[^ /@]{1,256}@",
    re.IGNORECASE,
)
_PATH: Final = re.compile(
    r"(?<![\w:/.])/(?:usr|opt|home|root|app|tmp|var|etc|workspace|sgl-workspace|data|mnt|models?|lib|srv|private|nix|proc"
    r"|dev|Users)/[^\s'\"`,;:)\]}]{1,512}|\b[A-Z]:\\[^\s'\"`,;)\]}]{1,512}"
)
_TEXT_MEMBERS: Final = ("message", "msg", "detail", "error_message", "reason", "error_description", "title")


class Words(NamedTuple):
    """What an error says. `kind`: the error's type; `more`: the JSON object that holds the error."""

    message: str
    code: str | None
    kind: str
    param: str | None
    more: Mapping[str, Any]


def words_of(body: bytes | object) -> Words:
    """The words of an error. `body`: its bytes as received, or a decoded JSON value."""
    found = _decoded(body) if isinstance(body, bytes) else body
    words = _words(found, MAX_DEPTH)
    return words._replace(message=without_secrets(_SOURCE_LINES.split(words.message)[0]))


def without_secrets(text: str) -> str:
    """The text on one line, with API keys and file paths replaced."""
    text = _CONTROL.sub(" ", text[:MAX_READ_CHARS]).strip()
    return _PATH.sub("[path]", _SECRET.sub("[secret]", text))


def _decoded(body: bytes) -> object:
    try:
        return json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return body[: 4 * MAX_READ_CHARS].decode("utf-8", "replace")


def _words(found: object, depth: int) -> Words:
    if isinstance(found, str):
        return _of_text(found, depth)
    if isinstance(found, list):
        return _of_list(found, depth)
    if not isinstance(found, dict) or not depth:
        return Words("", None, "", None, {})
    inner = found.get("error") or found.get("errors") or found.get("detail")
    if isinstance(inner, (dict, list)):
        words = _words(inner, depth - 1)
        if words.message or words.code:
            return words
    kind = _short(found.get("type")) or _short(found.get("error_type")) or _short(found.get("status")) or ""
    code = _short(found.get("code")) or (_short(found.get("reason")) if "message" in found else None)
    message = inner if isinstance(inner, str) and inner is not found.get("detail") else _text_in(found, depth)
    inside = _inside(found, message, depth)
    if inside is not None:
        return inside._replace(code=inside.code or code, kind=inside.kind or kind)
    return Words(message, code, kind, _short(found.get("param")), found)


def _inside(found: Mapping[str, Any], message: str, depth: int) -> Words | None:
    """The error inside an error: JSON in its message, or in `metadata.raw`, as OpenRouter sends a provider's error."""
    metadata = found.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    for text in (message, raw if isinstance(raw, str) else ""):
        if text.lstrip()[:1] in {"{", "["}:
            words = _words(_decoded(text.encode("utf-8", "replace")), depth - 1)
            if words.message and words.message.lstrip()[:1] not in {"{", "["}:
                return words
    return None


def _text_in(found: Mapping[str, Any], depth: int) -> str:
    """The message of an error object, under any name that servers use. A title is put in front of its detail."""
    texts: list[str] = []
    for name in _TEXT_MEMBERS:
        value = found.get(name)
        if isinstance(value, (dict, list)) and value:
            value = _words(value, depth - 1).message
        if isinstance(value, str) and value:
            if name == "title" and texts:
                return f"{value}: {texts[0]}"
            texts.append(value)
    return texts[0] if texts else ""


def _of_text(text: str, depth: int) -> Words:
    text = text[:MAX_READ_CHARS]
    if depth and text.lstrip()[:1] in {"{", "["}:
        decoded = _decoded(text.encode("utf-8", "replace"))
        if not isinstance(decoded, str):
            return _words(decoded, depth - 1)
    if _MARKUP.match(text):
        title = _TITLE.search(text)
        text = title["text"] if title else ""
    return Words(text, None, "", None, {})


def _of_list(found: Sequence[object], depth: int) -> Words:
    """The words of a list of errors, or of FastAPI's validation problems, each with its place (`loc`)."""
    each = [_problem(one, depth) for one in found[:MAX_PROBLEMS]]
    messages = [words.message for words in each if words.message]
    first = each[0] if each else Words("", None, "", None, {})
    return first._replace(message="; ".join(messages))


def _problem(found: object, depth: int) -> Words:
    words = _words(found, depth - 1)
    if not isinstance(found, dict) or not isinstance(found.get("loc"), list):
        return words
    where = ".".join([str(step) for step in found["loc"][:MAX_PROBLEMS] if step != "body"])
    return words._replace(message=f"{where}: {words.message}" if where else words.message, param=_short(where))


def _short(value: object) -> str | None:
    """A code, a type or a parameter's name as text; None if it is neither a short text nor a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10**9 else None
    return value if isinstance(value, str) and 0 < len(value) <= MAX_CODE_CHARS else None


MAX_RETRY_AFTER_S: Final = 86_400

_TOO_LONG: Final = re.compile(
    r"(?:longer|larger|greater|more) than (?:the |this )?(?:model'?s? ?)?(?:max(?:imum)? )?"
    r"(?:context|model|input|prompt)"
    r"|requested token count exceeds|exceeds? the maximum (?:allowed length|number of (?:input )?tokens)"
    r"|maximum (?:context|prompt|input|model) (?:length|size|window)|max(?:imum)? context window|max_model_len"
    r"|exceeds? (?:the )?(?:available |model(?:'s)? |maximum |max )?(?:context|token limit|input length)"
    r"|exceed(?:s|ed)? model token limit|context (?:length|window|size|limit) (?:is )?exceed|context window exceeds"
    r"|(?:prompt|input|request|conversation) (?:is|was) too (?:long|large) for|(?:prompt|input) (?:is )?too long"
    r"|input tokens exceed|input length (?:[\d(),]+ |and `max_tokens` )?exceed|prompt exceeds max(?:imum)? length"
    r"|`?inputs`? tokens \+ `?max_new_tokens`? must be <=|`?inputs`? must have less than"
    r"|range of input length should be|prompt length .{0,60}exceeds|loaded with context length of only"
    r"|tokens to keep from the initial prompt is greater|too many tokens: .{0,80}prompt"
    r"|must be less than max_seq_len|max input token limit|total tokens exceeds? the model'?s max"
    r"|reached context length|too many total text bytes|reduce the length of the messages"
    r"|prompt token count of [\d,]+ exceeds|prompt length .{0,80}should not exceed max_seq_len",
    re.IGNORECASE,
)
_TOO_LONG_CODES: Final = frozenset({
    "context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "prompt_too_long",
    "input_too_long", "model_max_prompt_tokens_exceeded", "context_limit_exceeded",
})  # fmt: skip
_NO_CREDIT: Final = frozenset({
    "insufficient_quota", "insufficient_balance", "insufficient_credits", "billing_hard_limit_reached",
    "billing_not_active", "exceeded_current_quota_error", "payment_required", "credit_balance_too_low",
})  # fmt: skip
_NO_KEY: Final = re.compile(r"(?:api|access|authentication) (?:key|token) (?:not valid|is invalid|expired)"
                            r"|(?:incorrect|invalid|missing) (?:api|access) ?key", re.IGNORECASE)  # fmt: skip
_NO_KEY_CODES: Final = frozenset({"invalid_api_key", "API_KEY_INVALID", "authentication_error", "UNAUTHENTICATED"})
_MODERATED: Final = re.compile(
    r"moderat|content[ _](?:policy|filter|management|violation)|safety|flagged|prohibited|usage polic|responsible ai"
    r"|inappropriate|guardrail|sensitive",
    re.IGNORECASE,
)
_LENGTH_STATUSES: Final = frozenset({400, 413, 422})
_EFFORT: Final = re.compile(r"reasoning[ ._]?effort", re.IGNORECASE)
_DURATION: Final = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)\s?(?P<unit>ms|s|sec|seconds?|m|min|minutes?)?")
_TRY_AGAIN: Final = re.compile(
    r"(?:try again|retry(?: after)?) (?:in|after) (\d{1,9}(?:\.\d{1,9})?\s?(?:ms|s|sec|seconds?|m|min|minutes?)\b)",
    re.IGNORECASE,
)
_UNITS: Final = {"ms": 0.001, "m": 60.0}


class Meaning(Enum):
    """What a refusal is about."""

    REQUEST = "request"
    """The client's request: any engine would refuse it."""

    BUSY = "busy"
    """The engine cannot take this request now, but is not at fault: another engine may take it."""

    BROKEN = "broken"
    """The engine cannot be used: it has failed, or its operator's account or key was refused."""


class EngineRefusal(NamedTuple):
    """A refusal for the client, and what the engine's refusal was about."""

    refusal: Refusal
    meaning: Meaning


class Waits(NamedTuple):
    """The headers of an answer that say when to retry, as received."""

    retry_after: str | None = None
    retry_after_ms: str | None = None
    date: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "Waits":
        return cls(headers.get("retry-after"), headers.get("retry-after-ms"), headers.get("date"))


NO_WAITS: Final = Waits()


def refusal_from_engine(
    status: int, body: bytes | object, waits: Waits = NO_WAITS, now_s: float = 0.0
) -> EngineRefusal:
    """The refusal that the client gets for an engine's error. `body`: the error's bytes as received, or a decoded JSON
    value; `now_s`: unix seconds, for a `retry-after` that is a date.

    A message that names the engine's internals is replaced by its meaning, and the refusal's `internals` have the words
    of the message that may be logged.
    """
    words = words_of(body)
    after_s = _after_s(waits, words, now_s)
    found = _of_account(status, words) or _of_length(status, words) or _of_form(status, words)
    found = found or _of_effort(status, words) or _of_load(status, words, after_s)
    found = found or _of_engine(status, words, after_s) or _of_request(status, words)
    found.refusal.internals = loggable(f"{words.kind} {words.code or ''} {words.message}")
    return found


def _message_of(status: int, words: Words) -> str:
    message = words.message or f"the engine answered {status}"
    return meaning_of(status, message) if names_internals(status, message) else message[:MAX_MESSAGE_CHARS]


def _of_account(status: int, words: Words) -> EngineRefusal | None:
    """A refusal of the operator's key or account, about which the client can do nothing."""
    names = {words.code, words.kind}
    if status == 402 or (status in {400, 403, 429} and names & _NO_CREDIT):
        return _broken(502, "the engine's account has no credit left")
    is_key = status == 401 or (status == 400 and (names & _NO_KEY_CODES or _NO_KEY.search(words.message)))
    if is_key or (status == 403 and not _is_moderated(words)):
        return _broken(502, "the engine refused the proxy's credentials")
    return None


def _of_length(status: int, words: Words) -> EngineRefusal | None:
    """A refusal of a prompt that is too long. Its code makes clients compact their context."""
    if status not in _LENGTH_STATUSES or not (
        {words.code, words.kind} & _TOO_LONG_CODES or _TOO_LONG.search(words.message)
    ):
        return None
    refusal = Refusal(400, _message_of(400, words), code="context_length_exceeded", param="messages")
    return EngineRefusal(refusal, Meaning.REQUEST)


def _of_form(status: int, words: Words) -> EngineRefusal | None:
    """A refusal of what the model or its template does not take. OpenRouter answers 404, llama.cpp 500."""
    if status not in {404, 500} or unsupported_in(words.message).isdisjoint({IMAGES, LATE_SYSTEM, QUERY, TURNS}):
        return None
    return EngineRefusal(Refusal(400, _message_of(400, words)), Meaning.REQUEST)


def is_about_effort(message: str, param: str | None) -> bool:
    """Whether a refusal is about the reasoning effort that the request asks for."""
    return bool(_EFFORT.search(param or "") or _EFFORT.search(message))


def _of_effort(status: int, words: Words) -> EngineRefusal | None:
    """A chat template's refusal of an effort, which llama.cpp and older vLLM report as their own failure."""
    if status != 500 or not is_about_effort(words.message, words.param):
        return None
    return EngineRefusal(
        Refusal(400, _message_of(400, words), code="invalid_value", param=words.param), Meaning.REQUEST
    )


def _of_load(status: int, words: Words, after_s: int | None) -> EngineRefusal | None:
    if status == 429:
        code = words.code if words.code and not words.code.isdecimal() else "rate_limit_exceeded"
        refusal = Refusal(429, _message_of(429, words), code=code, param=words.param, retry_after_s=after_s or 1)
        return EngineRefusal(refusal, Meaning.BUSY)
    if status == 529:  # Anthropic's "overloaded"
        return EngineRefusal(
            Refusal(503, _message_of(503, words), code="engine_error", retry_after_s=after_s or 1), Meaning.BUSY
        )
    return None


def _of_engine(status: int, words: Words, after_s: int | None) -> EngineRefusal | None:
    """A failure of the engine. After a 503 the client may retry: the engine's queue may be full for a short time."""
    if status == 408:
        return _broken(504, _message_of(504, words), code="engine_timeout")
    if status < 400:
        return _broken(502, f"the engine answered {status}")
    if status < 500:
        return None
    shed = (after_s or 1) if status == 503 else None
    return _broken(status if status in {502, 503, 504} else 502, _message_of(status, words), after_s=shed)


def _of_request(status: int, words: Words) -> EngineRefusal:
    """A refusal of the request itself. A 404 or 425 is `BUSY`: for example, another engine may have the model."""
    code = words.code if words.code and not words.code.isdecimal() else None
    refusal = Refusal(status, _message_of(status, words), code=code, param=words.param)
    return EngineRefusal(refusal, Meaning.BUSY if status in {404, 425} else Meaning.REQUEST)


def _broken(status: int, message: str, *, code: str = "engine_error", after_s: int | None = None) -> EngineRefusal:
    return EngineRefusal(Refusal(status, message, code=code, retry_after_s=after_s), Meaning.BROKEN)


def _is_moderated(words: Words) -> bool:
    """Whether a 403 is about the content of the client's request."""
    metadata = words.more.get("metadata")
    reasons = isinstance(metadata, dict) and (metadata.get("reasons") or metadata.get("flagged_input"))
    return bool(reasons or _MODERATED.search(f"{words.code} {words.kind} {words.message}"))


def status_of_engine_error(error: Mapping[str, Any]) -> int:
    """The HTTP status for an error object that came with status 200. SGLang sends the status as `code`; other servers
    send a name.
    """
    for name in ("code", "status", "status_code"):
        code = error.get(name)
        if isinstance(code, str) and code.isdecimal() and len(code) == 3:
            code = int(code)
        if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599:
            return code
    names = [name for name in (error.get("code"), error.get("type"), error.get("status")) if isinstance(name, str)]
    return next((status for name, status in _STATUSES.items() if name in names), 502)


_STATUSES: Final = {
    **dict.fromkeys(_TOO_LONG_CODES, 400),
    **dict.fromkeys(_NO_CREDIT, 402),
    "rate_limit_exceeded": 429, "rate_limit_error": 429, "rate_limit_reached": 429, "RESOURCE_EXHAUSTED": 429,
    "overloaded_error": 529, "invalid_api_key": 401, "authentication_error": 401,
    "model_not_found": 404, "not_found_error": 404,
    "invalid_request_error": 400, "BadRequestError": 400, "invalid_value": 400, "INVALID_ARGUMENT": 400,
    "content_filter": 403, "content_policy_violation": 403,
}  # fmt: skip


def _after_s(waits: Waits, words: Words, now_s: float) -> int | None:
    """Whole seconds until a retry; None if neither headers nor body state a time that can be read."""
    stated = [
        _seconds(waits.retry_after_ms, "ms"),
        _seconds(waits.retry_after, "s"),
        _until(waits.retry_after, waits.date, now_s),
        *[_seconds(value, unit) for value, unit in _in_body(words)],
    ]
    found = next((each for each in stated if each is not None), None)
    return None if found is None else max(1, min(math.ceil(found), MAX_RETRY_AFTER_S))


def _seconds(value: object, unit: str) -> float | None:
    """A duration in seconds; None if `value` is not a duration. `unit`: the unit of a number that states none."""
    if isinstance(value, bool) or value is None:
        return None
    found = _DURATION.fullmatch(str(value).strip()[:64])
    if found is None:
        return float(MAX_RETRY_AFTER_S) if str(value).strip().isdecimal() else None
    named = found["unit"] or unit
    return float(found["number"]) * _UNITS.get(named[:2] if named[:2] == "ms" else named[:1], 1.0)


def _until(value: str | None, date: str | None, now_s: float) -> float | None:
    """Seconds until the date `value`, counted from the engine's `date` header if it sent one, else from `now_s`."""
    at = _time(value)
    return None if at is None else at - (_time(date) or now_s)


def _time(value: str | None) -> float | None:
    if not value or len(value) > 64:
        return None
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _in_body(words: Words) -> list[tuple[object, str]]:
    """The retry times in the body, with their units. Servers state them in members, in Google's `retryDelay`, or in
    words."""
    more, found = words.more, list[tuple[object, str]]()
    metadata = more.get("metadata")
    for each in (more, metadata if isinstance(metadata, dict) else {}):
        found += [
            (each.get("retry_after_ms"), "ms"),
            (each.get("retry_after"), "s"),
            (each.get("retry_after_seconds"), "s"),
        ]
    details = more.get("details")
    for each in details[:8] if isinstance(details, list) else ():
        if isinstance(each, dict):
            found.append((each.get("retryDelay"), "s"))
    found_words = _TRY_AGAIN.search(words.message)
    return [*found, (found_words[1], "s")] if found_words else found
