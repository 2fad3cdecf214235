"""What a server refuses, and a chat can go without, is left out: in the refused turn, and in those after it."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.apis.case import EVENTS, PATHS
from tests.apis.played import Answered, Said, Scene
from warmroute_proxy.dialects.tool_schemas import sound
from warmroute_proxy.server.request.inference_request import MAX_CHANGES

USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
ASKED: Final[dict[str, Any]] = {"role": "user", "content": "one"}
NEXT: Final[dict[str, Any]] = {"role": "user", "content": "two"}
IMAGE: Final[dict[str, Any]] = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
BETWEEN: Final[dict[str, Any]] = {"role": "assistant", "content": "I have the results."}
NOTE: Final[dict[str, Any]] = {"type": "text", "text": "[image: not shown]"}


def call(call_id: str, **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "read", "arguments": "{}"}, **more}


def result(call_id: str, content: Any = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def calling(*calls: dict[str, Any], content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def answers(*, stream: bool = False) -> Said:
    end = {"index": 0, "finish_reason": "stop"}
    if not stream:
        return Said(json.dumps({"choices": [{**end, "message": {"content": "hi"}}], "usage": USAGE}).encode())
    chunks = [{"choices": [{**end, "delta": {"role": "assistant", "content": "hi"}}]}, {"choices": [], "usage": USAGE}]
    events = [b"data: %b\n\n" % json.dumps(each).encode() for each in chunks]
    return Said(b"", media=EVENTS, pieces=[*events, b"data: [DONE]\n\n"])


def refused(message: str, status: int = 400) -> Said:
    return Said(json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode(), status=status)


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "kimi", "messages": [ASKED], **more}).encode()


def played(folder: Path, says: list[Said], body: bytes, **more: Any) -> Answered:
    return Scene(folder / "p", says, engine_count=1, **more).play(PATHS["chat"], body)


def dropped(answered: Answered) -> Any:
    assert answered.row is not None
    return json.loads(answered.row["usage"])["warmroute"].get("dropped_fields")


class Refused(NamedTuple):
    """A refusal in a server's words, and the member that it names."""

    message: str
    member: str
    value: Any


TOP: Final = {
    "OpenAI, a member": Refused(
        "Unknown parameter: 'chat_template_kwargs'.", "chat_template_kwargs", {"thinking": True}
    ),
    "OpenAI, a value": Refused(
        "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is "
        "supported.",
        "temperature",
        0.2,
    ),
    "OpenAI, efforts": Refused(
        "Unrecognized request argument supplied: reasoning_effort", "reasoning_effort", "minimal"
    ),
    "Azure": Refused("Unrecognized request argument supplied: parallel_tool_calls", "parallel_tool_calls", False),
    "Groq": Refused("property 'chat_template_kwargs' is unsupported", "chat_template_kwargs", {"thinking": True}),
    "Google": Refused('Invalid JSON payload received. Unknown name "store": Cannot find field.', "store", False),
    "Moonshot": Refused("invalid temperature: only 1 is allowed for this model", "temperature", 0.5),
    "xAI": Refused("Model grok-4.5 does not support parameter presencePenalty.", "presence_penalty", 0),
    "xAI, before": Refused("Argument not supported on this model: presencePenalty", "presence_penalty", 0),
    "Anthropic": Refused("`temperature` is deprecated for this model.", "temperature", 0.2),
    "Anthropic, two": Refused(
        "`temperature` and `top_p` cannot both be specified for this model. Please use only one.", "top_p", 0.9
    ),
    "Bedrock": Refused("This model doesn't support the temperature field. Remove it and try again.", "temperature", 0),
    "TensorRT-LLM": Refused(
        "[{'type': 'extra_forbidden', 'loc': ('body', 'verbosity'), 'msg': 'Extra inputs are not permitted', 'input': "
        "'low'}]",
        "verbosity",
        "low",
    ),
    "Fireworks": Refused("Extra inputs are not permitted, field: 'reasoning'", "reasoning", {"effort": "low"}),
}


@pytest.mark.parametrize("server", TOP)
def test_a_member_that_the_server_refuses_is_left_out_from_then_on(tmp_path: Path, server: str) -> None:
    message, member, value = TOP[server]
    body = chat(**{member: value})
    scene = Scene(tmp_path / "p", [refused(message), answers(), answers()], engine_count=1)
    first, second = scene.play_turns(PATHS["chat"], [lambda _: body, lambda _: body])
    assert [member in sent for _, sent in scene.sent] == [True, False, False]
    assert dropped(first) == dropped(second) == [member]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refuses", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_an_answer_goes_by_its_other_name(tmp_path: Path, refuses: str, stream: bool) -> None:
    other = "max_completion_tokens" if refuses == "max_tokens" else "max_tokens"
    said = refused(f"Unsupported parameter: '{refuses}' is not supported with this model. Use '{other}' instead.")
    answered = played(tmp_path, [said, answers(stream=stream)], chat(stream=stream, **{refuses: 100}))
    assert answered.whole
    (_, first), (_, second) = answered.sent
    assert (first[refuses], second.get(refuses), second[other]) == (100, None, 100)
    assert dropped(answered) is None


THOUGHT: Final[dict[str, Any]] = {
    "role": "assistant",
    "content": "Hello",
    "reasoning_content": "I think.",
    "refusal": None,
}
IN_MESSAGES: Final = {
    "OpenAI": Refused("Unknown parameter: 'messages[1].reasoning_content'.", "reasoning_content", THOUGHT),
    "Groq": Refused(
        "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property "
        "'reasoning_content' is unsupported)]",
        "reasoning_content",
        THOUGHT,
    ),
    "Cerebras": Refused(
        "messages.1.assistant.reasoning_content: property 'messages.1.assistant.reasoning_content' is unsupported",
        "reasoning_content",
        THOUGHT,
    ),
    "Fireworks": Refused(
        "Extra inputs are not permitted, field: `messages[1].refusal`, value: None", "refusal", THOUGHT
    ),
    "vLLM before 0.6.5": Refused(
        "[{'type': 'extra_forbidden', 'loc': ('body', 'messages', 1, 'typed-dict', 'refusal'), 'msg': 'Extra inputs "
        "are not permitted', 'input': None}]",
        "refusal",
        THOUGHT,
    ),
    "xAI": Refused("Only messages of role 'user' can have a name.", "name", {**THOUGHT, "name": "coder"}),
}


@pytest.mark.parametrize("server", IN_MESSAGES)
def test_a_member_of_messages(tmp_path: Path, server: str) -> None:
    message, member, said = IN_MESSAGES[server]
    answered = played(tmp_path, [refused(message), answers()], chat(messages=[ASKED, said, NEXT]))
    left = {name: value for name, value in said.items() if name != member}
    assert answered.sent[1][1]["messages"] == [ASKED, left, NEXT]
    assert dropped(answered) == [f"messages.{member}"]


def test_a_list_of_problems_as_mistral_writes_it(tmp_path: Path) -> None:
    places: list[list[Any]] = [["messages", 1, "assistant", "reasoning_content"], ["chat_template_kwargs"]]
    detail = [
        {"type": "extra_forbidden", "loc": ["body", *place], "msg": "Extra inputs are not permitted"}
        for place in places
    ]
    body = {"object": "error", "message": {"detail": detail}, "type": "invalid_request_message_error", "code": None}
    said = Said(json.dumps(body).encode(), status=422)
    answered = played(
        tmp_path, [said, answers()], chat(messages=[ASKED, THOUGHT, NEXT], chat_template_kwargs={"thinking": True})
    )
    assert dropped(answered) == ["chat_template_kwargs", "messages.reasoning_content"]


class Demand(NamedTuple):
    """A refusal in a server's words; the messages that it is about; what the server gets then."""

    message: str
    messages: list[Any]
    fitted: list[Any]


INTERRUPTED: Final = "The call has no result: it was interrupted."
FORMS: Final = {
    "developer, DeepSeek": Demand(
        "Failed to deserialize the JSON body into the target type: messages[0].role: unknown variant `developer`, "
        "expected one of `system`, `user`, `assistant`, `tool` at line 1 column 85",
        [{"role": "developer", "content": "s"}, ASKED],
        [{"role": "system", "content": "s"}, ASKED],
    ),
    "ids of calls, Mistral": Demand(
        "Tool call id was functions.read:0 but must be a-z, A-Z, 0-9, with a length of 9.",
        [ASKED, calling(call("functions.read:0"), call("abcDEF123")), result("functions.read:0"), result("abcDEF123")],
        [ASKED, calling(call("73c328e15"), call("abcDEF123")), result("73c328e15"), result("abcDEF123")],
    ),
    "ids of calls, OpenAI": Demand(
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a "
        "string with length 46 instead.",
        [ASKED, calling(call("functions.read:0")), result("functions.read:0")],
        [ASKED, calling(call("73c328e15")), result("73c328e15")],
    ),
    "thoughts, Moonshot": Demand(
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
        [ASKED, calling(call("a")), result("a"), THOUGHT],
        [ASKED, calling(call("a"), reasoning_content=" "), result("a"), THOUGHT],
    ),
    "thoughts, DeepSeek": Demand(
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        [ASKED, {"role": "assistant", "content": "b", "reasoning_content": ""}, NEXT],
        [ASKED, {"role": "assistant", "content": "b", "reasoning_content": " "}, NEXT],
    ),
    "signatures, Google": Demand(
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work.",
        [ASKED, calling(call("a"), call("b", extra_content={"google": {"thought_signature": "c"}}))],
        [
            ASKED,
            calling(
                call("a", extra_content={"google": {"thought_signature": "skip_thought_signature_validator"}}),
                call("b", extra_content={"google": {"thought_signature": "c"}}),
            ),
        ],
    ),
    "calls without results, OpenAI": Demand(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "The following tool_call_ids did not have response messages: b",
        [ASKED, calling(call("a"), call("b")), result("a"), NEXT, result("late"), calling(call("c"))],
        [
            *(ASKED, calling(call("a"), call("b")), result("a"), result("b", INTERRUPTED), NEXT),
            *({"role": "user", "content": "x"}, calling(call("c")), result("c", INTERRUPTED)),
        ],
    ),
    "empty messages, Moonshot": Demand(
        "Invalid request: the message at position 1 with role 'assistant' must not be empty",
        [ASKED, {"role": "assistant", "content": ""}, NEXT, calling(call("a")), result("a", "")],
        [ASKED, NEXT, calling(call("a")), result("a", "")],
    ),
    "an empty list of calls, OpenAI": Demand(
        "Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but got an empty "
        "array instead.",
        [ASKED, {"role": "assistant", "content": "b", "tool_calls": []}, NEXT],
        [ASKED, {"role": "assistant", "content": "b"}, NEXT],
    ),
    "a list of texts, DeepSeek": Demand(
        "Failed to deserialize the JSON body into the target type: messages[0]: invalid type: sequence, expected a "
        "string at line 1 column 98",
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [{"role": "user", "content": "a\nb"}],
    ),
    "names of results, Google": Demand(
        "* GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty.",
        [ASKED, calling(call("a"), call("c", function=None)), result("a"), result("b")],
        [ASKED, calling(call("a"), call("c", function=None)), {**result("a"), "name": "read"}, result("b")],
    ),
    "turns, a template": Demand(
        "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
        [
            *({"role": "system", "content": "s"}, ASKED, {"role": "user", "content": [IMAGE]}, THOUGHT),
            *(calling(call("a")), result("a"), result("b"), NEXT, {"role": "user", "content": ""}),
        ],
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "one"}, IMAGE]},
            *({**THOUGHT, "tool_calls": [call("a")]}, result("a"), result("b"), BETWEEN, NEXT),
        ],
    ),
    "results that the model did not answer, Mistral": Demand(
        "Unexpected role 'user' after role 'tool'",
        [ASKED, calling(call("a")), result("a"), NEXT, THOUGHT],
        [ASKED, calling(call("a")), result("a"), BETWEEN, NEXT, THOUGHT],
    ),
    "a late system message, a template": Demand(
        "System message must be at the beginning.",
        [
            *({"role": "system", "content": "s"}, ASKED, {"role": "developer", "content": "late"}),
            {"role": "system", "content": [{"type": "text", "text": "later"}, IMAGE]},
        ],
        [
            *({"role": "system", "content": "s"}, ASKED),
            {"role": "user", "content": "<system-reminder>\nlate\n</system-reminder>"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "<system-reminder>\nlater\n</system-reminder>"}, IMAGE],
            },
        ],
    ),
    "no content, Ollama": Demand(
        "invalid message content type: <nil>",
        [ASKED, calling(call("a")), result("a", None), {"role": "assistant", "refusal": "no"}, NEXT],
        [
            *(ASKED, calling(call("a"), content=""), result("a", "")),
            *({"role": "assistant", "refusal": "no", "content": ""}, NEXT),
        ],
    ),
    "no message of the user, a template": Demand(
        "No user query found in messages.",
        [{"role": "system", "content": "s"}, {"role": "user", "content": ""}, THOUGHT],
        [
            *({"role": "system", "content": "s"}, {"role": "user", "content": ""}, THOUGHT),
            {"role": "user", "content": "Continue."},
        ],
    ),
    "the last message, Anthropic": Demand(
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        [ASKED, THOUGHT],
        [ASKED, THOUGHT, {"role": "user", "content": "Continue."}],
    ),
    "the last message, llama.cpp": Demand(
        "Assistant response prefill is incompatible with enable_thinking.",
        [ASKED, THOUGHT],
        [ASKED, THOUGHT, {"role": "user", "content": "Continue."}],
    ),
    "images of results, OpenAI": Demand(
        "Invalid 'messages[2]'. Image URLs are only allowed for messages with role 'user', but this message with role "
        "'tool' contains an image URL.",
        [
            *(ASKED, calling(call("a"), call("b")), result("a", [{"type": "text", "text": "t"}, IMAGE])),
            *(result("b", [IMAGE]), THOUGHT),
        ],
        [
            *(ASKED, calling(call("a"), call("b")), result("a", [{"type": "text", "text": "t"}])),
            *(result("b", "[image: not shown]"), {"role": "user", "content": [IMAGE, IMAGE]}, THOUGHT),
        ],
    ),
}


@pytest.mark.parametrize("server", FORMS)
def test_a_form_that_the_server_demands(tmp_path: Path, server: str) -> None:
    message, messages, fitted = FORMS[server]
    answered = played(tmp_path, [refused(message), answers()], chat(messages=messages))
    assert answered.sent[1][1]["messages"] == fitted
    assert dropped(answered) is None


SHOWN: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
    calling(call("c")),
    result("c"),
]
NO_IMAGES: Final = {
    "DeepSeek": ("messages[0]: unknown variant `image_url`, expected `text` at line 1 column 98", 400),
    "vLLM": ("deepseek-v4-flash is not a multimodal model", 400),
    "Workers AI": ("this model does not support image input", 400),
    "OpenRouter": ("No endpoints found that support image input", 404),
    "llama.cpp": ("image input is not supported - hint: you may need to provide the mmproj", 500),
    "SGLang": ("image input is not supported for this model", 400),
}


@pytest.mark.parametrize("server", NO_IMAGES)
def test_a_model_that_reads_no_images_gets_a_note(tmp_path: Path, server: str) -> None:
    """An image is in the history for ever, so each later turn would be refused, too."""
    body, kind = chat(messages=SHOWN), "sglang" if server == "SGLang" else "openai"
    scene = Scene(tmp_path / "p", [refused(*NO_IMAGES[server]), answers(), answers()], engine_count=1, kind=kind)
    found = scene.play_turns(PATHS["chat"], [lambda _: body, lambda _: body])
    shown = [{**SHOWN[0], "content": [{"type": "text", "text": "a"}, NOTE]}, *SHOWN[1:]]
    assert [sent["messages"] for _, sent in scene.sent] == [SHOWN, shown, shown]
    assert [dropped(each) for each in found] == [["messages.image_url"]] * 2


BODIES: Final[dict[str, dict[str, Any]]] = {
    "messages": {"messages": [ASKED], "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    "gemini": {
        "contents": [{"parts": [{"text": "one"}]}],
        "generationConfig": {"thinkingConfig": {"thinkingBudget": 9}},
    },
}


@pytest.mark.parametrize("api", BODIES)
def test_what_a_translation_adds_for_sglang_is_no_reason_to_fail_elsewhere(tmp_path: Path, api: str) -> None:
    path, body = PATHS[api].replace("/m:", "/gemini-2.5-pro:"), json.dumps({"model": "kimi", **BODIES[api]}).encode()
    scene = Scene(tmp_path / "p", [refused(TOP["OpenAI, a member"].message), answers()], engine_count=1)
    assert scene.play(path, body).status == 200
    assert ["chat_template_kwargs" in sent for _, sent in scene.sent] == [True, False]


def test_a_refusal_as_the_first_event_of_a_stream(tmp_path: Path) -> None:
    error = {"error": {"message": TOP["Moonshot"].message, "code": 400}}
    event = Said(b"", media=EVENTS, pieces=[b"data: %b\n\n" % json.dumps(error).encode(), b"data: [DONE]\n\n"])
    answered = played(tmp_path, [event, answers(stream=True)], chat(temperature=0.5, stream=True))
    assert dropped(answered) == ["temperature"]


def test_several_members_one_after_the_other(tmp_path: Path) -> None:
    names = ["temperature", "top_p", "seed", "user", "store", "verbosity", "metadata"]
    values = [0.5, 0.5, 1, "u", False, "low", {"a": "b"}]
    says = [refused(f"Unknown parameter: '{name}'.") for name in names]
    answered = played(tmp_path, says, chat(**dict(zip(names, values, strict=True))))
    assert (answered.status, len(answered.sent)) == (400, 1 + MAX_CHANGES)


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported parameter: 'stop' is not supported with this model.",
        "Unknown parameter: 'tools'.",
        "This model does not support tools",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
        "Unknown parameter: 'seed'.",
        "'function' is a required property",
        "Missing required parameter: 'tools[0].custom'.",
        "top_k must be -1 (disable) or at least 1, got 0.",
        "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
    ],
)
def test_what_decides_the_answer_and_what_was_not_sent_is_refused(tmp_path: Path, message: str) -> None:
    asked = chat(temperature=0.5, stop="x", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    answered = played(tmp_path, [refused(message)], asked)
    assert (answered.status, len(answered.sent)) == (400, 1)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "read"}}])
@pytest.mark.parametrize(
    ("message", "off"),
    [
        ("tool_choice 'required' is incompatible with thinking enabled", {"thinking": {"type": "disabled"}}),
        (
            "The tool_choice parameter does not support being set to required or object in thinking mode",
            {"enable_thinking": False},
        ),
    ],
)
def test_a_turn_that_must_call_a_tool_does_without_thinking(
    tmp_path: Path, message: str, off: dict[str, Any], choice: Any
) -> None:
    forced, free = chat(tools=tools(SOUND), tool_choice=choice), chat(tools=tools(SOUND), tool_choice="auto")
    scene = Scene(tmp_path / "p", [refused(message), answers(), answers()], engine_count=1)
    first, second = scene.play_turns(PATHS["chat"], [lambda _: forced, lambda _: free])
    shown = [{name: sent[name] for name in ("thinking", "enable_thinking") if name in sent} for _, sent in scene.sent]
    assert shown == [{}, off, {}]
    assert (dropped(first), dropped(second)) == (["thinking"], None)


@pytest.mark.parametrize("kind", ["sglang", "openai"])
@pytest.mark.parametrize(
    ("member", "message", "value"),
    [
        ("top_k", "top_k must be -1 (disable) or at least 1, got 0.", -1),
        ("top_p", "top_p must be in (0, 1], got 0.0.", 1e-6),
    ],
)
def test_zero_becomes_the_value_that_means_the_same(
    tmp_path: Path, kind: str, member: str, message: str, value: float
) -> None:
    scene = Scene(tmp_path / "p", [refused(message), answers(), answers()], engine_count=1, kind=kind)
    bodies = [chat(**{member: 0}), chat(**{member: 1})]
    first, _ = scene.play_turns(PATHS["chat"], [lambda _, body=body: body for body in bodies])  # type: ignore[misc]
    assert [sent[member] for _, sent in scene.sent] == [0, value, 1]
    assert dropped(first) is None


def test_sglang_is_not_asked_again_for_members(tmp_path: Path) -> None:
    answered = played(tmp_path, [refused(TOP["Moonshot"].message)], chat(temperature=0.5), kind="sglang")
    assert (answered.status, len(answered.sent)) == (400, 1)


def test_options_of_a_stream_are_only_sent_with_one(tmp_path: Path) -> None:
    answered = played(tmp_path, [answers()], chat(stream_options={"include_usage": True}))
    assert "stream_options" not in answered.sent[0][1]


OLD: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "required": True},
        "lines": {"type": "array"},
        "size": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        "pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]},
        "type": "object",
        "any": {"type": "any", "enum": None, "anyOf": []},
    },
    "required": "path",
}
SOUND: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "array", "items": {}},
        "size": {"type": "number", "exclusiveMinimum": 0},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {}},
        "any": {},
    },
}


def tools(schema: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "read", "parameters": schema}}, {"type": "web_search"}]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sglang", "Tool 0 function has invalid 'parameters' schema: True is not of type 'array'"),
        (
            "openai",
            "Invalid schema for function 'read': In context=('properties', 'lines'), array schema missing items.",
        ),
    ],
)
def test_schemas_of_tools_that_the_engine_refuses_are_mended(tmp_path: Path, kind: str, message: str) -> None:
    answered = played(tmp_path, [refused(message), answers()], chat(tools=tools(OLD)), kind=kind)
    assert [sent["tools"] for _, sent in answered.sent] == [tools(OLD), tools(SOUND)]


REFUSES_TOOLS: Final = {
    "SGLang": "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'tools', 1, 'function'), 'msg': 'Field "
    "required', 'input': {'type': 'custom'}}",
    "SGLang, a call": "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'messages', 1, "
    "'ChatCompletionMessageGenericParam', 'tool_calls', 0, 'function'), 'msg': 'Field required', 'input': {}}",
    "SGLang, a choice": "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'tool_choice', 'ToolChoice', "
    "'function'), 'msg': 'Field required', 'input': {}}",
    "vLLM": "'function' is a required property",
    "DeepSeek": "Failed to deserialize the JSON body: tools[1].type: unknown variant `custom`, expected `function`",
}


@pytest.mark.parametrize("server", REFUSES_TOOLS)
def test_an_engine_that_takes_only_functions_gets_no_others(tmp_path: Path, server: str) -> None:
    """Cursor sends its tool for patches so (icebear0828/codex-proxy#707, BerriAI/litellm#34029)."""
    function = {"type": "function", "function": {"name": "read", "parameters": SOUND}}
    patch = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}, "function": None}
    beside = [call("d", custom=None), call("e", custom={})]
    body = chat(
        messages=[ASKED, calling(patch, *beside), result("c"), result("d"), result("e")],
        tools=[function, {"type": "custom", "name": "patch"}, {"type": "web_search"}],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
    )
    kind = "sglang" if server.startswith("SGLang") else "openai"
    answered = played(tmp_path, [refused(REFUSES_TOOLS[server]), answers()], body, kind=kind)
    _, (_, sent) = answered.sent
    assert (sent["tools"], sent["tool_choice"]) == ([function], "required")
    called = {"name": "patch", "arguments": '{"input":"*** Begin"}'}
    made = [{"id": "c", "type": "function", "function": called}, call("d"), beside[1]]
    assert sent["messages"][1]["tool_calls"] == made
    assert dropped(answered) == ["tool_choice.allowed_tools", "tools.custom", "tools.web_search"]


def test_a_flat_custom_tool_is_nested_for_openai_and_a_right_chat_stays_as_it_is(tmp_path: Path) -> None:
    grammar = {"syntax": "lark", "definition": "start: /x+/"}
    flat = {"type": "custom", "name": "patch", "format": {"type": "grammar", **grammar}}
    nested = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
    whole: dict[str, Any] = {
        "messages": [
            ASKED,
            calling({"id": "c", "type": "custom", "custom": {"name": "patch", "input": "x"}}),
            result("c"),
        ],
        "tools": [*tools(SOUND)[:1], {"type": "custom", "custom": nested}],
        "tool_choice": {"type": "custom", "custom": {"name": "patch"}},
    }
    cursor = {**whole, "tools": [*tools(SOUND)[:1], flat], "tool_choice": {"type": "custom", "name": "patch"}}
    says = [refused("Missing required parameter: 'tools[1].custom'."), answers(), answers()]
    scene = Scene(tmp_path / "p", says, engine_count=1)
    found = scene.play_turns(PATHS["chat"], [lambda _: chat(**cursor), lambda _: chat(**whole)])
    assert [{name: sent[name] for name in whole} for _, sent in scene.sent] == [cursor, whole, whole]
    assert [dropped(each) for each in found] == [None, None]


def test_of_two_tools_of_one_name_the_last_stays(tmp_path: Path) -> None:
    twice = [*tools(OLD), *tools(SOUND)]
    answered = played(tmp_path, [refused("tools: Tool names must be unique."), answers()], chat(tools=twice))
    assert answered.sent[1][1]["tools"] == [tools(SOUND)[0], *[{"type": "web_search"}] * 2]


@pytest.mark.parametrize("schema", [SOUND, True, {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}])
def test_a_sound_schema_stays_as_it_is(schema: Any) -> None:
    found = sound(json.dumps(tools(schema)).encode())
    assert found is not None
    assert json.loads(found) == tools(schema)


def test_a_refusal_is_remembered_only_if_the_change_has_helped(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one"}]
    body = chat(messages=[{"role": "user", "content": parts}])
    says = [*[refused("messages[0].content must be a string")] * 2, answers()]
    scene = Scene(tmp_path / "p", says, engine_count=1)
    first, second = scene.play_turns(PATHS["chat"], [lambda _: body] * 2)
    assert (first.status, second.status) == (400, 200)
    assert [sent["messages"][0]["content"] for _, sent in scene.sent] == [parts, "one", parts]


def test_words_of_the_client_in_a_refusal_are_not_the_servers(tmp_path: Path) -> None:
    quoted = "[{'loc': ('body', 'stop'), 'msg': 'bad', 'input': 'it is not a multimodal model'}]"
    answered = played(tmp_path, [refused(quoted)], chat(stop="x"))
    assert (answered.status, len(answered.sent)) == (400, 1)


def test_a_limit_beside_a_null_is_kept_under_its_other_name(tmp_path: Path) -> None:
    says = [refused("Unsupported parameter: 'max_tokens' is not supported with this model."), answers()]
    answered = played(tmp_path, says, chat(max_tokens=100, max_completion_tokens=None))
    sent = answered.sent[1][1]
    assert (sent.get("max_tokens"), sent["max_completion_tokens"]) == (None, 100)


def test_users_keep_their_images_and_names_if_only_others_may_not_have_them(tmp_path: Path) -> None:
    seen = {"role": "user", "name": "ann", "content": [{"type": "text", "text": "see"}, IMAGE]}
    system = {"role": "system", "content": [{"type": "text", "text": "be brief"}]}
    named = {"role": "assistant", "name": "coder", "content": "yes"}
    says = [
        refused("for 'role:system' the following must be satisfied[('messages.0.content' : value must be a string)]"),
        refused("Only messages of role 'user' can have a name."),
        answers(),
    ]
    answered = played(tmp_path, says, chat(messages=[system, seen, named, NEXT]))
    assert answered.sent[2][1]["messages"] == [
        {"role": "system", "content": "be brief"}, seen, {"role": "assistant", "content": "yes"}, NEXT,
    ]  # fmt: skip


def test_refused_metadata_stays_away_although_the_proxy_rewrites_it(tmp_path: Path) -> None:
    says = [refused("Unknown parameter: 'metadata'."), answers()]
    answered = played(tmp_path, says, chat(metadata={"session_id": "abc", "team": "x"}))
    assert [sent.get("metadata") for _, sent in answered.sent] == [{"team": "x"}, None]


def test_a_history_that_cannot_be_changed_is_sent_as_it_is(tmp_path: Path) -> None:
    odd = [{"role": "user", "content": ""}, {"role": "user", "content": [{"text": "b"}]}]
    answered = played(tmp_path, [refused("roles must alternate")] * 7, chat(messages=odd))
    assert answered.status == 400
    assert all(sent["messages"] == odd for _, sent in answered.sent)
