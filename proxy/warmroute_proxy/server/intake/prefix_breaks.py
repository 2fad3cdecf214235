"""Names what broke the prefix of a turn: the part, the cause, and what that cost, as a member of its receipt.

A prompt is compared only where it does not continue one that is known, and before it is sent, while its text is there.
What is found is said only where tokens are lost as `prefix_changed`. Prompts are known to one process, since its start.

Limits: prompts below `MIN_BYTES` are too short to be worth it, and those that another process reads are too long.
"""

from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from warmroute.contract.money import Rates, nano_from_pico
from warmroute_proxy.core.accounting.losses import LastTurn
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.cache.prompt_memory import KnownPrompt, PromptMemory
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.breaks import Break, PromptShape, Texts, find_break
from warmroute_proxy.core.prompt.canonical import MalformedPrompt
from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.core.prompt.parts import Head, head_of, message_texts, system_lines
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.intake.large_body import LargeBody

MIN_BYTES: Final = 4_096
COMPACTION: Final = "compaction"


class Looked(NamedTuple):
    """What was seen of a prompt before it was sent."""

    head: Head
    found: Break | None = None
    before: KnownPrompt | None = None
    """The prompt that it breaks."""


class PrefixBreaks:
    """Compares prompts with those before them."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of the memory of prompts; 0: nothing is compared."""
        self.memory = PromptMemory(max_bytes)
        self._is_on = max_bytes > 0

    def look(self, facts: Facts, messages: list[int], body: AnyBody, salt: str) -> Looked | None:
        """Compare a prompt; None where it is not to be remembered. `messages` as in its fingerprint."""
        chain = facts.chain
        if not self._is_on or facts.session is None or chain.total_bytes < MIN_BYTES or not messages:
            return None
        continued = self.memory.continued(facts.session, facts.lineage, chain)
        if continued is not None:
            return Looked(continued.shape.head)
        if isinstance(body, LargeBody):
            return None
        try:
            return self._compared(facts, messages, body.members, xxh3_64_intdigest(salt.encode()))
        except (msgspec.MsgspecError, MalformedPrompt, ValueError, KeyError, RecursionError):
            return None  # what cannot be read twice is not compared

    def _compared(self, facts: Facts, messages: list[int], members: dict[str, msgspec.Raw], key: int) -> Looked:
        raw = members["messages"]
        assert facts.session is not None
        head = head_of(members.get("tools"), raw, key)
        now = PromptShape(head, facts.chain.hashes, facts.chain.ends, messages)
        texts = Texts(lambda: system_lines(raw), lambda at, count: message_texts(raw, at, count))
        for before in self.memory.others(facts.session, head.asked, is_under_way=facts.turn > 1):
            found = find_break(before.shape, now, texts, key)
            if found is not None:
                return Looked(head, found, before)
        return Looked(head)

    def remember(self, facts: Facts, messages: list[int], looked: Looked, usage: Usage, decision: Decision) -> None:
        """Store a prompt that was served."""
        if facts.session is None:
            return
        shape = PromptShape(looked.head, facts.chain.hashes, facts.chain.ends, messages)
        workers = tuple([worker.id for worker in decision.workers])
        sent_back = usage.completion_tokens - (usage.reasoning_tokens or 0)
        prompt = KnownPrompt(facts.lineage, shape, facts.turn, usage.prompt_tokens, sent_back, decision.region, workers)
        self.memory.remember(facts.session, prompt, facts.chain)


NO_PREFIX_BREAKS: Final = PrefixBreaks(0)


def turn_before(looked: Looked | None, decision: Decision, region: str) -> LastTurn | None:
    """The turn whose prompt was broken, where nothing else is known of it."""
    if looked is None or looked.before is None:
        return None
    before = looked.before
    same_worker = decision.cache_worker in before.workers
    return LastTurn(
        before.prompt_tokens, before.completion_tokens, same_worker, salt_changed=False,
        same_region=before.region == region,
    )  # fmt: skip


def member(looked: Looked | None, lost_tokens: int, usage: Usage, rates: Rates) -> list[bytes]:
    """The member of the receipt that says what broke the prefix; none where that is not known."""
    if looked is None or looked.found is None or looked.before is None or lost_tokens <= 0:
        return []
    where, cause = looked.found
    report: dict[str, object] = {
        "where": where,
        "cause": cause,
        "tokens": lost_tokens,
        "nanousd": nano_from_pico(lost_tokens * (rates.input - rates.cached)),
    }
    if cause == COMPACTION:
        less = max(0, looked.before.prompt_tokens - usage.prompt_tokens)
        report |= {"compacted_tokens": less, "saved_nanousd_a_turn": nano_from_pico(less * rates.cached)}
    return [b'"prefix_break":%b' % msgspec.json.encode(report)]
