"""The list of checks, how many requests each of them sends at most, and what they cost."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from warmroute.contract.money import Rates, nano_from_pico
from warmroute_cli.conform import answers, caching, fields
from warmroute_cli.conform.answers import LONG_ANSWER
from warmroute_cli.conform.shapes import ANSWER_TOKENS, SIGNALS
from warmroute_cli.conform.trial import Trial, TrialOptions
from warmroute_cli.conform.verdicts import Cell

LEAST_BYTES_PER_TOKEN: Final = 3
OVERHEAD_TOKENS: Final = 400
"""Of a request, beside its long prompt: questions, tools, the template."""


class Check(NamedTuple):
    """A check, and how many requests it sends at most."""

    run: Callable[[Trial], Cell]
    requests: int


class Cost(NamedTuple):
    """What checks may send, at most."""

    requests: int
    prompt_tokens: int
    completion_tokens: int

    def nanousd(self, rates: Rates) -> int:
        """With nothing cached."""
        return nano_from_pico(self.prompt_tokens * rates.input + self.completion_tokens * rates.output)


def checks_of(api: str, options: TrialOptions) -> list[Check]:
    """The checks of an API, in their order; those that look at all answers come last."""
    cached = 1 + caching.REPEATS
    return [
        Check(fields.identity, 1),
        Check(caching.cached_whole, cached),
        Check(caching.cached_streamed, cached),
        *_sticks(api, options),
        Check(answers.cancelled, 2),
        Check(answers.repeated, 2),
        Check(answers.several, 1),
        Check(caching.isolated, 4 if options.two_tenants else 0),
        Check(fields.system, 2),
        Check(fields.tools, 2),
        Check(fields.tool_calls, 2),
        Check(fields.answer_limit, 1),
        Check(fields.logprobs, 1),
        Check(answers.sums, 0),
        Check(answers.prices, 0),
    ]


def _sticks(api: str, options: TrialOptions) -> Iterator[Check]:
    for signal in SIGNALS[api]:
        yield Check(partial(caching.sticks, signal=signal), caching.sticks_requests(options.turns))


def cost_of(checks: list[Check], options: TrialOptions) -> Cost:
    """What the checks may send."""
    requests = sum(check.requests for check in checks)
    prompt = options.prompt_bytes // LEAST_BYTES_PER_TOKEN + OVERHEAD_TOKENS
    return Cost(requests, requests * prompt, requests * 2 * ANSWER_TOKENS + LONG_ANSWER)
