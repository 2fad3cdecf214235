"""Translates Gemini's `generationConfig` to members of a chat-completions body."""

from typing import Any, Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.gemini.tools import either, json_schema, snake
from warmroute_proxy.dialects.raw_json import BadRequest, Members, object_at, text_at
from warmroute_proxy.dialects.work import TranslationWork

PATH: Final = "generationConfig"
_RENAMED: Final = {
    "temperature": "temperature",
    "topP": "top_p",
    "maxOutputTokens": "max_tokens",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "seed": "seed",
    "stopSequences": "stop",
}
_READ: Final = frozenset(
    {
        *_RENAMED, "topK", "candidateCount", "responseMimeType", "responseSchema", "responseJsonSchema",
        "_responseJsonSchema", "thinkingConfig", "responseModalities",
    }
)  # fmt: skip
_KNOWN: Final = _READ | {snake(name) for name in _READ}
_decode_number: Final = msgspec.json.Decoder(int | float, strict=False).decode
_LEVELS: Final = ("MINIMAL", "LOW", "MEDIUM", "HIGH")
_WHOLE: Final = frozenset({"maxOutputTokens", "seed"})
"""Whole numbers. Google's JSON may write one as a text, or with a fraction of zero."""


class Thinking:
    """`thinkingConfig`. `shown`: whether the answer shows thoughts; `chat`: the settings in chat's terms."""

    def __init__(self, config: Members | None) -> None:
        """Raises: BadRequest."""
        self.shown = False
        self.chat: dict[str, Any] = {}
        if config is None:
            return
        path = f"{PATH}.thinkingConfig"
        shown = bytes(either(config, "includeThoughts") or b"false")
        if shown not in (b"true", b"false"):
            raise BadRequest(f"{path}.includeThoughts", "must be true or false")
        self.shown = shown == b"true"
        budget = either(config, "thinkingBudget")
        level = either(config, "thinkingLevel")
        found = "" if level is None else text_at({"thinkingLevel": level}, "thinkingLevel", path).upper()
        if found and found != "THINKING_LEVEL_UNSPECIFIED":
            if found not in _LEVELS:
                raise BadRequest(f"{path}.thinkingLevel", f"must be one of {', '.join(_LEVELS)}")
            self.chat["reasoning_effort"] = found.lower()
        elif budget is not None:
            thinks = _number(budget, f"{path}.thinkingBudget") != 0
            self.chat["chat_template_kwargs"] = {"thinking": thinks, "enable_thinking": thinks}


def settings(raw: Raw | None, dropped: set[str], work: TranslationWork) -> tuple[dict[str, Any], Thinking]:
    """The settings in chat's terms, and those of thinking. Adds unknown members to `dropped`. Raises: BadRequest."""
    if raw is None:
        return {}, Thinking(None)
    members = object_at(raw, PATH)
    dropped.update(f"{PATH}.{name}" for name in members if name not in _KNOWN)
    if (kinds := either(members, "responseModalities")) is not None and b"".join(bytes(kinds).split()) != b'["TEXT"]':
        dropped.add(f"{PATH}.responseModalities")
    chat: dict[str, Any] = {}
    for theirs, ours in _RENAMED.items():
        value = either(members, theirs)
        if value is not None:
            chat[ours] = int(_number(value, f"{PATH}.{theirs}")) if theirs in _WHOLE else value
    top_k = either(members, "topK")
    if top_k is not None:
        chat["top_k"] = int(_number(top_k, f"{PATH}.topK"))
    if (count := either(members, "candidateCount")) is not None and _number(count, f"{PATH}.candidateCount") != 1:
        raise BadRequest(f"{PATH}.candidateCount", "must be 1")
    chat |= _format(members, dropped, work)
    thinking = either(members, "thinkingConfig")
    thinks = Thinking(None if thinking is None else object_at(thinking, f"{PATH}.thinkingConfig"))
    return chat | thinks.chat, thinks


def _format(members: Members, dropped: set[str], work: TranslationWork) -> dict[str, Any]:
    kind = either(members, "responseMimeType")
    mime_type = "" if kind is None else text_at({"responseMimeType": kind}, "responseMimeType", PATH)
    plain = either(members, "responseJsonSchema") or members.get("_responseJsonSchema")
    openapi = either(members, "responseSchema")
    schema: Any = None
    if plain is not None:
        object_at(plain, f"{PATH}.responseJsonSchema")
        schema = plain
    elif openapi is not None:
        schema = json_schema(openapi, f"{PATH}.responseSchema", work)
    if mime_type == "text/x.enum":  # a bare word at Google, but a schema makes a JSON string of it
        dropped.add(f"{PATH}.responseMimeType")
    if schema is not None:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}}
    return {"response_format": {"type": "json_object"}} if mime_type == "application/json" else {}


def _number(raw: Raw, path: str) -> float:
    try:
        found: float = _decode_number(raw)
    except (msgspec.DecodeError, ValueError):
        raise BadRequest(path, "must be a number") from None
    if not abs(found) <= 2**53:  # also refuses what is not a number
        raise BadRequest(path, "is out of bounds")
    return found
