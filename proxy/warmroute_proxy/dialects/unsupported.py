"""Finds in a server's refusal what the server does not take in a chat, and writes the chat without it.

Servers with OpenAI's API refuse members that other servers need: reasoning models refuse `temperature`, strict servers
refuse `reasoning_content` and `chat_template_kwargs`, DeepSeek refuses the role `developer`, Mistral the ids of other
servers' calls. Agents send such members in each turn, and a history holds what an earlier server has left in it.

Only members that do not decide what is asked are left out (`OPTIONAL`). A server may also demand another form.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_hexdigest

from warmroute_proxy.dialects.content import text_of
from warmroute_proxy.dialects.foreign import not_shown
from warmroute_proxy.dialects.raw_json import Members, encode, is_list

OPTIONAL: Final = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "stream_options", "prediction", "verbosity", "reasoning", "reasoning_effort", "thinking",
        "chat_template_kwargs", "separate_reasoning", "stream_reasoning", "skip_special_tokens", "no_stop_trim",
        "parallel_tool_calls",
    }
)  # fmt: skip
"""Members of a chat that a server may go without: hints, settings of the sampler, and marks of the client."""

LIMITS: Final = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The two names of the limit of an answer. A server that refuses one gets the other."""

ROLE: Final = "messages.role"
CALL_IDS: Final = "messages.tool_calls.id"
THOUGHTS: Final = "messages.thoughts"
"""Forms that servers demand: `system` for the role `developer`, ids of nine letters and digits, and thoughts in each
message of the model."""

IMAGES: Final = "messages.image_url"
"""For a model that reads no images: a note stands for each, as for a file that no engine reads. Otherwise an image that
was shown once would end its session, since agents send their whole history in each turn."""

_IN_MESSAGE: Final = "messages."
_IN_CALL: Final = "messages.tool_calls."
_OF_MESSAGES: Final = frozenset(
    {
        "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "provider_specific_fields", "refusal",
        "annotations", "cache_control", "phase",
    }
)  # fmt: skip
_OF_CALLS: Final = frozenset({"extra_content", "thought_signature", "index", "name", "call_id", "response_item_id"})
_FORMS: Final = frozenset({ROLE, CALL_IDS, THOUGHTS})
_NO_THOUGHT: Final = Raw(b'" "')  # DeepSeek refuses an empty text
_NOTHING: Final = (b"null", b'""')
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")

_QUOTE: Final = "[\"'`]?"
_NAME: Final = rf"{_QUOTE}(?P<name>[a-z_](?:[\w\[\].]{{0,80}}[\w\]])?){_QUOTE}"
_AT: Final = rf"(?:{_QUOTE}(?P<at>messages[\w\[\].]{{0,60}}){_QUOTE} ?: )?"
_KIND: Final = r"(?:parameter|argument|field|property|value)(?:\(s\)|s)?"
_REFUSED: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # OpenAI, Azure, NVIDIA
        rf"(?:unsupported|unknown|unrecognized|unexpected) (?:request )?{_KIND}(?: supplied)?:? {_NAME}",
        rf"{_AT}{_NAME} is (?:deprecated|not supported|unsupported)(?: for| with| by| on| in) (?:this|the) model",
        # Groq, Cerebras
        rf"{_AT}property {_NAME} is unsupported",
        # Google
        rf"unknown name {_NAME}(?: at '(?P<at>[\w\[\].]{{1,60}})')?: cannot find field",
        # Mistral, Fireworks, Bedrock
        rf"{_NAME}: extra inputs are not permitted",
        rf"extra inputs are not permitted, field: {_NAME}",
        rf"extraneous key \[{_NAME}\] is not permitted",
        # Moonshot
        rf"invalid {_NAME}: only [\d.]{{1,8}} (?:is|are) allowed",
        # xAI, Bedrock
        rf"does(?:n't| not) support (?:the )?(?:parameter |argument )?{_NAME}",
        rf"not supported on this model: {_NAME}",
        # Anthropic
        rf"{_QUOTE}temperature{_QUOTE} and {_NAME} cannot both be specified",
    )
)
"""The refusals of a member. `at`: the place of the object that has the member."""

_DEMANDED: Final = (
    (
        re.compile(
            r"(?:unknown variant|invalid value:|does not support|unsupported role:?) .?developer"
            r"|developer.? is not one of|unexpected message role",
            re.IGNORECASE,
        ),
        ROLE,
    ),
    (
        re.compile(
            r"tool call id was .{1,100} but must be|(?:tool_calls\[\d{1,4}\]\.id|tool_call_id).{0,2}: string too long"
            r"|tool_use\.id: string should match|tooluseid.{1,200}failed to satisfy constraint",
            re.IGNORECASE,
        ),
        CALL_IDS,
    ),
    (
        re.compile(
            r"reasoning_content is missing in assistant|reasoning_content.{0,2} in the thinking mode must be passed",
            re.IGNORECASE,
        ),
        THOUGHTS,
    ),
)
NO_IMAGES: Final = re.compile(
    r"unknown variant .?image_url|image_url is only supported|is not a multimodal model|at most 0 image"
    r"|(?:does not|doesn't|do not) support (?:the )?(?:image|vision|multimodal)|that support image input"
    r"|image inputs? (?:is|are) not (?:supported|enabled)|missing data required for image input",
    re.IGNORECASE,
)
"""Refusals of images by a model that reads only text: DeepSeek, OpenAI, vLLM, Workers AI, OpenRouter, SGLang, Mistral,
llama.cpp, Ollama.
"""

_decode_parts: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_members: Final = msgspec.json.Decoder(Members).decode
_decode_messages: Final = msgspec.json.Decoder(list[Members]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)


def unsupported_in(message: str) -> frozenset[str]:
    """What a server does not take, by the words of its refusal: names of `OPTIONAL` and `LIMITS`, `messages.NAME` for
    a member of messages, `messages.tool_calls.NAME` for a member of calls, and the forms that it demands.
    """
    found = {form for pattern, form in (*_DEMANDED, (NO_IMAGES, IMAGES)) if pattern.search(message)}
    for pattern in _REFUSED:
        for each in pattern.finditer(message):
            name, at = each["name"], each.groupdict().get("at")
            member = _member(name if at is None or name.startswith(_IN_MESSAGE) else f"{at}.{name}")
            if member is not None:
                found.add(member)
    return frozenset(found)


def _member(path: str) -> str | None:
    """The member that may be left out, by a server's path to it, such as `body.messages.2.assistant.reasoning`."""
    steps = [step for step in re.split(r"[.\[\]]+", path) if step and not step.isdecimal() and step != "body"]
    if not steps:
        return None
    name = "".join([f"_{char.lower()}" if char.isupper() else char for char in steps[-1]])
    if steps[0] == "messages":
        if "tool_calls" in steps:
            return f"{_IN_CALL}{name}" if steps[-2] == "tool_calls" and name in _OF_CALLS else None
        return f"{_IN_MESSAGE}{name}" if name in _OF_MESSAGES and len(steps) <= 3 else None
    if len(steps) > 1:
        return None
    if name in OPTIONAL or name in LIMITS:
        return name
    return f"{_IN_MESSAGE}{name}" if name in _OF_MESSAGES else None


def is_of_messages(name: str) -> bool:
    return name.startswith(_IN_MESSAGE)


def named(unsupported: frozenset[str], messages: bytes | None) -> frozenset[str]:
    """Those members of messages that are left out of these messages; a form that is demanded leaves nothing out."""
    found = [name for name in unsupported - _FORMS if is_of_messages(name)]
    return frozenset([name for name in found if messages and b'"%b"' % name.rpartition(".")[2].encode() in messages])


def fitted(messages: bytes, unsupported: frozenset[str]) -> bytes | None:
    """The messages of a chat without what the server does not take; None if they stay as they are."""
    names = [name for name in unsupported if is_of_messages(name)]
    if not names:
        return None
    calls = frozenset([name.removeprefix(_IN_CALL) for name in names if name.startswith(_IN_CALL) and name != CALL_IDS])
    members = frozenset([name.removeprefix(_IN_MESSAGE) for name in names]) & _OF_MESSAGES
    try:
        found = [_fitted(message, members, calls, unsupported) for message in _decode_messages(messages)]
    except _PROBLEMS:
        return None
    return encode(found)


def _fitted(message: Members, members: frozenset[str], calls: frozenset[str], unsupported: frozenset[str]) -> Members:
    left = {name: value for name, value in message.items() if name not in members}
    role = _decode_text(left["role"]) if "role" in left else ""
    if role == "developer" and ROLE in unsupported:
        left["role"] = Raw(b'"system"')
    if role == "assistant" and THOUGHTS in unsupported and not _has_thoughts(left):
        left["reasoning_content"] = _NO_THOUGHT
    if IMAGES in unsupported and "content" in left and is_list(left["content"]):
        left["content"] = Raw(encode([_without_image(part) for part in _decode_parts(left["content"])]))
    if CALL_IDS in unsupported and "tool_call_id" in left:
        left["tool_call_id"] = _short_id(left["tool_call_id"])
    if (calls or CALL_IDS in unsupported) and "tool_calls" in left:
        left["tool_calls"] = Raw(encode(_calls(left["tool_calls"], calls, short=CALL_IDS in unsupported)))
    return left


def _without_image(part: Raw) -> Any:
    return text_of(not_shown("image")) if "image_url" in _decode_members(part) else part


def _has_thoughts(message: Members) -> bool:
    given = [bytes(message[name]) for name in ("reasoning_content", "reasoning") if name in message]
    return any(value not in _NOTHING for value in given)


def _calls(raw: Raw, without: frozenset[str], *, short: bool) -> Any:
    found = []
    for call in msgspec.json.decode(raw, type=list[Members] | None) or ():
        left = {name: value for name, value in call.items() if name not in without}
        if short and "id" in left:
            left["id"] = _short_id(left["id"])
        found.append(left)
    return found


def _short_id(raw: Raw) -> Raw:
    """An id of nine letters and digits: the same for the call and its result."""
    found = msgspec.json.decode(raw, type=str | None)
    return raw if found is None or _NINE.fullmatch(found) else Raw(encode(xxh3_64_hexdigest(found.encode())[:9]))
