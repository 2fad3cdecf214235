"""Finds token counts that cannot be true: prices follow from counts, and an engine may count wrongly.

* An answer has no more tokens than its client allowed, and no more tokens than its text has bytes, because a token has
  at least one byte. Exceptions are tokens without text: those that end an answer or begin a call (`SILENT_TOKENS`),
  reported thoughts that the engine does not send, and tokens demanded by `min_tokens` or `ignore_eos`.
* A prompt has at most twice as many tokens as bytes, plus what a template adds. It has at least one token for each
  `MOST_BYTES`: this bound is wide, because a token of spaces has about a hundred bytes, and a template may drop old
  thoughts. Media have tokens that do not follow from bytes, so the upper bound does not hold for them.

A count that cannot be true is treated as absent: the turn is charged the estimate, and the receipt says so. `is_sure`
clears almost all turns with four comparisons; without it, benchmark w1 executes 0.3 % more instructions.
"""

from typing import Final, NamedTuple

import msgspec

from warmroute.contract.receipt import ESTIMATED_FIELDS
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS, Usage

TEMPLATE_TOKENS: Final = 4_096  # Devstral's own system prompt has 1,500
TOKENS_PER_BYTE: Final = 2
MOST_BYTES: Final = 512
SILENT_TOKENS: Final = 256  # in one answer
MOST_THOUGHTS: Final = 1_048_576  # in one answer
_SURE_SHARE: Final = MOST_BYTES // 32  # an estimate has 0.5 to 32 bytes a token

PROMPT: Final = "prompt_tokens"
COMPLETION: Final = "completion_tokens"


class Allowed(NamedTuple):
    """Limits for the counts of a turn. `most_tokens` and `demanded_tokens` are for all its answers together.

    `answers`: the number of answers to each of its `prompts`. `opaque`: the prompt holds media. `answer_bytes`: the
    size of all that the model has sent.
    """

    prompt_bytes: int
    opaque: bool
    prompts: int
    answers: int
    most_tokens: int
    demanded_tokens: int
    answer_bytes: int


def is_sure(usage: Usage, prompt_tokens_est: int, most_tokens: int) -> bool:
    """Whether both counts are within all limits, so that `doubted` has nothing to find."""
    completion, prompt = usage.completion_tokens, usage.prompt_tokens
    if completion > SILENT_TOKENS or completion > most_tokens:
        return False
    return prompt - TEMPLATE_TOKENS <= prompt_tokens_est <= prompt * _SURE_SHARE


def doubted(usage: Usage, allowed: Allowed) -> tuple[str, ...]:
    """The names of reported counts that cannot be true: `PROMPT`, `COMPLETION`."""
    found = []
    if PROMPT not in usage.estimated:
        most_of_prompt = (allowed.prompt_bytes * TOKENS_PER_BYTE + TEMPLATE_TOKENS * allowed.prompts) * allowed.answers
        if usage.prompt_tokens * MOST_BYTES < allowed.prompt_bytes or (
            not allowed.opaque and usage.prompt_tokens > most_of_prompt
        ):
            found.append(PROMPT)
    if COMPLETION not in usage.estimated:
        answers, completion = allowed.answers * allowed.prompts, usage.completion_tokens
        thoughts = min(usage.reasoning_tokens or 0, completion, MOST_THOUGHTS * answers)
        most = max(allowed.answer_bytes + SILENT_TOKENS * answers, allowed.demanded_tokens)
        if completion > allowed.most_tokens or completion - thoughts > most:
            found.append(COMPLETION)
    return tuple(found)


def without(usage: Usage, names: tuple[str, ...], completion_tokens: int) -> Usage:
    """The usage as if no engine had reported the counts `names`. `completion_tokens`: a lower bound for the answer."""
    guessed = {*usage.estimated, *names}
    if COMPLETION in names:
        completion = min(max(completion_tokens, 0), MAX_TOKENS)
        usage = msgspec.structs.replace(usage, completion_tokens=completion, reasoning_tokens=None)
    if PROMPT in names:
        guessed |= {"cached_tokens", "cached_tiers"}
        usage = msgspec.structs.replace(
            usage, prompt_tokens=0, cached_tokens=0, device=0, host=0, storage=0, misreported_tokens=0,
            write_5m=0, write_1h=0,
        )  # fmt: skip
    return msgspec.structs.replace(usage, estimated=tuple(name for name in ESTIMATED_FIELDS if name in guessed))
