"""What an engine has sent and a client has not got yet is reserved, in each way in which it can wait."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from tests.field.fuzz.passthrough import Reader
from tests.subjects.request_scene import CONTENT, DONE, EVENTS, USAGE, WHOLE, Scene
from warmroute_proxy.core.placement.hot_prompts import HotPrompt
from warmroute_proxy.core.queue.fair_budget import FairBudget
from warmroute_proxy.server.dialects.token_counts import TokenCounts, _Question
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.http.body_memory import UNCOUNTED_BYTES, BodyMemory
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.request.re_prefill import RePrefills

pytestmark = pytest.mark.uncompiled

PIECE_BYTES = 4_000
PIECES = 150
WAITING_BYTES = PIECE_BYTES * PIECES
ENOUGH = 64 * 2**20
LITTLE = WAITING_BYTES // 2
SAID = CONTENT.replace(b'"a"', b'"%b"' % (b"a" * PIECE_BYTES))


class Asked:
    """A request in a process with so much memory."""

    def __init__(self, memory_bytes: int, *roles: str, continued: bool = False) -> None:
        self.memory = BodyMemory(memory_bytes, 1, [0])
        self.scene = Scene(roles or ("aggregated",))
        self.scene.request.parsed.model.continue_broken = continued  # type: ignore[misc]
        self.scene.client.request.body_reservation = self.memory.reserve("t", 0)
        self.scene.begin()

    def reserved(self) -> int:
        return self.memory.budget.used

    def unfinished(self) -> None:
        """An event in small pieces, without its end."""
        self.scene.content()
        for piece in [b'data: {"choices":[{"index":0,"delta":{"content":"', *[b"a" * PIECE_BYTES] * PIECES]:
            self.scene.leg().body(piece)

    def before_the_content(self) -> None:
        self.scene.leg().head(200, EVENTS)
        for _ in range(PIECES):
            self.scene.leg().body(b": " + b"a" * PIECE_BYTES + b"\n\n")

    def unread(self) -> None:
        """Some of one read, while the client reads nothing."""
        self.scene.content()
        self.scene.leg().holds(WAITING_BYTES)

    def said(self) -> None:
        """The text of an answer that another engine could continue."""
        self.scene.leg().head(200, EVENTS)
        for _ in range(PIECES):
            self.scene.leg().body(SAID)

    def prefill(self) -> None:
        """The answer of a prefill engine, which the client does not get."""
        leg = self.scene.leg("prefill")
        leg.head(200, {})
        for _ in range(PIECES):
            leg.body(b" " * PIECE_BYTES)
        leg.end()


class Way(NamedTuple):
    """How an answer waits. `goes_on`: the client gets its answer, even if there is no memory for what waits."""

    wait: Callable[[Asked], None]
    roles: tuple[str, ...] = ()
    continued: bool = False
    goes_on: bool = False


WAYS = {
    "an event without its end": Way(Asked.unfinished),
    "what comes before the content": Way(Asked.before_the_content),
    "a read that the client is slow to take": Way(Asked.unread),
    "a text that can be continued": Way(Asked.said, continued=True, goes_on=True),
    "the answer of a prefill engine": Way(Asked.prefill, roles=("prefill", "decode"), goes_on=True),
}


@pytest.mark.parametrize("name", WAYS)
async def test_what_waits_is_reserved_until_the_request_ends(name: str) -> None:
    way = WAYS[name]
    asked = Asked(ENOUGH, *way.roles, continued=way.continued)
    way.wait(asked)
    assert WAITING_BYTES - UNCOUNTED_BYTES <= asked.reserved() <= 2 * WAITING_BYTES + 2 * UNCOUNTED_BYTES
    asked.scene.client.leave()
    asked.scene.give_up_usage()
    asked.scene.write_row()
    assert not asked.reserved()


@pytest.mark.parametrize("name", WAYS)
async def test_what_finds_no_memory_is_not_kept(name: str) -> None:
    way = WAYS[name]
    asked = Asked(LITTLE, *way.roles, continued=way.continued)
    way.wait(asked)
    scene = asked.scene
    assert asked.reserved() <= LITTLE
    if way.goes_on:
        scene.complete()
    else:
        assert asked.memory.refused[0] == 1
    scene.write_row()
    assert scene.client.ends == 1


def test_a_head_without_its_end_is_reserved() -> None:
    reader, counted = Reader(), list[int]()
    reader.holds = counted.append  # type: ignore[assignment, method-assign]
    for line in [b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"v" * PIECE_BYTES + b"\r\n"] * 20]:
        reader.transport.protocol.data_received(line)
    assert counted[-1] >= 20 * PIECE_BYTES


def moved(memory_bytes: int) -> tuple[Scene, FairBudget, bool]:
    """A re-prefill of a prompt of `WAITING_BYTES`, for which two copies count. Returns whether it has begun."""
    scene, memory = Scene(), BodyMemory(memory_bytes, 2, [0])
    engines, admission = cast("Any", scene.engines), cast("Any", scene)
    re_prefills = RePrefills(
        2**30, scene.router, engines, admission, scene.open_requests, scene.metrics, engines.clock, memory
    )
    routing = scene.request.routing
    text = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"a" * WAITING_BYTES)
    prompt = HotPrompt(routing, text, "/v1/chat/completions", "salt", None, frozenset(), "old")
    begun = re_prefills._begin(prompt, scene.router.place(routing, scene.now), "old")
    return scene, memory.budget, begun


async def test_a_prompt_that_is_computed_elsewhere_is_reserved_until_it_is_there() -> None:
    scene, budget, begun = moved(ENOUGH)
    before = budget.used
    assert begun
    assert before >= 2 * WAITING_BYTES
    leg = scene.leg()
    leg.head(200, {})
    for _ in range(PIECES):
        leg.body(b" " * PIECE_BYTES)
    assert budget.used == before + WAITING_BYTES
    leg.body(WHOLE)
    leg.end()
    assert not budget.used


async def test_a_prompt_without_memory_is_not_computed_elsewhere() -> None:
    scene, budget, begun = moved(WAITING_BYTES)
    assert not begun
    assert not budget.used
    assert not scene.engines.by_id["aggregated"].upstream.legs


async def test_an_answer_to_a_question_about_tokens_is_reserved_for_the_tenant() -> None:
    memory, legs, counted = BodyMemory(ENOUGH, 1, [0]), list[Leg](), list[tuple[int, bool]]()
    owner = SimpleNamespace(began=lambda *_, **__: None, memory_of=lambda tenant: memory.reserve(tenant, 0))
    engine = SimpleNamespace(bearer="", upstream=SimpleNamespace(send=lambda *sent: legs.append(sent[-1])))
    parsed = SimpleNamespace(tenant=SimpleNamespace(name="t"), model=SimpleNamespace(name="m"), dropped=frozenset())
    read: Any = SimpleNamespace(parsed=parsed, body=Body(b'{"messages":"%b"}' % (b"a" * WAITING_BYTES)))
    _Question(cast("TokenCounts", owner), cast("Engine", engine), read, 9, lambda *given: counted.append(given))
    legs[0].head(200, {})
    for _ in range(PIECES):
        legs[0].body(b" " * PIECE_BYTES)
    assert memory.budget.used == WAITING_BYTES
    legs[0].body(b'{"count":5}')
    legs[0].end()
    assert counted == [(5, False)]
    assert not memory.budget.used


async def test_small_events_reserve_nothing() -> None:
    asked = Asked(ENOUGH)
    asked.scene.content()
    for _ in range(1_000):
        asked.scene.leg().body(CONTENT[:40])
        asked.scene.leg().body(CONTENT[40:])
    assert not asked.reserved()
    asked.scene.leg().body(USAGE + DONE)


async def test_a_text_without_memory_is_not_continued() -> None:
    asked = Asked(LITTLE, continued=True)
    asked.said()
    asked.scene.engine_fails(place="here")
    assert len(asked.scene.engines.by_id["aggregated"].upstream.legs) == 1
    assert asked.scene.settled == 1
