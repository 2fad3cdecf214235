"""Asks for a shorter answer if an engine refuses a request only because prompt and answer together exceed the context.

Agents ask for a fixed number of tokens in each turn, Kimi Code for as many as the context has. Near the end of the
context, SGLang and vLLM refuse such a turn although its prompt fits, and the agent's session ends. Since Claude 4.5,
Anthropic's API serves such a turn, up to the end of the context. The proxy does the same: it sends the request again,
and asks for only as many tokens as the context has left.

If fewer than `MIN_TOKENS` are left, the client gets the refusal, by which agents know that they must compact.
"""

import re
from typing import Final, NamedTuple

import msgspec

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import AnyBody, Body
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.parsed_request import ParsedRequest

MIN_TOKENS: Final = 4_096
"""A tool call that writes a file takes a few thousand tokens, and an answer that is cut off in a call is of no use."""

MARGIN: Final = 1.1
"""A factor for the proxy's estimate of a prompt, used if the engine has not counted the whole prompt."""

_FIELDS: Final = ("max_tokens", "max_completion_tokens")
_OF_CONTEXT: Final = r"(?P<context>\d{1,9})"
_OF_PROMPT: Final = r"(?P<prompt>\d{1,9})"
_VLLM_0_18: Final = (
    rf"context length is {_OF_CONTEXT} tokens\. However, you requested \d+ output tokens and your prompt "
)
_VLLM_0_16: Final = (
    rf"and requested \d+ output tokens\. However, the model's context length is only {_OF_CONTEXT} tokens"
)
_LIMIT: Final = "max_(?:completion_)?tokens"
_REFUSALS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # SGLang 0.5.23, `managers/tokenizer_manager.py`
        rf"length of {_OF_CONTEXT} tokens\. You requested a total of \d+ tokens: {_OF_PROMPT} tokens from the input",
        # vLLM, by version; it stops counting at the end of the context
        rf"{_VLLM_0_18}contains {_OF_PROMPT} input tokens",
        rf"{_VLLM_0_18}contains (?P<uncounted>at least {_OF_PROMPT} input tokens|\d+ characters)",
        rf"(?P<uncounted>You passed (?:{_OF_PROMPT} input tokens|\d+ input characters)) {_VLLM_0_16}",
        rf"context length is {_OF_CONTEXT} tokens and your request has {_OF_PROMPT} input tokens",
        # vLLM before 0.11, OpenAI, OpenRouter
        rf"is {_OF_CONTEXT} tokens\. However, you requested (?:about )?\d+ tokens \({_OF_PROMPT} (?:in the|of)",
        # Anthropic before Claude 4.5
        rf"exceed context limit: {_OF_PROMPT} \+ \d+ > {_OF_CONTEXT}",
        # TGI
        rf"must be <= {_OF_CONTEXT}\. Given: {_OF_PROMPT} `inputs` tokens",
        # for more tokens than the model can give: vLLM; SGLang and OpenAI; Anthropic
        rf"cannot be greater than max_model_len={_OF_CONTEXT}",
        rf"is too large: \d+\. ?This model supports at most {_OF_CONTEXT} completion tokens",
        rf"max_tokens: \d+ > {_OF_CONTEXT}, which is the maximum",
        # Groq; Volcengine, OpenAI; Alibaba, DeepSeek, MiniMax; Bedrock
        rf"{_LIMIT}.? must be less than or equal to `?{_OF_CONTEXT}",
        rf"{_LIMIT}.{{1,60}}integer above maximum value[.,] [Ee]xpected a value <= {_OF_CONTEXT}",
        rf"(?:{_LIMIT}|MaxTokens).{{0,12}} (?:should be|is)(?: in)? \[\d, ?{_OF_CONTEXT}\]",
        rf"maximum tokens you requested exceeds the model limit of {_OF_CONTEXT}\.",
    )
)
"""The messages of engines. A message with a group `uncounted` means that the whole prompt was not counted."""


class ChangedRequest(NamedTuple):
    """A request that asks for something else than its client did."""

    parsed: ParsedRequest
    body: Body


def with_shorter_answer(
    parsed: ParsedRequest, body: AnyBody, refusal: Refusal, prompt_tokens_est: int
) -> ChangedRequest | None:
    """The request that an engine will accept instead of the refused one; None if a shorter answer does not help.

    `prompt_tokens_est`: the proxy's estimate, used if the engine did not count the whole prompt.
    """
    if refusal.status not in {400, 422} or isinstance(body, LargeBody):
        return None
    left = _tokens_left(refusal.message, prompt_tokens_est)
    if left is None or left < MIN_TOKENS:
        return None
    values = {name: body.value(name) for name in _FIELDS}
    longer = frozenset([name for name, value in values.items() if value and (msgspec.json.decode(value) or 0) > left])
    if not longer:
        return None
    fields = ",".join([f'"{name}":{left}' for name in sorted(longer)]).encode()
    shorter = Body(b"".join(body.rewritten(longer, fields)))
    stated = b'"max_tokens_lowered_to":%d' % left
    # If the request was shortened before, that number is the last field: it is replaced.
    before = parsed.receipt_fields.partition(b'"max_tokens_lowered_to":')[0].rstrip(b",")
    changed = msgspec.structs.replace(
        parsed,
        receipt_fields=b",".join([before, stated]) if before else stated,
        most_tokens=min(parsed.most_tokens, left * parsed.choices * parsed.prompts),
    )
    return ChangedRequest(changed, shorter)


def _tokens_left(message: str, prompt_tokens_est: int) -> int | None:
    """The tokens that are left for an answer in the context, or that the model can give, as the refusal's message says;
    None if the message is unknown.
    """
    for pattern in _REFUSALS:
        found = pattern.search(message)
        if found is None:
            continue
        groups = found.groupdict()
        prompt = int(groups.get("prompt") or 0)
        if "uncounted" in groups:
            prompt = int(max(prompt, prompt_tokens_est) * MARGIN)
        return int(groups["context"]) - prompt
    return None
