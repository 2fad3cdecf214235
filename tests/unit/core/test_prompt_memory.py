"""Prompts that are remembered to be compared: which stay, and that what is counted is what is held."""

import random

from warmroute_proxy.core.cache.prompt_memory import MAX_PROMPTS, KnownPrompt, PromptMemory
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.parts import Head

SESSION = 1


def prompt(asked: int, cuts: int = 3) -> KnownPrompt:
    return KnownPrompt(asked, Head((), (), asked), chain(asked, cuts), [])


def chain(asked: int, cuts: int) -> Chain:
    return Chain([asked * 100_000 + number for number in range(cuts)], [1000 * (n + 1) for n in range(cuts)])


def held(memory: PromptMemory) -> int:
    return sum(each.size for prompts in memory._by_session.values() for each in prompts)


def test_a_conversation_that_goes_on_stays_whatever_else_its_session_begins() -> None:
    memory = PromptMemory(1 << 20)
    main = memory.add(SESSION, prompt(1))
    for turn in range(3 * MAX_PROMPTS):
        memory.add(SESSION, prompt(2 + turn))
        main = memory.renew(SESSION, main, chain(1, 4 + turn), [])
    assert memory.continued(SESSION, 1, chain(1, 100).hashes) is main


def test_no_entry_stays_of_a_prompt_that_is_not_held() -> None:
    memory = PromptMemory(1 << 20)
    for number in range(1, 1000):
        memory.add(SESSION, prompt(number))
    assert len(memory._session_by_asked) == MAX_PROMPTS


def test_what_is_counted_is_what_is_held() -> None:
    """Also where a prompt was dropped while its next turn was under way."""
    chance = random.Random(1)
    memory, known = PromptMemory(20_000), [prompt(0)]
    for _ in range(5_000):
        session = chance.randrange(5)
        if chance.random() < 0.5:
            known.append(memory.add(session, prompt(chance.randrange(1, 40), chance.randrange(1, 20))))
        else:
            old = chance.choice(known[-20:])
            memory.renew(session, old, chain(old.lineage, len(old.chain.hashes) + 2), [])
        assert memory.bytes == held(memory) <= memory.max_bytes
