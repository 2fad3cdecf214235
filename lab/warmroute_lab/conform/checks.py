"""The list of checks, how many requests each check sends at most, and what they cost."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from warmroute_lab.conform import answers, codex
from warmroute_lab.conform.answers import LONG_ANSWER
from warmroute_lab.conform.shapes import ANSWER_TOKENS, SIGNALS, Asked
from warmroute_lab.conform.trial import (
    Cell,
    Cost,
    Outcome,
    Spent,
    Trial,
    TrialOptions,
    failed,
    found_again,
    new_session,
    not_tried,
    passed,
    problem,
)

# The checks of cached tokens, of sessions, and of what one tenant sees of another's cache.


REPEATS: Final = 3
"""How often a prompt is sent again at most, since it may reach a worker that has not cached it."""

BETWEEN: Final = (0, 1)
"""How many small requests of other sessions come before a turn, alternately. So a server that places requests in
rotation sends the turns of a session to different workers."""

NO_COUNT: Final = "the usage has no count of cached tokens"


def cached(trial: Trial, *, stream: bool) -> Outcome:
    """Whether an answer says that its prompt was cached."""
    asked = Asked(trial.prompt(), ["Say yes."], stream=stream)
    first = trial.send(asked)
    if not first.ok:
        return failed(problem(first), first)
    prompt = first.counts.prompt
    if prompt is None:
        return failed("the answer has no usage", first)
    again = first
    for _ in range(REPEATS):
        again = trial.send(asked)
        if not again.ok:
            return failed(problem(again), again)
        if found_again(again, prompt):
            return passed(f"{again.counts.cached:,} of {again.counts.prompt:,} tokens of a repeated prompt")
    if again.counts.cached is None:
        return failed(NO_COUNT, again)
    return failed(f"{again.counts.cached:,} of {prompt:,} tokens of a prompt sent {REPEATS + 1} times", again)


def sticks(trial: Trial, signal: str) -> Outcome:
    """Whether the turns of a session find their prompt in a cache, if `signal` names the session."""
    system, session = trial.prompt(), new_session()
    questions = [f"Question {at}: what is next?" for at in range(1 + trial.options.turns)]
    first = trial.send(Asked(system, questions[:1], session=session, signal=signal))
    if not first.ok or first.counts.prompt is None:
        return failed(problem(first), first)
    misses = []
    for at in range(1, len(questions)):
        for _ in range(BETWEEN[at % len(BETWEEN)]):
            trial.send(Asked(trial.prompt(100), ["Say no."], session=new_session(), signal=signal))
        turn = trial.send(Asked(system, questions[: at + 1], session=session, signal=signal))
        if not turn.ok:
            return failed(problem(turn), turn)
        if turn.counts.cached is None:
            return not_tried(NO_COUNT)
        if not found_again(turn, first.counts.prompt):
            misses.append(turn)
    hits = trial.options.turns - len(misses)
    finding = f"{hits} of {trial.options.turns} turns found their prompt"
    if not misses:
        return passed(finding)
    return failed(finding, first, misses[0]) if signal else not_tried(finding)


def sticks_requests(turns: int) -> int:
    """How many requests `sticks` sends at most."""
    return 1 + turns + sum(BETWEEN[at % len(BETWEEN)] for at in range(1, turns + 1))


def isolated(trial: Trial) -> Outcome:
    if not trial.options.two_tenants:
        return not_tried("give --other-key-file")
    asked = Asked(trial.prompt(), ["Say yes."])
    first, control = trial.send(asked), trial.send(asked)
    baseline, other = trial.send(Asked(trial.prompt(), ["Say yes."]), 1), trial.send(asked, 1)
    for each in (first, control, baseline, other):
        if not each.ok:
            return failed(problem(each), each)
    if other.counts.cached is None or first.counts.prompt is None:
        return not_tried(NO_COUNT)
    if baseline.counts.prompt is not None and found_again(baseline, baseline.counts.prompt):
        return not_tried("shows nothing: new prompts are reported as cached, too")
    if other.counts.cached > (baseline.counts.cached or 0):
        finding = f"{other.counts.cached:,} tokens of the first key's prompt are cached for the second"
        return failed(finding, first, other)
    if not found_again(control, first.counts.prompt):
        return not_tried("shows nothing: the first key did not find its own prompt either")
    return passed("a prompt that the first key has sent is new to the second")


LEAST_BYTES_PER_TOKEN: Final = 1
"""No usual tokenizer has more tokens than bytes."""

OVERHEAD_TOKENS: Final = 1_000
"""Prompt tokens of a request besides its long prompt: the first question, tools, the template."""

LONG_ANSWERS: Final = 4
"""How many checks of the Responses API ask for a long answer: three for Codex, and `cancelled`."""

TURN_TOKENS: Final = 100
"""Prompt tokens that each further turn adds: the last answer, a question, the template."""

WRITE_SHARES: Final = {"anthropic": 4}
"""API -> `Cost.written_share`. Tokens written to Anthropic's cache cost 1.25 times as much as input."""


class Check(NamedTuple):
    """A check, and how many requests it sends at most."""

    name: str
    run: Callable[[Trial], Outcome]
    requests: int


def checks_of(api: str, options: TrialOptions) -> list[Check]:
    """The checks of an API, in their order; those that look at all answers come last."""
    return [
        Check("answers name themselves", codex.identity, 1),
        Check("cached tokens, whole", partial(cached, stream=False), 1 + REPEATS),
        Check("cached tokens, streamed", partial(cached, stream=True), 1 + REPEATS),
        *_sticks(api, options),
        Check("cancel", answers.cancelled, 2),
        Check("retry", answers.repeated, 2),
        Check("n > 1", answers.several, 1),
        Check("isolation of two keys", isolated, 4 if options.two_tenants else 0),
        Check("keeps the system prompt", codex.system, 2),
        Check("keeps tools", codex.tools, 2),
        Check("keeps tool calls", codex.tool_calls, 2),
        Check("keeps the answer's limit", codex.answer_limit, 1),
        Check("keeps logprobs", codex.logprobs, 1),
        *(_of_codex() if api == "responses" else ()),
        Check("counts add up", answers.sums, 0),
        Check("prices match", answers.prices, 0),
    ]


def _of_codex() -> Iterator[Check]:
    for name, members in codex.LENGTHENS.items():
        yield Check(name, codex.lengthens(members), 2)
    yield Check("takes foreign items", codex.history, 1)
    yield Check("items have one id", codex.streamed_items, 1)
    yield Check("a cut answer is incomplete", codex.cut, 1)
    yield Check("reasoning comes sealed", codex.sealed, 1)
    yield Check("an unknown model is refused", codex.unknown_model, 1)
    yield Check("compacts", codex.compaction, 1)


def _sticks(api: str, options: TrialOptions) -> Iterator[Check]:
    for signal in SIGNALS[api]:
        name = f"sticks by {signal}" if signal else "sticks without a signal"
        yield Check(name, partial(sticks, signal=signal), sticks_requests(options.turns))


def cost_of(api: str, checks: list[Check], options: TrialOptions) -> Cost:
    """The maximum number of requests that the checks of an API send, and of tokens in prompts and answers."""
    requests = sum(check.requests for check in checks)
    prompt = options.prompt_bytes // LEAST_BYTES_PER_TOKEN + OVERHEAD_TOKENS + options.turns * TURN_TOKENS
    completion = requests * 2 * ANSWER_TOKENS + LONG_ANSWER * (LONG_ANSWERS if api == "responses" else 1)
    return Cost(requests, requests * prompt, completion, WRITE_SHARES.get(api, 0))


def results_of(checks: list[Check], trial: Trial) -> Iterator[Cell]:
    """Run the checks, and return the result of each, whatever the endpoint answers. If the first request fails, no
    further check is tried."""
    why = ""
    for check in checks:
        if why:
            yield Cell(check.name, *not_tried(why))
            continue
        try:
            outcome = check.run(trial)
        except Spent as spent:
            why = str(spent)
            outcome = not_tried(why)
        except Exception as error:  # an unexpected answer may break this check, but not the others
            text = trial.endpoint.hider.text(str(error))[:80]
            outcome = failed(f"the check broke off: {type(error).__name__}: {text}", *trial.sent[-1:])
        yield Cell(check.name, *outcome)
        if trial.sent and trial.sent[0].status != 200 and not why:
            why = "the first request was not answered"
