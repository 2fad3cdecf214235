"""A receipt in words: where the turn went, which tokens were not cached, why, and the cost with and without a cache."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from warmroute.contract.meanings import RESTARTED, meaning
from warmroute.contract.money import usd
from warmroute.contract.receipt import cached_tokens
from warmroute.guard.causes import WORDS

CAUSES: Final = {str(cause): words.meaning for cause, words in WORDS.items()}
TIERS = {"device": "in GPU memory", "host": "in host memory", "storage": "in the shared store"}
OUTCOMES = {
    "completed": "It was completed.",
    "client_left": "The client left before its end; tokens computed until then are charged.",
    "refused": "The engine refused it.",
    "engine_error": "Its engines failed; nothing is charged.",
    "cut_off": "The proxy cut it off; nothing is charged.",
    "interrupted": "The proxy ended before it was complete; nothing is charged.",
    "credited": "This row is the credit of a turn that was served elsewhere than at its home.",
    "voided": "This row takes another one back, whose answer was lost on its way.",
}
TERMS = {
    "network_s": "network",
    "queue_s": "queue",
    "compute_s": "computing the prompt",
    "load_s": "moving cached tokens",
    "decode_s": "slower answers",
    "transfer_s": "transfer",
    "others_s": "delay of others",
    "reuse_s": "cached tokens that are computed again",
    "churn_s": "evicted prompts",
}
"""The terms of a candidate's cost, in words. The last three are costs that the choice causes to other requests."""

OF_OTHERS = ("others_s", "reuse_s", "churn_s")
LEAST_S = 0.0005
"""Smaller terms and differences are not named."""


def in_words(answer: Mapping[str, Any], decision: Mapping[str, Any] | None) -> list[str]:
    """Lines about an answer of `GET /v1/usage/receipts/<id>`. `decision`: the turn's entry in `/admin/decisions`."""
    if answer["state"] == "open":
        return [f"{answer.get('id', 'The turn')} is under way."]
    receipt = answer["usage"]["warmroute"]
    if "voids" in receipt:
        return [f"{receipt['id']} takes {receipt['voids']} back. {OUTCOMES['voided']}"]
    if "credits" in receipt:
        return [f"{receipt['id']} is the credit of {receipt['credits']}. {OUTCOMES['credited']}"]
    lines = [f"{receipt['id']}: {answer['model']}, turn {receipt['turn']}, session {_session(receipt)}"]
    lines += [*_sender(receipt), "", *_where(answer, receipt), *_why(answer, receipt, decision)]
    lines += ["", *_cached(answer["usage"], receipt), *_lost(receipt)]
    return [*lines, "", *_cost(answer["usage"], receipt), *_remarks(answer, receipt)]


def _session(receipt: Mapping[str, Any]) -> str:
    """The session's name, if it has one, and its hash."""
    hashed = str(receipt["session"] or "not named")
    return f"{receipt['name']} ({hashed})" if "name" in receipt else hashed


def _sender(receipt: Mapping[str, Any]) -> Iterator[str]:
    given = [f"{name} {receipt[name]}" for name in ("kind", "agent", "parent") if name in receipt]
    if given:
        yield f"Sent by: {', '.join(given)}."


def _where(answer: Mapping[str, Any], receipt: Mapping[str, Any]) -> Iterator[str]:
    roles = {worker["role"]: _name(worker) for worker in receipt["workers"]}
    if "prefill" in roles and "decode" in roles:
        who = f"{roles['prefill']} computed the prompt, {roles['decode']} the answer"
    else:
        who = f"{', '.join(roles.values()) or 'no worker'} computed prompt and answer"
    yield f"Where: in region {receipt['region']}, {who}."
    if answer.get("forwarded_from"):
        yield f"It was sent to {answer['forwarded_from']}, and forwarded to where its session lives."
    if answer.get("attempts", 1) > 1:
        yield f"It took {answer['attempts']} attempts: the earlier ones failed and are not charged."


def _why(answer: Mapping[str, Any], receipt: Mapping[str, Any], decision: Mapping[str, Any] | None) -> Iterator[str]:
    expected, prompt = receipt["predicted_cached"], answer["usage"]["prompt_tokens"]
    if expected:
        yield f"Why there: {expected:,} tokens of its prompt ({prompt:,}) were expected to be cached there."
    else:
        yield "Why there: none of its prompt was expected to be cached there."
    if decision is None or not decision["reasons"]:
        return
    waited_s = decision.get("memory_wait_s", 0.0)
    if waited_s >= LEAST_S and decision.get("waited_to_begin"):
        yield f"It waited {waited_s:.1f} s to begin: the fleet's KV memory was full of running sessions."
    elif waited_s >= LEAST_S:
        yield f"It waited {waited_s:.1f} s: the fleet's KV memory was full of sessions that return within seconds."
    if decision["policy"] != "cost":
        yield "The proxy places round robin, without regard to caches."
        return
    chosen, *others = [{**each, "id": each["id"].replace("region:", "region ")} for each in decision["reasons"]]
    yield f"Its cost there was {_candidate(chosen)}."
    if others:
        yield f"The next best was {others[0]['id']} with {_candidate(others[0])}."
        yield from _because(chosen, others)


def _because(chosen: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why the turn did not go where more of its prompt is cached, or where it would have cost the fleet less."""
    warmer = [other for other in others if other["uncached_tokens"] < chosen["uncached_tokens"]]
    if warmer:
        warmest = min(warmer, key=lambda other: int(other["uncached_tokens"]))
        more = chosen["uncached_tokens"] - warmest["uncached_tokens"]
        there = f"{warmest['id']}, which has {more:,} more of its tokens cached"
        if _own_s(chosen) < _own_s(warmest):
            own = [name for name in TERMS if name not in OF_OTHERS]
            yield f"It was faster for the turn itself than {there}: {_differences(chosen, warmest, own)}."
        else:
            yield f"It was cheaper for the fleet than {there}: {_differences(chosen, warmest, OF_OTHERS)}."
    cheaper = min(others, key=lambda other: float(other["cost_s"]))
    if cheaper["cost_s"] < chosen["cost_s"] - LEAST_S:
        yield f"It stayed at its home: {cheaper['id']} was cheaper for the fleet, but slower for the turn itself."


def _own_s(candidate: Mapping[str, Any]) -> float:
    return float(candidate["cost_s"]) - sum(float(candidate[name]) for name in OF_OTHERS)


def _differences(chosen: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str]) -> str:
    """The cost terms that are lower for the chosen candidate, the largest difference first."""
    less = sorted([(other[name] - chosen[name], name) for name in names], reverse=True)
    words = [f"{TERMS[name]} {by_s:.3f} s less" for by_s, name in less if by_s >= LEAST_S]
    return ", ".join(words) or "by less than a millisecond"


def _candidate(candidate: Mapping[str, Any]) -> str:
    terms = [f"{TERMS[name]} {candidate[name]:.3f}" for name in TERMS if abs(candidate[name]) >= LEAST_S]
    of = f" ({', '.join(terms)})" if terms else ""
    return f"{candidate['cost_s']:.3f} s{of}, {candidate['uncached_tokens']:,} tokens to compute"


def _cached(usage: Mapping[str, Any], receipt: Mapping[str, Any]) -> Iterator[str]:
    prompt, cached = usage["prompt_tokens"], cached_tokens(usage)
    share = f" ({cached / prompt:.1%})" if prompt else ""
    tiers = [f"{tokens:,} {TIERS[name]}" for name, tokens in receipt["cached"].items() if tokens]
    yield f"Cached: {cached:,} of {prompt:,} prompt tokens{share}{': ' if tiers else ''}{', '.join(tiers)}."


def _lost(receipt: Mapping[str, Any]) -> Iterator[str]:
    for name, tokens in sorted(receipt["loss"].items(), key=lambda loss: -int(loss[1])):
        by_restart = name == "evicted" and receipt.get("evicted_by") == "engine_restart"
        yield f"Not cached: {tokens:,} ({name}) {RESTARTED if by_restart else meaning(name, tokens)}"
    if "prefix_break" in receipt:
        yield from broken_in_words(receipt["prefix_break"])


def broken_in_words(broken: Mapping[str, Any]) -> Iterator[str]:
    """What broke the prefix and what the break cost, and what a compaction of the prompt saves."""
    meaning = CAUSES.get(broken["cause"], "it is not what it was")
    cost = f"{broken['tokens']:,} tokens, {usd(broken['nanousd'])} USD"
    yield f"Prefix changed, where: {broken['where']}, {cost}. Cause: {broken['cause']} ({meaning})."
    if "compacted_tokens" in broken:
        saved, less = usd(broken["saved_nanousd_a_turn"]), broken["compacted_tokens"]
        yield f"The compaction made the prompt {less:,} tokens shorter: {saved} USD less for each turn from here on."


def _cost(usage: Mapping[str, Any], receipt: Mapping[str, Any]) -> Iterator[str]:
    full, price, saved = receipt["list_nanousd"], receipt["price_nanousd"], receipt["saved_nanousd"]
    share = f" ({saved / full:.1%})" if full else ""
    yield f"Cost: {usd(price)} USD, with {usage['completion_tokens']:,} tokens of answer."
    if saved >= 0:
        yield f"Cold, with nothing cached, it would have cost {usd(full)} USD: {usd(saved)} USD{share} were saved."
    else:
        yield f"Without any cache it would have cost {usd(full)} USD: writing to the cache cost {usd(-saved)} USD more."
    if "credit" in receipt:
        credit = receipt["credit"]
        yield f"Credit: {usd(credit['nanousd'])} USD for {credit['tokens']:,} tokens that were cached at its home."
    if "price_book" in receipt:
        yield f"Price book: {receipt['price_book']}."


def _remarks(answer: Mapping[str, Any], receipt: Mapping[str, Any]) -> Iterator[str]:
    if answer["outcome"] != "completed":
        yield OUTCOMES[answer["outcome"]]
    if receipt["estimated"]:
        yield f"No engine reported these numbers, so they are estimates: {', '.join(receipt['estimated'])}."
    if "continued" in receipt:
        yield f"Its engine died after {receipt['continued']['after_tokens']:,} tokens, and another one continued it."
    if "max_tokens_lowered_to" in receipt:
        left = f"{receipt['max_tokens_lowered_to']:,}"
        yield f"Its client asked for more tokens than the context had left: the engine was asked for {left}."
    if receipt.get("dropped_fields"):
        yield f"No engine got these fields of the request: {', '.join(receipt['dropped_fields'])}."
    if receipt.get("dropped_blocks"):
        counts = ", ".join(f"{count} {kind}" for kind, count in receipt["dropped_blocks"].items())
        yield f"No engine got these parts of its messages: {counts}."
    if receipt.get("normalised"):
        yield f"Rules took texts out of its prompt that would spoil the prefix: {', '.join(receipt['normalised'])}."
    if receipt.get("prefix_changed_by"):
        rules = ", ".join(receipt["prefix_changed_by"])
        yield f"Its prompt has texts that change between turns, and the rules for them are off: {rules}."
    if "voided_by" in answer:
        yield f"It was voided by {answer['voided_by']}: its answer was lost on its way, and is not charged."


def _name(worker: Mapping[str, Any]) -> str:
    return f"{worker['id']} rank {worker['dp_rank']}" if worker["dp_rank"] else str(worker["id"])
