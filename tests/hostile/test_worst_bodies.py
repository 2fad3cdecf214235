"""No body of 2 MB costs the event loop more than three times what a chat of as many bytes does.

The bodies are made from the grammar of each dialect (`worst_bodies`). What would cost more is handed over to the
process that reads large bodies.
"""

import json
from typing import Final

import pytest
from bench.bodies import agents, as_messages

from tests.hostile.reading import MESSAGES, Became, read
from tests.hostile.worst_bodies import PLACES, SIZE, Place, body, counts, fillings
from tests.recordings import recorded
from warmroute_proxy.server.dialects.routes import DIALECT_OF_PATH, dialect_of
from warmroute_proxy.server.intake.parsed_request import CHAT

MOST: Final = 3.0
TRIES: Final = 100
AGENT: Final = agents(SIZE, 1, 1)[0][0].data.replace(b"bench-model", b"m").replace(b'\\"x\\": {', b'\\"x\\" = ')
CHAT_BODY: Final = AGENT[:-1] + b" " * (SIZE - len(AGENT)) + b"}"
"""As many brackets for its bytes as in recorded sessions, whose tools' results have fewer of them."""


def chat_s() -> float:
    """An agent's conversation of as many bytes."""
    found = [read(CHAT, CHAT_BODY) for _ in range(3)]
    assert {each.became for each in found} == {Became.READ}
    return min(each.cost_s for each in found)


def ratio(place: Place, raw: bytes, chat_cost_s: float) -> float:
    """The least cost of a body to the least of a chat, measured again where it is much: others take the caches."""
    least_s = read(place.path, raw).cost_s
    for _ in range(TRIES):
        if least_s < MOST * chat_cost_s:
            break
        least_s = min(least_s, read(place.path, raw).cost_s)
        chat_cost_s = min(chat_cost_s, chat_s())
    return least_s / chat_cost_s


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.path} {place.name}")
def test_a_body_costs_no_more_than_three_chats(place: Place) -> None:
    chat_cost_s = chat_s()
    found = {
        (filling, most): ratio(place, body(place, filling, most), chat_cost_s)
        for filling in fillings(place)
        for most in counts(filling)
    }
    assert {each: times for each, times in found.items() if times > MOST} == {}


def test_each_dialect_has_its_places() -> None:
    """One that is added needs places of its own here."""
    found = {dialect_of(place.path) for place in PLACES}
    assert set(DIALECT_OF_PATH.values()) <= found
    assert {place.path for place in PLACES if dialect_of(place.path) is None} == {CHAT}


def test_what_agents_send_is_read_in_the_loop() -> None:
    sessions = [recorded(name) for name in ("claude", "codex", "gemini", "oc_anthropic", "oc_openai")]
    found = [
        read(one.path.partition("?")[0], json.dumps(one.body | {"model": "m"}).encode()).became
        for session in sessions
        for one in session
    ]
    assert len(found) > 40
    assert Became.HANDED_OVER not in found
    assert found.count(Became.READ) > 30
    assert read(MESSAGES, as_messages(agents(200_000, 1, 1)[0][0]).data).became is not Became.HANDED_OVER
