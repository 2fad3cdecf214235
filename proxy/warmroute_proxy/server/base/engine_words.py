"""The words of an engine's error, whatever form its body has: what it says, under which code, and when to come back.

Servers write errors as OpenAI does, flat as SGLang does, with `detail` as FastAPI does, as problem details (RFC 7807),
in a list, as a text, or as a page of HTML. Gateways put one error into the message of another one. What comes out has
no secret and no path of the engine's machine, and a bound.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

MAX_READ_CHARS: Final = 65_536
MAX_CODE_CHARS: Final = 256
MAX_DEPTH: Final = 4
MAX_PROBLEMS: Final = 8  # of a list of them that are messages

_SOURCE_LINES: Final = re.compile(r"\n\n  File |Traceback \(most recent call last\)")
"""After this marker, SGLang's messages contain server file paths and echo the request body."""

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
    """What an error says. `kind`: its type; `more`: the object that it stands in."""

    message: str
    code: str | None
    kind: str
    param: str | None
    more: Mapping[str, Any]


def words_of(body: bytes | object) -> Words:
    """The words of an error: of a body as it came, or of a value of JSON."""
    found = _decoded(body) if isinstance(body, bytes) else body
    words = _words(found, MAX_DEPTH)
    return words._replace(message=without_secrets(_SOURCE_LINES.split(words.message)[0]))


def without_secrets(text: str) -> str:
    """In one line, without keys of APIs, and without paths of a machine."""
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
    """The error in an error: as the text of a JSON object, or beside it, as OpenRouter has that of its provider."""
    metadata = found.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    for text in (message, raw if isinstance(raw, str) else ""):
        if text.lstrip()[:1] in {"{", "["}:
            words = _words(_decoded(text.encode("utf-8", "replace")), depth - 1)
            if words.message and words.message.lstrip()[:1] not in {"{", "["}:
                return words
    return None


def _text_in(found: Mapping[str, Any], depth: int) -> str:
    """The text of an object, by the names that servers have for it; a title stands in front of its detail."""
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
    """A code, a type or the name of a parameter, if it is a short text or a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10**9 else None
    return value if isinstance(value, str) and 0 < len(value) <= MAX_CODE_CHARS else None
