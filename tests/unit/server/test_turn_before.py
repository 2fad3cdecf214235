"""With which earlier turn a turn is compared, as the losses of its receipt show."""

import msgspec
import pytest
from msgspec.structs import replace
from tests.subjects.request_scene import CONTENT, DONE, EVENTS, Client, Scene
from tests.subjects.routing import routing_of

import warmroute_proxy
from warmroute_proxy.core.cache.affinity import MAX_FORKS
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.engines.leg import Leg
from warmroute_proxy.server.intake.prefix_breaks import PrefixBreaks

pytestmark = pytest.mark.skipif(warmroute_proxy.COMPILED, reason="compiled code takes no scripted neighbours")


def prompt(tokens: int, turn: int, name: int = 1) -> RoutingRequest:
    """A turn of the conversation `name`, all of which begin with 3,000 equal tokens."""
    blocks = range(tokens // 500)  # of 4 bytes a token, by the prior
    hashes = [at if at < 6 else 1000 * name + at for at in blocks]
    return routing_of(Chain(hashes, [2000 * (at + 1) for at in blocks]), turn=turn, thread=1)


def send(scene: Scene, routing: RoutingRequest) -> Leg:
    scene.asked(routing, Client()).begin()
    return scene.leg()


def end(scene: Scene, leg: Leg, content: bytes, **usage: object) -> None:
    leg.head(200, EVENTS)
    leg.body(content + b"data: %b\n\n" % msgspec.json.encode({"choices": [], "usage": usage}) + DONE)
    scene.write_row()


def losses(scene: Scene, leg: Leg, tokens: int, cached: int) -> dict[str, int]:
    details = {"cached_tokens": cached}
    end(scene, leg, CONTENT, prompt_tokens=tokens, completion_tokens=1, prompt_tokens_details=details)
    return scene.entries[-1].receipt().loss


async def test_copies_of_a_turn_that_are_computed_together_have_evicted_nothing() -> None:
    scene = Scene()
    losses(scene, send(scene, prompt(30_000, 1)), 30_000, 0)
    legs = [send(scene, prompt(38_000, 2)) for _ in range(4)]
    found = [losses(scene, leg, 38_000, 30_000) for leg in legs]
    assert found[0] == {"new": 8_000}
    assert [each["not_computed_yet"] for each in found[1:]] == [7_999] * 3


async def test_a_turn_that_was_aborted_in_an_engines_queue_has_computed_nothing() -> None:
    scene = Scene()
    losses(scene, send(scene, prompt(30_000, 1)), 30_000, 0)
    client, asked = Client(), prompt(38_000, 2)
    scene.asked(asked, client).begin()
    leg = scene.leg()
    client.leave()
    aborted = CONTENT.replace(b"null", b'"abort"').replace(b'"a"', b'""')
    end(scene, leg, aborted, prompt_tokens=0, completion_tokens=0, total_tokens=0)
    assert scene.entries[-1].outcome == "client_left"
    assert scene.router.place(asked, scene.now).predicted_cached_tokens < 31_000
    assert losses(scene, send(scene, asked), 38_000, 30_000) == {"new": 8_000}


@pytest.mark.parametrize(("memory_bytes", "class_"), [(0, "cold"), (1 << 20, "new")])
async def test_conversations_that_take_turns_in_one_session_have_changed_nothing(
    memory_bytes: int, class_: str
) -> None:
    scene = Scene()
    scene.prefix_breaks = PrefixBreaks(memory_bytes)
    for turn in range(1, 5):
        for name in range(1, MAX_FORKS + 2):
            asked = prompt(5_000 * name + 1_500 * turn, turn, name)
            tokens = asked.chain.total_bytes // 4
            found = losses(scene, send(scene, asked), tokens, 0 if turn == 1 else tokens - 1_500)
            assert turn == 1 or found == {class_: 1_500}


async def test_a_turn_with_other_settings_has_evicted_nothing() -> None:
    scene, low, high = Scene(), prompt(30_000, 1), replace(prompt(32_000, 2), settings=1)
    losses(scene, send(scene, low), 30_000, 0)
    assert losses(scene, send(scene, high), 32_000, 500) == {"prefix_changed": 29_500, "new": 2_000}
    found = msgspec.json.decode(scene.entries[-1].usage)["warmroute"]["prefix_break"]
    assert (found["where"], found["cause"], found["tokens"]) == ("settings", "settings", 29_500)
    later = replace(prompt(34_000, 3), settings=1)
    assert losses(scene, send(scene, later), 34_000, 32_000) == {"new": 2_000}
