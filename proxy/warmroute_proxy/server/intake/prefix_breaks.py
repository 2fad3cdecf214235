"""Names in a turn's receipt what broke its cached prefix: the part of the prompt, the cause and the cost.

A prompt is compared with earlier prompts only if it does not continue a known prompt. This is done before it is sent,
while its text is in memory. The receipt names a break only if tokens have the loss class `prefix_changed`. Each process
knows only the prompts that it has served since its start.

Limits: prompts below `MIN_BYTES` are too short to be worth the work. Prompts in a `LargeBody` are too long: another
process reads them, and their text is not parsed here.
"""

from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from warmroute.contract.money import Rates, nano_from_pico
from warmroute_proxy.core.accounting.losses import LastTurn
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.cache.prompt_memory import KnownPrompt, PromptMemory
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.breaks import Break, Texts, find_break
from warmroute_proxy.core.prompt.canonical import MalformedPrompt
from warmroute_proxy.core.prompt.parts import head_of, message_texts, system_lines
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.intake.large_body import LargeBody

MIN_BYTES: Final = 4_096
COMPACTION: Final = "compaction"
_SETTINGS: Final = Break("settings", "settings")


class Looked(NamedTuple):
    """The result for a prompt that continues no known prompt. `before`: the earlier prompt whose prefix it changes."""

    prompt: KnownPrompt
    found: Break | None = None
    before: KnownPrompt | None = None


class PrefixBreaks:
    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: the size of the memory of prompts; if it is 0, nothing is compared."""
        self.memory = PromptMemory(max_bytes)
        self._is_on = max_bytes > 0

    def look(
        self, routing: RoutingRequest, messages: list[int], body: AnyBody, salt: str, agent: int = 0
    ) -> Looked | KnownPrompt | None:
        """Compare a prompt. Returns the known prompt that it continues; `Looked` if it continues no known prompt; None
        if it must not be remembered.

        `messages`: the prompt's `Fingerprint.messages`. `agent`: a hash of the session's agent that sends it, 0 if
        unknown. Prompts of two agents are not compared, because a sub-agent begins a new prompt with its own tools.
        """
        session, chain = routing.session, routing.chain
        if not self._is_on or session is None or chain.ends[-1] < MIN_BYTES or not messages:
            return None
        session ^= agent
        continued = self.memory.continued(session, routing.lineage, chain.hashes)
        if continued is not None:
            return continued
        if isinstance(body, LargeBody):
            return None
        try:
            return self._compared(routing, session, messages, body.members, xxh3_64_intdigest(salt.encode()))
        except (msgspec.MsgspecError, MalformedPrompt, ValueError, KeyError, RecursionError):
            return None  # a prompt that cannot be parsed here is not compared

    def _compared(
        self, routing: RoutingRequest, session: int, messages: list[int], members: dict[str, msgspec.Raw], key: int
    ) -> Looked:
        raw = members["messages"]
        now = KnownPrompt(routing.lineage, head_of(members.get("tools"), raw, key), routing.chain, messages)
        texts = Texts(lambda: system_lines(raw), lambda at, count: message_texts(raw, at, count))
        shape = now.shape
        others = self.memory.others(session, now.head.asked, beyond=routing.derived and routing.turn > 1)
        for before in sorted(others, key=lambda each: each.head.asked != now.head.asked):  # its own conversation first
            found = find_break(before.shape, shape, texts, key)
            if found is not None:
                return Looked(now, found, before)
        return Looked(now)

    def remember(
        self,
        routing: RoutingRequest,
        messages: list[int],
        looked: Looked | KnownPrompt,
        usage: Usage,
        decision: Decision,
        agent: int = 0,
    ) -> None:
        """Store a prompt that was served. `looked`: the result of `look`. `agent`: as in `look`."""
        session = routing.session
        if session is None:
            return
        session ^= agent
        if isinstance(looked, KnownPrompt):
            prompt = self.memory.renew(session, looked, routing.chain, messages, routing.tenant)
        else:
            prompt = self.memory.add(session, looked.prompt, routing.tenant)
        prompt.prompt_tokens, prompt.region = usage.prompt_tokens, decision.region
        prompt.completion_tokens = usage.completion_tokens - (usage.reasoning_tokens or 0)
        prompt.worker, prompt.turns_before = decision.cache_worker, routing.turns_before
        prompt.settings = routing.settings


NO_PREFIX_BREAKS: Final = PrefixBreaks(0)


def turn_before(looked: Looked | KnownPrompt | None, decision: Decision, region: str) -> LastTurn | None:
    """The turn whose prefix was broken, from the memory of prompts; None if the memory does not know it."""
    if not isinstance(looked, Looked) or looked.before is None:
        return None
    before = looked.before
    same_worker = decision.cache_worker == before.worker
    return LastTurn(
        before.prompt_tokens, before.completion_tokens, same_worker, salt_changed=False,
        same_region=before.region == region, rewritten=looked.found is not None,
    )  # fmt: skip


def member(
    looked: Looked | KnownPrompt | None, lost_tokens: int, usage: Usage, rates: Rates, *, other_settings: bool
) -> list[bytes]:
    """The member of the receipt that says what broke the prefix; empty if this is unknown. `other_settings`: whether
    the prompt is unchanged, and its settings are not.
    """
    found, before = (looked.found, looked.before) if isinstance(looked, Looked) else (None, None)
    if other_settings:
        found = _SETTINGS
    if found is None or lost_tokens <= 0:
        return []
    where, cause = found
    report: dict[str, object] = {
        "where": where,
        "cause": cause,
        "tokens": lost_tokens,
        "nanousd": nano_from_pico(lost_tokens * (rates.input - rates.cached)),
    }
    if cause == COMPACTION and before is not None:
        less = max(0, before.prompt_tokens - usage.prompt_tokens)
        report |= {"compacted_tokens": less, "saved_nanousd_a_turn": nano_from_pico(less * rates.cached)}
    return [b'"prefix_break":%b' % msgspec.json.encode(report)]
