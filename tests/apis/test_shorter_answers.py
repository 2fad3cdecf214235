"""A turn whose prompt fits is served, although prompt and asked answer together exceed the engine's context."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apis.case import EVENTS, PATHS
from tests.apis.played import Answered, Said, Scene, completion
from warmroute_proxy.server.base.engine_refusals import refusal_from_engine
from warmroute_proxy.server.request.shorter_answer import MIN_TOKENS

CONTEXT: Final = 262_144
PROMPT: Final = 201_506
ASKED: Final = 65_536
LEFT: Final = CONTEXT - PROMPT
SGLANG: Final = (
    "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of "
    "{total} tokens: {prompt} tokens from the input messages and {asked} tokens for the completion. Please reduce the "
    "number of tokens in the input messages or the completion to fit within the limit."
)
EXACT: Final = {
    "SGLang": SGLANG,
    "vLLM 0.18": "This model's maximum context length is {context} tokens. However, you requested {asked} output "
    "tokens and your prompt contains {prompt} input tokens, for a total of {total} tokens. Please reduce the length of "
    "the input prompt or the number of requested output tokens.",
    "vLLM 0.11": "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length "
    "is {context} tokens and your request has {prompt} input tokens ({asked} > {context} - {prompt}).",
    "vLLM 0.8": "This model's maximum context length is {context} tokens. However, you requested {total} tokens "
    "({prompt} in the messages, {asked} in the completion). Please reduce the length of the messages or completion.",
    "OpenRouter": "This endpoint's maximum context length is {context} tokens. However, you requested about {total} "
    "tokens ({prompt} of text input, {asked} in the output). Please reduce the length of either one.",
    "Anthropic": "input length and `max_tokens` exceed context limit: {prompt} + {asked} > {context}, decrease input "
    "length or `max_tokens` and try again",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {context}. Given: {prompt} `inputs` "
    "tokens and {asked} `max_new_tokens`",
}
UNCOUNTED: Final = {
    "vLLM 0.18": "This model's maximum context length is {context} tokens. However, you requested {asked} output "
    "tokens and your prompt contains at least {prompt} input tokens, for a total of at least {total} tokens.",
    "vLLM 0.18, characters": "This model's maximum context length is {context} tokens. However, you requested {asked} "
    "output tokens and your prompt contains 700000 characters (more than 1 characters, which is the upper bound for 1 "
    "input tokens).",
    "vLLM 0.16": "You passed {prompt} input tokens and requested {asked} output tokens. However, the model's context "
    "length is only {context} tokens, resulting in a maximum input length of 1 tokens.",
}
TOO_LARGE: Final = {
    "SGLang": "max_completion_tokens is too large: {asked}.This model supports at most {context} completion tokens.",
    "OpenAI": "max_tokens is too large: {asked}. This model supports at most {context} completion tokens, whereas you "
    "provided {asked}.",
    "vLLM 0.16": "max_tokens={asked} cannot be greater than max_model_len={context}. Please request fewer tokens.",
    "Anthropic": "max_tokens: {asked} > {context}, which is the maximum allowed number of output tokens for claude-x",
    "Groq": "`max_tokens` must be less than or equal to `{context}`, the maximum value for `max_tokens` is less than "
    "the `context_window` for this model",
    "Volcengine": "The parameter `max_tokens` specified in the request are not valid: integer above maximum value, "
    "expected a value <= {context}, but got {asked} instead.",
    "OpenAI, a bound": "Invalid 'max_tokens': integer above maximum value. Expected a value <= {context}, but got "
    "{asked} instead.",
    "Alibaba": "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, {context}]",
    "DeepSeek": "Invalid max_tokens value, the valid range of max_tokens is [1, {context}]",
    "others": "field MaxTokens invalid, should be in [1, {context}]",
    "Bedrock": "The maximum tokens you requested exceeds the model limit of {context}. Try again with a maximum tokens "
    "value that is lower than {context}.",
}
USAGE: Final = {"prompt_tokens": PROMPT, "completion_tokens": 2, "total_tokens": PROMPT + 2}


def refused(message: str, *, context: int = CONTEXT, prompt: int = PROMPT, asked: int = ASKED) -> Said:
    text = message.format(context=context, prompt=prompt, asked=asked, total=prompt + asked)
    error = {"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": 400}
    return Said(json.dumps(error).encode(), status=400)


def answers(*, stream: bool = False) -> Said:
    if stream:
        return completion({"content": "hi"}, USAGE, stream=True)
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "hi"}, "text": "hi"}
    return Said(json.dumps({"choices": [choice], "usage": USAGE}).encode())


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "kimi", "messages": [{"role": "user", "content": "one"}], **more}).encode()


def played(folder: Path, says: list[Said], body: bytes = b"", path: str = PATHS["chat"]) -> Answered:
    return Scene(folder / "p", says, engine_count=1).play(path, body or chat(max_tokens=ASKED))


def receipt_of(answered: Answered) -> dict[str, Any]:
    assert answered.status == 200, answered.body
    assert answered.row is not None
    found: dict[str, Any] = json.loads(answered.row["usage"])["warmroute"]
    return found


@pytest.mark.parametrize("server", EXACT)
def test_the_answer_gets_what_the_context_has_left(tmp_path: Path, server: str) -> None:
    answered = played(tmp_path, [refused(EXACT[server]), answers()])
    assert [sent["max_tokens"] for _, sent in answered.sent] == [ASKED, LEFT]
    assert receipt_of(answered)["max_tokens_lowered_to"] == LEFT
    assert [sent["messages"] for _, sent in answered.sent] == [[{"role": "user", "content": "one"}]] * 2


@pytest.mark.parametrize("server", UNCOUNTED)
def test_a_prompt_that_the_engine_did_not_count_is_estimated(tmp_path: Path, server: str) -> None:
    body = chat(max_tokens=8_192).replace(b"one", b"one two " * 5_000)  # some 10,000 tokens
    answered = played(tmp_path, [refused(UNCOUNTED[server], context=16_384, prompt=8_193), answers()], body)
    (_, first), (_, second) = answered.sent
    assert first["max_tokens"] == 8_192
    assert second["max_tokens"] == receipt_of(answered)["max_tokens_lowered_to"]
    assert MIN_TOKENS < second["max_tokens"] < 16_384 - 10_000


@pytest.mark.parametrize("server", TOO_LARGE)
def test_what_the_model_cannot_give_is_lowered_twice_if_needed(tmp_path: Path, server: str) -> None:
    says = [refused(TOO_LARGE[server], asked=2 * CONTEXT), refused(SGLANG, asked=CONTEXT), answers()]
    answered = played(tmp_path, says, chat(max_tokens=2 * CONTEXT))
    assert [sent["max_tokens"] for _, sent in answered.sent] == [2 * CONTEXT, CONTEXT, LEFT]
    assert receipt_of(answered)["max_tokens_lowered_to"] == LEFT


BODIES: Final[dict[str, dict[str, Any]]] = {
    "chat": {"messages": [{"role": "user", "content": "one"}], "max_completion_tokens": ASKED},
    "completions": {"prompt": "one", "max_tokens": ASKED},
    "messages": {"messages": [{"role": "user", "content": "one"}], "max_tokens": ASKED},
    "responses": {"input": "one", "max_output_tokens": ASKED},
    "gemini": {"contents": [{"parts": [{"text": "one"}]}], "generationConfig": {"maxOutputTokens": ASKED}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", BODIES)
def test_in_each_api(tmp_path: Path, api: str, stream: bool) -> None:
    path, body = PATHS[api].replace("/m:", "/gemini-2.5-pro:"), {"model": "kimi", **BODIES[api]}
    if api == "gemini":
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse") if stream else path
    else:
        body["stream"] = stream
    answered = played(tmp_path, [refused(SGLANG), answers(stream=stream)], json.dumps(body).encode(), path)
    assert answered.whole
    assert receipt_of(answered)["max_tokens_lowered_to"] == LEFT
    first, second = [
        {name: value for name, value in sent.items() if name in {"max_tokens", "max_completion_tokens"}}
        for _, sent in answered.sent
    ]
    assert second == dict.fromkeys(first, LEFT)


def test_a_refusal_as_the_first_event_of_a_stream(tmp_path: Path) -> None:
    error = {"error": json.loads(refused(SGLANG).body)}
    event = Said(b"", media=EVENTS, pieces=[b"data: %b\n\n" % json.dumps(error).encode(), b"data: [DONE]\n\n"])
    answered = played(tmp_path, [event, answers(stream=True)], chat(max_tokens=ASKED, stream=True))
    assert receipt_of(answered)["max_tokens_lowered_to"] == LEFT


@pytest.mark.parametrize(
    "said",
    [
        refused(SGLANG, prompt=CONTEXT - MIN_TOKENS + 1),
        refused(SGLANG, prompt=CONTEXT + 1),
        refused("The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."),
    ],
)
def test_a_context_that_is_full_is_refused_so_that_agents_compact(tmp_path: Path, said: Said) -> None:
    answered = played(tmp_path, [said])
    assert (answered.status, len(answered.sent)) == (400, 1)
    assert json.loads(answered.body)["error"]["code"] == "context_length_exceeded"


TOO_LONG: Final = (
    "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "length of prompt_tokens (57535) must be less than max_seq_len (32768).",
    "The sum of prompt length (4000) and query length (0) max_tokens (2048) should not exceed max_seq_len (4096)",
    "Reached context length of 32000 tokens with model (arch: gpt-oss) that does not currently support overflow.",
    "total tokens exceeds the model's max of 4096",
    "Input exceeds the max input token limit",
    "too many total text bytes: 3000000 > 2500000",
    "Please reduce the length of the messages or completion. Current length is 69553 while limit is 65536",
    "prompt token count of 74490 exceeds the limit of 72000",
)
"""Of poolside, SiliconFlow, LM Studio, Cohere, Bedrock, Bedrock, Cerebras and Copilot, without their codes."""


def test_a_prompt_that_is_too_long_is_known_by_each_servers_words() -> None:
    codes = [refusal_from_engine(400, refused(text).body).refusal.code for text in TOO_LONG]
    assert codes == ["context_length_exceeded"] * len(TOO_LONG)


@pytest.mark.parametrize(
    "text",
    ["max_tokens (90000) should not exceed max_seq_len (65536).", "prompt token count of 0 is too small"],
)
def test_another_refusal_with_words_of_a_long_prompt_is_not_taken_for_one(text: str) -> None:
    assert refusal_from_engine(400, refused(text).body).refusal.code != "context_length_exceeded"


def test_a_request_without_a_limit_is_refused(tmp_path: Path) -> None:
    answered = played(tmp_path, [refused(SGLANG)], chat())
    assert (answered.status, len(answered.sent)) == (400, 1)


def test_an_engine_that_refuses_each_length_is_asked_seven_times(tmp_path: Path) -> None:
    answered = played(tmp_path, [refused(SGLANG, prompt=PROMPT + more) for more in range(9)])
    assert [sent["max_tokens"] for _, sent in answered.sent] == [ASKED, *[LEFT - more for more in range(6)]]
    assert answered.status == 400


def test_each_turn_of_a_session_is_served(tmp_path: Path) -> None:
    """What is sent again is not a retry after a failure: it takes nothing from the budget of retries."""
    turns = 40
    scene = Scene(tmp_path / "p", [refused(SGLANG), answers()] * turns, engine_count=1)
    found = scene.play_turns(PATHS["chat"], [lambda _: chat(max_tokens=ASKED)] * turns)
    assert [each.status for each in found] == [200] * turns


def test_an_engine_that_breaks_after_the_refusal_is_replaced(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "p", [refused(SGLANG), Said(b"{}", status=500), answers()], engine_count=2)
    answered = scene.play(PATHS["chat"], chat(max_tokens=ASKED))
    assert [sent["max_tokens"] for _, sent in answered.sent] == [ASKED, LEFT, LEFT]
    assert receipt_of(answered)["max_tokens_lowered_to"] == LEFT


@pytest.mark.parametrize("api", BODIES)
def test_openai_gets_the_limit_in_the_field_that_its_reasoning_models_take(tmp_path: Path, api: str) -> None:
    """OpenAI refuses `max_tokens` for them, and names `max_completion_tokens`; Azure and older models take both."""
    path, body = PATHS[api].replace("/m:", "/gemini-2.5-pro:"), {"model": "kimi", **BODIES[api]}
    scene = Scene(tmp_path / "p", [answers()], engines='provider = "openai"', engine_count=1)
    answered = scene.play(path, json.dumps(body).encode())
    ((_, sent),) = answered.sent
    named = "max_tokens" if api == "completions" else "max_completion_tokens"
    assert {name: value for name, value in sent.items() if name.startswith("max_")} == {named: ASKED}
