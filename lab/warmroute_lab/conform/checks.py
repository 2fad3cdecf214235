"""The list of checks, how many requests each of them sends at most, and what they cost."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from warmroute.contract.money import Rates, nano_from_pico
from warmroute_lab.conform import answers, caching, codex, fields
from warmroute_lab.conform.answers import LONG_ANSWER
from warmroute_lab.conform.shapes import ANSWER_TOKENS, SIGNALS
from warmroute_lab.conform.trial import Spent, Trial, TrialOptions
from warmroute_lab.conform.verdicts import Cell, failed, not_tried

LEAST_BYTES_PER_TOKEN: Final = 1
"""No usual tokenizer has more tokens than bytes."""

OVERHEAD_TOKENS: Final = 1_000
"""Of a request, beside its long prompt: the first question, tools, the template."""

LONG_ANSWERS: Final = 4
"""Of Codex's checks, with the one that is left."""

TURN_TOKENS: Final = 100
"""Of each further turn: the last answer, a question, the template."""

WRITE_SHARES: Final = {"anthropic": 4}
"""API -> the divisor of the surcharge on a write to its cache: with 4, Anthropic's writes cost 1.25 times as much."""


class Check(NamedTuple):
    """A check, and how many requests it sends at most. `name`: of its cell."""

    name: str
    run: Callable[[Trial], Cell]
    requests: int


class Cost(NamedTuple):
    """What checks may send and be answered, at most. `written_share`: as in `WRITE_SHARES`; 0: writes cost as input."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    written_share: int = 0

    def nanousd(self, rates: Rates) -> int:
        """With nothing cached, and all prompts written to a cache."""
        prompt = self.prompt_tokens * rates.input
        written = -(-prompt // self.written_share) if self.written_share else 0
        return nano_from_pico(prompt + written + self.completion_tokens * rates.output)


def checks_of(api: str, options: TrialOptions) -> list[Check]:
    """The checks of an API, in their order; those that look at all answers come last."""
    cached = 1 + caching.REPEATS
    return [
        Check("answers name themselves", fields.identity, 1),
        Check("cached tokens, whole", caching.cached_whole, cached),
        Check("cached tokens, streamed", caching.cached_streamed, cached),
        *_sticks(api, options),
        Check("cancel", answers.cancelled, 2),
        Check("retry", answers.repeated, 2),
        Check("n > 1", answers.several, 1),
        Check("isolation of two keys", caching.isolated, 4 if options.two_tenants else 0),
        Check("keeps the system prompt", fields.system, 2),
        Check("keeps tools", fields.tools, 2),
        Check("keeps tool calls", fields.tool_calls, 2),
        Check("keeps the answer's limit", fields.answer_limit, 1),
        Check("keeps logprobs", fields.logprobs, 1),
        *(_of_codex() if api == "responses" else ()),
        Check("counts add up", answers.sums, 0),
        Check("prices match", answers.prices, 0),
    ]


def _of_codex() -> Iterator[Check]:
    for name in codex.LENGTHENS:
        yield Check(name, codex.lengthens(name), 2)
    yield Check("takes foreign items", codex.history, 1)
    yield Check("items have one id", codex.streamed_items, 1)
    yield Check("a cut answer is incomplete", codex.cut, 1)
    yield Check("reasoning comes sealed", codex.sealed, 1)
    yield Check("an unknown model is refused", codex.unknown_model, 1)
    yield Check("compacts", codex.compaction, 1)


def _sticks(api: str, options: TrialOptions) -> Iterator[Check]:
    for signal in SIGNALS[api]:
        run = partial(caching.sticks, signal=signal)
        yield Check(caching.sticks_name(signal), run, caching.sticks_requests(options.turns))


def cost_of(api: str, checks: list[Check], options: TrialOptions) -> Cost:
    """What the checks of an API may send and be answered."""
    requests = sum(check.requests for check in checks)
    prompt = options.prompt_bytes // LEAST_BYTES_PER_TOKEN + OVERHEAD_TOKENS + options.turns * TURN_TOKENS
    completion = requests * 2 * ANSWER_TOKENS + LONG_ANSWER * (LONG_ANSWERS if api == "responses" else 1)
    return Cost(requests, requests * prompt, completion, WRITE_SHARES.get(api, 0))


def results_of(checks: list[Check], trial: Trial) -> Iterator[Cell]:
    """A cell for each check, whatever the endpoint answers. If the first request gets no answer, no more is sent."""
    why = ""
    for check in checks:
        if why:
            yield not_tried(check.name, why)
            continue
        try:
            cell = check.run(trial)
        except Spent as spent:
            why = str(spent)
            cell = not_tried(check.name, why)
        except Exception as error:  # Whatever an answer breaks: the other cells stand.
            text = trial.endpoint.hider.text(str(error))[:80]
            cell = failed(check.name, f"the check broke off: {type(error).__name__}: {text}", *trial.sent[-1:])
        yield cell
        if trial.sent and trial.sent[0].status != 200 and not why:
            why = "the first request was not answered"
