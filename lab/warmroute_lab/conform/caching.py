"""The checks of cached tokens, of sessions, and of what one tenant sees of another's cache."""

from typing import Final

from warmroute_lab.conform.shapes import Asked
from warmroute_lab.conform.trial import Trial, found_again, new_session, problem
from warmroute_lab.conform.verdicts import Cell, failed, not_tried, passed

REPEATS: Final = 3
"""A prompt may reach a worker that does not have it: so often it is sent again."""

BETWEEN: Final = (0, 1)
"""Small requests of others before each turn of a session, in turn: a rotation over workers then separates its turns."""

NO_COUNT: Final = "the usage has no count of cached tokens"


def cached_whole(trial: Trial) -> Cell:
    """Whether a whole answer says that its prompt was cached."""
    return _cached(trial, "cached tokens, whole", stream=False)


def cached_streamed(trial: Trial) -> Cell:
    return _cached(trial, "cached tokens, streamed", stream=True)


def _cached(trial: Trial, check: str, *, stream: bool) -> Cell:
    asked = Asked(trial.prompt(), ["Say yes."], stream=stream)
    first = trial.send(asked)
    if not first.ok:
        return failed(check, problem(first), first)
    prompt = first.counts.prompt
    if prompt is None:
        return failed(check, "the answer has no usage", first)
    again = first
    for _ in range(REPEATS):
        again = trial.send(asked)
        if not again.ok:
            return failed(check, problem(again), again)
        if found_again(again, prompt):
            return passed(check, f"{again.counts.cached:,} of {again.counts.prompt:,} tokens of a repeated prompt")
    if again.counts.cached is None:
        return failed(check, NO_COUNT, again)
    return failed(check, f"{again.counts.cached:,} of {prompt:,} tokens of a prompt sent {REPEATS + 1} times", again)


def sticks_name(signal: str) -> str:
    return f"sticks by {signal}" if signal else "sticks without a signal"


def sticks(trial: Trial, signal: str) -> Cell:
    """Whether the turns of a session find their prompt, if the session is named like that."""
    check = sticks_name(signal)
    system, session = trial.prompt(), new_session()
    questions = [f"Question {at}: what is next?" for at in range(1 + trial.options.turns)]
    first = trial.send(Asked(system, questions[:1], session=session, signal=signal))
    if not first.ok or first.counts.prompt is None:
        return failed(check, problem(first), first)
    misses = []
    for at in range(1, len(questions)):
        for _ in range(BETWEEN[at % len(BETWEEN)]):
            trial.send(Asked(trial.prompt(100), ["Say no."], session=new_session(), signal=signal))
        turn = trial.send(Asked(system, questions[: at + 1], session=session, signal=signal))
        if not turn.ok:
            return failed(check, problem(turn), turn)
        if turn.counts.cached is None:
            return not_tried(check, NO_COUNT)
        if not found_again(turn, first.counts.prompt):
            misses.append(turn)
    hits = trial.options.turns - len(misses)
    finding = f"{hits} of {trial.options.turns} turns found their prompt"
    if not misses:
        return passed(check, finding)
    return failed(check, finding, first, misses[0]) if signal else not_tried(check, finding)


def sticks_requests(turns: int) -> int:
    """The requests of one such check, at most."""
    return 1 + turns + sum(BETWEEN[at % len(BETWEEN)] for at in range(1, turns + 1))


def isolated(trial: Trial) -> Cell:
    check = "isolation of two keys"
    if not trial.options.two_tenants:
        return not_tried(check, "give --other-key-file")
    asked = Asked(trial.prompt(), ["Say yes."])
    first, control = trial.send(asked), trial.send(asked)
    baseline, other = trial.send(Asked(trial.prompt(), ["Say yes."]), 1), trial.send(asked, 1)
    for each in (first, control, baseline, other):
        if not each.ok:
            return failed(check, problem(each), each)
    if other.counts.cached is None or first.counts.prompt is None:
        return not_tried(check, NO_COUNT)
    if baseline.counts.prompt is not None and found_again(baseline, baseline.counts.prompt):
        return not_tried(check, "shows nothing: new prompts are reported as cached, too")
    if other.counts.cached > (baseline.counts.cached or 0):
        finding = f"{other.counts.cached:,} tokens of the first key's prompt are cached for the second"
        return failed(check, finding, first, other)
    if not found_again(control, first.counts.prompt):
        return not_tried(check, "shows nothing: the first key did not find its own prompt either")
    return passed(check, "a prompt that the first key has sent is new to the second")
