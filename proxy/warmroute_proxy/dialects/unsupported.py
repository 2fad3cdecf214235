"""Finds in a server's refusal what the server does not take in a chat; `fitting` writes the chat without it.

Servers with OpenAI's API refuse members that other servers need: reasoning models refuse `temperature`, strict servers
refuse `reasoning_content` and `chat_template_kwargs`, DeepSeek refuses the role `developer`, Mistral the ids of other
servers' calls. Agents send such members in each turn, and a history holds what an earlier server has left in it.

Only members that do not decide what is asked are left out (`OPTIONAL`). A server may also demand another form.
"""

import re
from typing import Any, Final

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
"""The role `developer` is not known: `system` stands for it."""

CALL_IDS: Final = "messages.tool_calls.id"
"""Ids of calls must have nine letters and digits, or be short."""

THOUGHTS: Final = "messages.thoughts"
"""Each message of the model must hold its thoughts."""

SIGNATURES: Final = "messages.signatures"
"""Each call must have a thought signature, as Gemini's have."""

RESULTS: Final = "messages.results"
"""Each call must have a result, and each result a call: a turn that was cut off has left others."""

EMPTY: Final = "messages.empty"
"""No message may be empty, and no list of calls."""

TEXTS: Final = "messages.texts"
"""A content must be a text."""

OTHER_TEXTS: Final = "messages.other_texts"
"""A content must be a text, except in messages of users."""

USERS_NAMES: Final = "messages.users_names"
"""Only messages of users may have names."""

IMAGES: Final = "messages.image_url"
"""The model reads no images: a note stands for each, as for a file that no engine reads. Otherwise an image that was
shown once would end its session, since agents send their whole history in each turn.
"""

CONTENTS: Final = "messages.contents"
"""Each message must have a content that is not null."""

USER_IMAGES: Final = "messages.user_images"
"""Only messages of users may have images, and not the results of calls."""

NAMED_RESULTS: Final = "messages.named_results"
"""The result of a call must name the function."""

TURNS: Final = "messages.turns"
"""Messages of the user and of the model must take turns: those of one role become one."""

BETWEEN: Final = "messages.between"
"""The model must answer the results of its calls before the user speaks again: a turn that was cut off lacks it."""

LATE_SYSTEM: Final = "messages.late_system"
"""Only the first message may be of the system: a later one becomes a reminder in a user's message."""

QUERY: Final = "messages.query"
"""The user must have said something: a compaction may leave only messages of the system and the model."""

LAST_USER: Final = "messages.last"
"""The last message must not be the model's: the user asks it to continue."""

WITHOUT_THINKING: Final[dict[str, dict[str, Any]]] = {
    "tool_choice.thinking": {"thinking": {"type": "disabled"}},
    "tool_choice.enable_thinking": {"enable_thinking": False},
}
"""A model that thinks cannot be made to call a tool: in such a turn, it does not think. The values are the members by
which servers switch thinking off.
"""

ZEROS: Final = {"zero.top_k": ("top_k", -1), "zero.top_p": ("top_p", 1e-6)}
"""The values that mean the same as a zero, which the engine refuses: all tokens, and only the most likely one."""

FUNCTIONS: Final = "messages.functions"
"""Tools, calls and the choice of a tool must be functions: others are left out, and their calls become functions."""

CUSTOM: Final = "tools.custom"
"""A custom tool must have its name and format in the member `custom`: Cursor sends the shape of Responses."""

SCHEMAS: Final = "tools.parameters"
"""Schemas of tools must be sound, and names unique: `tool_schemas` mends them."""

IN_MESSAGE: Final = "messages."
IN_CALL: Final = "messages.tool_calls."
OF_MESSAGES: Final = frozenset(
    {
        "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "provider_specific_fields", "refusal",
        "annotations", "cache_control", "phase", "name",
    }
)  # fmt: skip
_OF_CALLS: Final = frozenset({"extra_content", "thought_signature", "index", "name", "call_id", "response_item_id"})
_THOUGHTS: Final = frozenset({"messages.reasoning_content", "messages.reasoning"})
"""The proxy sends either under the name that the server reads, so a refusal of one is about both."""

_FORMS: Final = frozenset(
    {
        ROLE, CALL_IDS, THOUGHTS, SIGNATURES, RESULTS, NAMED_RESULTS, EMPTY, TEXTS, OTHER_TEXTS, USERS_NAMES, CONTENTS,
        USER_IMAGES, TURNS, BETWEEN, LATE_SYSTEM, QUERY, LAST_USER, FUNCTIONS,
    }
)  # fmt: skip

_QUOTE: Final = "[\"'`]?"
_NAME: Final = rf"(?<![\w.]){_QUOTE}(?P<name>[a-z_][\w\[\].]{{0,60}}){_QUOTE}"
_AT: Final = rf"(?:(?<![\w.]){_QUOTE}(?P<at>messages[\w\[\].]{{0,60}}){_QUOTE} ?: )?"
_KIND: Final = r"(?:parameter|argument|field|property|value)(?:\(s\)|s)?"
_ECHO: Final = re.compile(r"'input': |input_value=")
"""Where pydantic's refusals quote the client's own words."""

EFFORT: Final = "reasoning_effort"
_OF_VALUE: Final = re.compile(r"(?:unsupported|invalid) value", re.IGNORECASE)
_STEPS: Final = re.compile(r"[.\[\]', ]+")
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
        # TensorRT-LLM, NVIDIA, vLLM before 0.6.5
        r"\('body', (?P<name>[\w', -]{1,90})\), 'msg': 'extra inputs are not permitted'",
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

_DEMANDED: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), form)
    for form, pattern in {
        # DeepSeek, OpenAI, Alibaba, templates of Qwen
        ROLE: r"(?:unknown variant|invalid value:|does not support|unsupported role:?) .?developer"
        r"|developer.? is not one of|unexpected message role",
        # Mistral, OpenAI, Anthropic, Bedrock
        CALL_IDS: r"tool call id was .{1,100} but must be"
        r"|(?:tool_calls\[\d{1,4}\]\.id|tool_call_id).{0,2}: string too long"
        r"|tool_use\.id: string should match|tooluseid.{1,80}failed to satisfy constraint",
        # Moonshot, DeepSeek
        THOUGHTS: r"reasoning_content is missing in assistant|missing .?reasoning_content.? field in the assistant"
        r"|reasoning_content.{0,2} in the thinking mode must be passed",
        # Google
        SIGNATURES: r"is missing a thought_signature",
        # OpenAI, Moonshot, DeepSeek; OpenAI; Mistral
        RESULTS: r"must be followed by tool messages|role .?tool.? must be a response"
        r"|not the same number of function calls and responses|unexpected tool call id",
        # Moonshot; OpenAI; DeepSeek; Mistral; Anthropic
        EMPTY: r"message at position \d{1,6} with role .{1,12} must not be empty"
        r"|messages\[\d{1,6}\]\.\w{7,10}.?: empty array"
        r"|content or tool_calls must be set|must have either content or tool_calls|must (?:be|have) non-empty",
        # DeepSeek, Groq, Azure
        TEXTS: r"invalid type: sequence, expected a string|content.{0,4} ?: value must be a string"
        r"|content.{0,4} must be a string|content.{0,6}: expected a string, but got an array",
        # Groq
        OTHER_TEXTS: r"for 'role:(?:system|tool|assistant|developer)'.{1,80}value must be a string",
        # Ollama; OpenAI; LM Studio
        CONTENTS: r"invalid message content type: <nil>|content.?: expected .{1,60} got null"
        r"|content.? field must be a string or an array",
        # SGLang and vLLM, DeepSeek
        FUNCTIONS: r"'(?:tools|tool_calls)', \d{1,6}, '(?:function|type)'\)|'tool_choice', '\w{1,60}', 'function'\)"
        r"|'function' is a required property|tools\[\d{1,6}\].{1,20}unknown variant .{1,60}expected .?function",
        # OpenAI
        CUSTOM: r"missing required parameter: '(?:tools\[\d{1,6}\]|tool_choice)\.custom'",
        # OpenAI, SGLang, Anthropic, Google
        SCHEMAS: r"invalid schema for function|function has invalid 'parameters' schema|json schema is invalid"
        r"|tool names must be unique|duplicate function declaration",
        # Google
        NAMED_RESULTS: r"function_response\.name: name cannot be empty",
        # templates of Gemma and Mistral
        TURNS: r"roles must alternate",
        # Mistral
        BETWEEN: r"unexpected role .?user.? after role .?tool",
        # templates of Qwen
        QUERY: r"no user query found in messages",
        # templates of Qwen; Mistral
        LATE_SYSTEM: r"system message must be at the beginning|unexpected role .?system.? after role",
        # Anthropic; Mistral; DeepSeek; llama.cpp
        LAST_USER: r"must end with a user message|expected last role user"
        r"|last message of .{1,40} must be a user message"
        r"|prefill is incompatible with enable_thinking|2 or more assistant messages at the end",
        # Moonshot, Anthropic; Alibaba
        "tool_choice.thinking": r"tool_choice .{1,20} is incompatible with thinking"
        r"|thinking mode does not support this tool_choice|thinking may not be enabled when tool_choice",
        "tool_choice.enable_thinking": r"tool_choice parameter does not support being set to .{1,40} in thinking mode",
        # SGLang, vLLM before 0.9
        "zero.top_k": r"top_k must be -1 .{1,30} got 0",
        "zero.top_p": r"top_p must be in .{1,8} got 0",
        # xAI
        USERS_NAMES: r"only messages? of role .user. can have a name",
        # OpenAI
        USER_IMAGES: r"image urls are only allowed for messages with role",
    }.items()
)
OF_SGLANG: Final = frozenset({IMAGES, SCHEMAS, FUNCTIONS, TURNS, LATE_SYSTEM, QUERY, *ZEROS})
"""What SGLang refuses: it ignores members that it does not know."""

NO_IMAGES: Final = re.compile(
    r"unknown variant .?image_url|image_url is only supported|is not a multimodal model|at most 0 image"
    r"|(?:does not|doesn't|do not) support (?:the )?(?:image|vision|multimodal)s?"
    r"(?! ?(?:urls?|formats?|types?|sizes?)\b)(?! (?:inputs? )?in (?:tool|system|assistant))|that support image input"
    r"|image inputs? (?:is|are) not (?:supported|enabled)|missing data required for image input",
    re.IGNORECASE,
)
"""Refusals of images by a model that reads only text: DeepSeek, OpenAI, vLLM, Workers AI, OpenRouter, SGLang, Mistral,
llama.cpp, Ollama.
"""


def unsupported_in(message: str) -> frozenset[str]:
    """What a server does not take, by the words of its refusal: names of `OPTIONAL` and `LIMITS`, `messages.NAME` for
    a member of messages, `messages.tool_calls.NAME` for a member of calls, and the forms that it demands.
    """
    message = _ECHO.split(message, maxsplit=1)[0]
    found = {form for pattern, form in (*_DEMANDED, (NO_IMAGES, IMAGES)) if pattern.search(message)}
    for pattern in _REFUSED:
        for each in pattern.finditer(message):
            name, at = each["name"], each.groupdict().get("at")
            member = _member(name if at is None or name.startswith(IN_MESSAGE) else f"{at}.{name}")
            if member is not None and not (member == EFFORT and _OF_VALUE.search(message)):
                found.add(member)
    if OTHER_TEXTS in found:
        found.discard(TEXTS)
    if not found.isdisjoint(_THOUGHTS):
        found |= _THOUGHTS
    return frozenset(found)


def _member(path: str) -> str | None:
    """The member that may be left out, by a server's path to it, such as `body.messages.2.assistant.reasoning`."""
    steps = [step for step in _STEPS.split(path) if step and not step.isdecimal() and step != "body"]
    if not steps:
        return None
    name = "".join([f"_{char.lower()}" if char.isupper() else char for char in steps[-1]])
    if steps[0] == "messages":
        if "tool_calls" in steps:
            return f"{IN_CALL}{name}" if steps[-2] == "tool_calls" and name in _OF_CALLS else None
        return f"{IN_MESSAGE}{name}" if name in OF_MESSAGES and len(steps) <= 3 else None
    if len(steps) > 1:
        return None
    if name in OPTIONAL or name in LIMITS:
        return name
    return f"{IN_MESSAGE}{name}" if name in OF_MESSAGES else None


def is_of_messages(name: str) -> bool:
    return name.startswith(IN_MESSAGE)


def named(unsupported: frozenset[str], messages: bytes | None) -> frozenset[str]:
    """Those members of messages that are left out of these messages; a form that is demanded leaves nothing out."""
    found = [name for name in unsupported - _FORMS if is_of_messages(name)]
    if TEXTS in unsupported:
        found.append(IMAGES)
    if USERS_NAMES in unsupported:
        found.append(f"{IN_MESSAGE}name")
    return frozenset([name for name in found if messages and b'"%b"' % name.rpartition(".")[2].encode() in messages])
