"""Conversations that WebSockets keep: counted once, and gone before a body is refused."""

import pytest
from tests.property.test_responses_prefix import SEAL

from warmroute_proxy.dialects.responses.client_events import created_request
from warmroute_proxy.dialects.responses.conversation import ResponsesConversation, continued
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.dialects.responses_socket import KeptConversation, KeptConversations
from warmroute_proxy.server.http.body_memory import BodyMemory


def conversation(size: int, before: ResponsesConversation | None = None) -> ResponsesConversation:
    members, items = created_request(b'{"type":"response.create","model":"m","input":"%b"}' % (b"x" * size))
    return continued(members, items, SEAL, lambda _: Texts(frozenset()), TranslationWork(), before, asks=True)[
        1
    ].prepared()


def of(kept: KeptConversations, tenant: str, found: ResponsesConversation) -> KeptConversation:
    """A tenant's conversation, which is kept."""
    history = kept.keep(None, tenant, found)
    assert history is not None
    return history


def test_a_conversation_counts_once_and_what_it_grows_by() -> None:
    memory = BodyMemory(1_000_000, 2, [0])
    kept = KeptConversations(memory)
    first = conversation(10_000)
    history = of(kept, "a", first)
    size_bytes = first.size_bytes
    assert memory.budget.used == size_bytes == kept.bytes_of("a")
    kept.hold(history)
    assert kept.bytes_of("a") == 0
    second = conversation(500, first)
    assert kept.keep(history, "a", second) is history
    assert memory.budget.used == second.size_bytes == kept.bytes_of("a") > size_bytes
    kept.drop(history)
    assert (memory.budget.used, history.conversation) == (0, None)


def test_they_make_way_for_bodies_the_least_recently_used_of_the_same_tenant_first() -> None:
    memory = BodyMemory(100_000, 1, [0])
    kept = KeptConversations(memory)
    of_others = of(kept, "b", conversation(10_000))
    old, new = (of(kept, "a", conversation(15_000)) for _ in range(2))
    kept.hold(old)
    kept.keep(old, "a", conversation(500, old.conversation))  # it was used
    body = memory.reserve("a", 28_000)
    assert (old.conversation is not None, new.conversation, of_others.conversation is not None) == (True, None, True)
    body.add_body(10_000)
    assert (old.conversation, of_others.conversation is not None) == (None, True)
    larger = memory.reserve("c", 55_000)
    assert of_others.conversation is None
    with pytest.raises(Refusal):
        memory.reserve("d", 10_000)
    assert larger.body_bytes == 55_000


def test_one_that_a_turn_continues_stays_and_one_without_memory_is_not_kept() -> None:
    memory = BodyMemory(50_000, 1, [0])
    kept = KeptConversations(memory)
    history = of(kept, "a", conversation(20_000))
    kept.hold(history)
    with pytest.raises(Refusal):
        memory.reserve("b", 40_000)
    assert history.conversation is not None
    assert kept.keep(None, "b", conversation(40_000)) is None
    assert kept.keep(history, "a", conversation(40_000, history.conversation)) is None
    assert memory.budget.used == 0


def test_what_cannot_fit_whatever_goes_makes_nothing_go() -> None:
    memory = BodyMemory(100_000, 1, [0])
    kept = KeptConversations(memory)
    histories = [of(kept, tenant, conversation(10_000)) for tenant in "abcab"]
    held = memory.reserve("evil", 1_000)
    with pytest.raises(Refusal):
        held.add_body(90_000)
    with pytest.raises(Refusal):
        memory.reserve("a", 100_001)
    assert all(history.conversation is not None for history in histories)


def test_one_that_is_to_be_kept_makes_none_of_others_go() -> None:
    memory = BodyMemory(100_000, 1, [0])
    kept = KeptConversations(memory)
    others = [of(kept, tenant, conversation(20_000)) for tenant in "abc"]
    assert kept.keep(None, "d", conversation(50_000)) is None
    own = of(kept, "d", conversation(15_000))
    of(kept, "d", conversation(18_000))
    assert own.conversation is None
    assert all(history.conversation is not None for history in others)


def test_one_that_no_turn_could_continue_in_the_event_loop_is_not_kept() -> None:
    memory = BodyMemory(100_000_000, 1, [0])
    kept = KeptConversations(memory)
    history = of(kept, "a", conversation(2_000_000))
    kept.hold(history)
    assert kept.keep(history, "a", conversation(200_000, history.conversation)) is None
    assert memory.budget.used == 0
