"""The checks of answers: several answers to a request, a cancelled and a repeated request, sums, and prices."""

import time
from collections.abc import Mapping
from typing import Final

from warmroute.contract import headers, receipt
from warmroute.contract.money import Rates, price_nanousd
from warmroute_lab.conform.shapes import Asked
from warmroute_lab.conform.trial import (
    Outcome,
    Trial,
    failed,
    found_again,
    new_session,
    not_tried,
    passed,
    problem,
    unanswered,
)
from warmroute_lab.conform.wire import LEFT, Exchange, NotReached

LONG_ANSWER: Final = 64
SETTLED_WITHIN_S: Final = 5.0
POLL_S: Final = 0.1
MISSED_USD: Final = 1e-9
"""A price may be off by a nanodollar, since doubles round it."""

MAX_USD: Final = 1e6
"""A stated cost of this much or more is not credible, so it is ignored."""

COST_HEADERS: Final = ("x-litellm-response-cost",)
"""Headers in which servers state a cost in USD (docs.litellm.ai/docs/proxy/response_headers)."""


def several(trial: Trial) -> Outcome:
    if trial.api in ("anthropic", "responses"):
        return not_tried("this API has one answer a request")
    found = trial.send(Asked(trial.prompt(), ["Say something."], answers=2))
    if outcome := unanswered(found):
        return outcome
    if found.answers != 2:
        return failed(f"asked for 2 answers, got {found.answers}", found)
    prompt, cached = found.counts.prompt, found.counts.cached
    if prompt is None:
        return failed("the answer has no usage", found)
    if found_again(found, prompt):
        return failed(f"{cached:,} of {prompt:,} tokens of a new prompt are reported as cached", found)
    return passed(f"2 answers, a prompt of {prompt:,} tokens counted once")


def cancelled(trial: Trial) -> Outcome:
    """Whether the server closes the receipt if the client of a request disconnects, and serves the next turn."""
    asked = Asked(
        trial.prompt(), ["Count to a thousand."], stream=True, session=new_session(), signal=headers.AFFINITY,
        answer_tokens=LONG_ANSWER,
    )  # fmt: skip
    left = trial.send(asked, cancel=True)
    if left.status != 200:
        return failed(problem(left), left)
    if left.broken != LEFT:
        return failed(f"no stream that could be left: {left.broken or 'it was answered whole'}", left)
    problems, is_seen = _settled(trial, left)
    if problems:
        return failed(problems, left)
    after = trial.send(asked._replace(stream=False, answer_tokens=4))
    if not after.ok:
        return failed(f"the next turn was {problem(after)}", left, after)
    if not is_seen:
        return not_tried("the next turn is served; without a receipt, nothing shows that this one was settled")
    if after.counts.cached is None or after.counts.prompt is None:
        return not_tried("the next turn is served; without a count of cached tokens no more is seen")
    then = "found" if found_again(after, after.counts.prompt) else "did not find"
    return passed(f"settled; the next turn is served, and {then} the prompt")


def _settled(trial: Trial, left: Exchange) -> tuple[str, bool]:
    """What is wrong with the receipt of a request whose client disconnected, and whether the server keeps receipts."""
    receipt_id = left.headers.get(headers.RECEIPT)
    if not receipt_id:
        return "", False
    deadline_s = time.monotonic() + SETTLED_WITHIN_S
    while time.monotonic() < deadline_s:
        try:
            found = trial.endpoint.receipt(receipt_id)
        except NotReached:
            return "", False
        if found is not None and found.get("state") != "open":
            usage = found.get("usage")
            return ("; ".join(receipt.check(usage)) if isinstance(usage, dict) else "its receipt has no usage"), True
        time.sleep(POLL_S)
    return f"its receipt is not settled within {SETTLED_WITHIN_S:g} s", True


def repeated(trial: Trial) -> Outcome:
    key = {"idempotency-key": new_session()}
    asked = Asked(
        trial.prompt(), ["Say yes."], session=new_session(), signal=headers.AFFINITY, extra_headers=key
    )  # fmt: skip
    first, again = trial.send(asked), trial.send(asked)
    for each in (first, again):
        if not each.ok:
            return failed(problem(each), each)
    if first.counts.prompt != again.counts.prompt:
        text = f"the prompt has {first.counts.prompt} tokens, and {again.counts.prompt} when it is sent again"
        return failed(text, first, again)
    name = "responseId" if trial.api == "gemini" else "id"
    if first.answer.get(name) is not None and first.answer.get(name) == again.answer.get(name):
        return passed("the same Idempotency-Key gets the same answer, once")
    cached = again.counts.cached
    if cached is None:
        return not_tried("computed again; the usage has no count of cached tokens")
    return passed(f"computed again, {cached:,} tokens cached; Idempotency-Key has no effect")


def sums(trial: Trial) -> Outcome:
    """Whether the counts of all answers so far add up."""
    wrong, seen = [], 0
    for each in trial.sent:
        counts = each.counts
        if not each.ok or counts.prompt is None:
            continue
        seen += 1
        if counts.cached is not None and not 0 <= counts.cached <= counts.prompt:
            wrong.append((f"{counts.cached} cached tokens of a prompt of {counts.prompt}", each))
        elif None not in (counts.total, counts.completion) and counts.total != counts.prompt + (counts.completion or 0):
            wrong.append((f"{counts.prompt} + {counts.completion} tokens are {counts.total} in total", each))
    if wrong:
        return failed(f"{len(wrong)} of {seen} answers: {wrong[0][0]}", *[each for _, each in wrong[:2]])
    return passed(f"in {seen} answers") if seen else not_tried("no answer has a usage")


def prices(trial: Trial) -> Outcome:
    """Whether the price in each answer follows from its receipt or, without a receipt, from the given rates."""
    stated, wrong = 0, []
    for each in trial.sent:
        if not each.ok:
            continue
        problems = _price_problems(each, trial.options.rates)
        if problems is not None:
            stated += 1
            wrong += [(text, each) for text in problems[:1]]
    if wrong:
        return failed(f"{len(wrong)} of {stated} answers: {wrong[0][0]}", *[each for _, each in wrong[:2]])
    if stated:
        return passed(f"{stated} prices recompute")
    if any(_stated_usd(each) is not None for each in trial.sent):
        return not_tried("answers state a cost without rates: give --price")
    return not_tried("answers state no price")


def _price_problems(exchange: Exchange, rates: Rates | None) -> list[str] | None:
    """What is wrong with the price of an answer; None if the answer states no price that can be checked."""
    usage = exchange.usage
    if isinstance(usage.get("warmroute"), Mapping):
        return receipt.check(usage)
    stated, counts = _stated_usd(exchange), exchange.counts
    if stated is None or rates is None or counts.prompt is None or counts.completion is None:
        return None
    expected = price_nanousd(rates, counts.prompt, counts.cached or 0, counts.completion) / 1e9
    if abs(stated - expected) <= MISSED_USD:
        return []
    return [f"it states {stated:.9f} USD; by the rates it is {expected:.9f} USD"]


def _stated_usd(exchange: Exchange) -> float | None:
    cost = exchange.usage.get("cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < MAX_USD:
        return float(cost)
    for name in COST_HEADERS:
        try:
            return float(exchange.headers[name])
        except (KeyError, ValueError):
            continue
    return None
