"""What caches keep of conversations, learned from what engines report: seen in where turns go and what is predicted."""

import math
from collections import OrderedDict
from random import Random

from tests.unit.core.test_router import aggregated, facts, send

from warmroute_proxy.core.cache.retention import Retention
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.histories import Histories
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.facts import Facts

TOKENS = 10_000
CONVERSATIONS = 60
HELD = 30


class Engine:
    """A cache that drops the conversation that was used least lately."""

    def __init__(self, held: int) -> None:
        self._held = held
        self._tokens: OrderedDict[int, int] = OrderedDict()

    def has(self, request: Facts) -> bool:
        return request.lineage in self._tokens

    def serve(self, request: Facts) -> int:
        cached = self._tokens.pop(request.lineage, 0)
        self._tokens[request.lineage] = TOKENS
        while len(self._tokens) > self._held:
            self._tokens.popitem(last=False)
        return cached


def turn(router: Router, engine: Engine, request: Facts, now_s: float) -> None:
    ticket = send(router, request, now_s)
    router.first_token(ticket, now_s)
    router.settled(ticket, request, now_s, TOKENS, engine.serve(request), 0)


def replayed(worker: Worker, held: int, *, events: bool = False) -> tuple[int, int, int]:
    """Turns whose history was evicted, those of them that were predicted to be cached, and those falsely given up."""
    router, engine, random = Router("east", [worker]), Engine(held), Random(1)
    if events:
        router.cache_removed(worker.id, [1], "device")
    for name in range(CONVERSATIONS):
        turn(router, engine, facts(name), 0.0)
    evicted = unnoticed = given_up = 0
    for number in range(3000):
        request = facts(min(random.randrange(CONVERSATIONS), random.randrange(CONVERSATIONS)), turn=2)
        predicted = router.place(request, float(number)).predicted_cached_tokens
        if number >= 1000:
            evicted += not engine.has(request)
            unnoticed += predicted > 0 and not engine.has(request)
            given_up += not predicted and engine.has(request)
        turn(router, engine, request, float(number))
    return evicted, unnoticed, given_up


def test_most_of_what_an_engine_has_evicted_is_not_predicted_and_almost_nothing_is_given_up_falsely() -> None:
    evicted, unnoticed, given_up = replayed(aggregated("a")[0], HELD)
    assert evicted > 400
    assert unnoticed < evicted / 2
    assert given_up < 2000 * 0.02


def test_where_nothing_is_evicted_all_histories_count_as_cached() -> None:
    assert replayed(aggregated("a")[0], CONVERSATIONS) == (0, 0, 0)


def test_what_an_engine_tells_by_events_or_keeps_in_other_tiers_is_not_guessed() -> None:
    evicted, unnoticed, given_up = replayed(aggregated("a")[0], HELD, events=True)
    assert (unnoticed, given_up) == (evicted, 0)
    evicted, unnoticed, given_up = replayed(Worker("a", "a", 0, "aggregated", host_cache=True), HELD)
    assert (unnoticed, given_up) == (evicted, 0)


def test_an_engine_that_reports_nothing_as_cached_is_not_believed() -> None:
    router, engine = Router("east", aggregated("a")), Engine(0)
    for number in range(300):
        turn(router, engine, facts(number % 20, turn=2), float(number))
    assert router.place(facts(0, turn=2), 300.0).predicted_cached_tokens > 0


def test_a_turn_waits_for_its_history_and_not_where_it_is_gone() -> None:
    router = Router("east", aggregated("a", "b"))
    engines = {"a": Engine(4), "b": Engine(4)}

    def served(name: int, now_s: float) -> str:
        request = facts(name, turn=2)
        cache_worker = router.place(request, now_s).cache_worker
        turn(router, engines[cache_worker], request, now_s)
        return cache_worker

    for number in range(600):  # each conversation has two turns, then 19 others have theirs
        served(number // 2 % 20, float(number))
    home = served(100, 600.0)
    busy = facts(101, 30_000)
    ticket = router.dispatched(busy, router.place(busy, 600.0, frozenset({"a", "b"} - {home})), 600.0)
    assert router.place(facts(100, turn=2), 600.0).cache_worker == home
    router.failed(ticket, 600.0, ())
    for number in range(80):
        served(number // 2 % 20, 601.0 + number)
    router.dispatched(busy, router.place(busy, 700.0, frozenset({"a", "b"} - {home})), 700.0)
    decision = router.place(facts(100, turn=2), 700.0)
    assert decision.cache_worker != home
    assert decision.predicted_cached_tokens == 0
    assert decision.known_tokens > 0


def test_a_history_that_is_in_use_is_not_gone_however_long_its_turn_lasts() -> None:
    router, engine = Router("east", aggregated("a")), Engine(4)
    for number in range(800):
        turn(router, engine, facts(number // 2 % 20, turn=2), float(number))
    assert router.place(facts(0, turn=2), 800.0).predicted_cached_tokens == 0
    ticket = send(router, facts(0, turn=2), 800.0)
    router.first_token(ticket, 800.0)
    for number in range(400):
        turn(router, engine, facts(1 + number // 2 % 19, turn=2), 801.0 + number)
    assert router.place(facts(0, turn=3), 1300.0).predicted_cached_tokens > 0


def test_the_conversations_that_were_used_least_lately_go_first() -> None:
    router, histories = Router("east", aggregated("a")), Histories(max_entries=3)
    tickets = [send(router, facts(name)) for name in range(5)]
    for name, ticket in enumerate(tickets):
        histories.end(name, ticket, 0)
    tickets[0].cache_worker.load.retention.kept_tokens = -1e9  # all are gone
    assert [name for name in range(5) if histories.evicted_from(name)] == [2, 3, 4]


def test_a_kept_distance_rises_at_once_and_falls_slowly() -> None:
    retention = Retention()
    retention.observe(1000.0, 8000, 5000, 0)
    assert retention.kept_tokens == math.inf  # as long as it has reported nothing as cached
    retention.reports = True
    retention.observe(1000.0, 3000, 500, 0)
    retention.observe(1000.0, 90_000, 5000, 0)
    assert retention.kept_tokens == math.inf  # too short to tell
    retention.observe(1000.0, 8000, 5000, 0)
    assert retention.kept_tokens == 2000.0
    retention.observe(1000.0, 8000, 5000, 0)
    assert retention.kept_tokens == 1900.0
    retention.observe(3000.0, 8000, 5000, 0)
    assert retention.kept_tokens == 1900.0  # as expected
    retention.observe(3000.0, 8000, 5000, 4000)
    assert retention.kept_tokens == 3000.0
