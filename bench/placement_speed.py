"""Measures the cost of a placement decision and of an index entry: `python bench/placement_speed.py`.

The program only prints figures. A decision is `Router.place` for a prompt of 100 KB whose prefix hashes are computed
already. Half of the prompts are turns of known conversations, each cached at one worker; the others are first turns.
All prompts share a system prompt. All workers have reported their load. Times are processor times, the least of some
rounds.
"""

import random
import resource
import time
from pathlib import Path

from warmroute_proxy.core.cache.index import PrefixIndex
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

CUTS = 52
CUT_BYTES = 2000
SHARED_CUTS = 10
CONVERSATIONS = 400
ROUNDS = 15
ENTRIES = 1_000_000


def chain(conversation: int, cuts: int = CUTS) -> Chain:
    """The prefix hashes of a prompt, as wide as real hashes. `cuts`: the number of hashed positions."""
    draw = random.Random(conversation)
    shared = random.Random(-1)
    hashes = [shared.getrandbits(64) for _ in range(SHARED_CUTS)]
    hashes += [draw.getrandbits(64) for _ in range(cuts - SHARED_CUTS)]
    return Chain(hashes, list(range(CUT_BYTES, CUT_BYTES * (cuts + 1), CUT_BYTES)))


def routing(conversation: int, turn: int, cuts: int = CUTS) -> RoutingRequest:
    """One request of a conversation that sends a session key."""
    return RoutingRequest(
        model="model",
        lineage=conversation,
        session=conversation,
        derived=False,
        parent=None,
        chain=chain(conversation, cuts),
        structural_bytes=0,
        turn=turn,
        expected_output_tokens=256,
        home_hint=None,
        allowed_regions=None,
        may_forward=False,
    )


def decision_us(workers: int) -> tuple[float, float]:
    """Microseconds of a decision: for a known conversation, and for a new one."""
    router = Router("here", [Worker(f"w{number}", f"http://w{number}", 0, "aggregated") for number in range(workers)])
    now_s = 0.0
    for conversation in range(CONVERSATIONS):
        now_s += 0.01
        first = routing(conversation, 1, CUTS - 2)
        ticket = router.dispatched(first, router.place(first, now_s), now_s)
        if conversation % 8:  # requests of the others stay under way
            router.settled(ticket, first, now_s + 0.005, 25_000, 0, 100)
    for number in range(workers):
        router.observe_loads(f"w{number}", EngineLoads(0, 0, 0, 0, 0), now_s)
    known = [routing(conversation, 2) for conversation in range(CONVERSATIONS)]
    new = [routing(conversation, 1) for conversation in range(CONVERSATIONS, 2 * CONVERSATIONS)]
    return _least_us(router, known, now_s), _least_us(router, new, now_s)


def _least_us(router: Router, asked: list[RoutingRequest], now_s: float) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for each in asked:
            router.place(each, now_s)
        rounds.append(time.process_time() - began_s)
    return min(rounds) / len(asked) * 1e6


def entry_bytes() -> float:
    """Resident bytes of an index entry: the growth of the process by a full index, divided by the entries."""
    index = PrefixIndex(entries_per_generation=ENTRIES // 8)
    slots = [1 << index.slot_for(f"w{number}") for number in range(32)]
    draw = random.Random(1)
    before = _resident()
    while index.rotations == 0:
        index.insert([draw.getrandbits(64) for _ in range(CUTS)], draw.choice(slots))
    return (_resident() - before) / index.entries


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    print(f"{entry_bytes():.0f} bytes an entry of {ENTRIES:,}")
    for workers in (8, 32):
        known_us, new_us = decision_us(workers)
        print(f"{workers} workers: {known_us:.1f} us for a known conversation, {new_us:.1f} us for a new one")
