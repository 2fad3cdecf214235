"""What caches keep of conversations, learned from what engines report: seen in where turns go and what is predicted."""

from collections import OrderedDict
from random import Random

from tests.unit.core.test_router import PD, aggregated, routing, send

from warmroute_proxy.core.cache.occupancy import FIRST, RAISED, Occupancy
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.histories import Histories
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest

TOKENS = 10_000
CONVERSATIONS = 60
HELD = 30


class Engine:
    """A cache that drops the conversation that was used least lately."""

    def __init__(self, held: int) -> None:
        self._held = held
        self._tokens: OrderedDict[int, int] = OrderedDict()

    def has(self, request: RoutingRequest) -> bool:
        return request.lineage in self._tokens

    def serve(self, request: RoutingRequest) -> int:
        cached = self._tokens.pop(request.lineage, 0)
        self._tokens[request.lineage] = TOKENS
        while len(self._tokens) > self._held:
            self._tokens.popitem(last=False)
        return cached


def turn(router: Router, engine: Engine, request: RoutingRequest, now_s: float) -> None:
    ticket = send(router, request, now_s)
    router.first_token(ticket, now_s)
    router.settled(ticket, request, now_s, TOKENS, engine.serve(request), 0)


def replayed(worker: Worker, held: int, *, events: bool = False) -> tuple[int, int, int]:
    """Turns whose history was evicted, those of them that were predicted to be cached, and those falsely given up."""
    router, engine, random = Router("east", [worker]), Engine(held), Random(1)
    if events:
        router.cache_removed(worker.id, [1], "device")
    for name in range(CONVERSATIONS):
        turn(router, engine, routing(name), 0.0)
    evicted = unnoticed = given_up = 0
    for number in range(3000):
        request = routing(min(random.randrange(CONVERSATIONS), random.randrange(CONVERSATIONS)), turn=2)
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
        turn(router, engine, routing(number % 20, turn=2), float(number))
    assert router.place(routing(0, turn=2), 300.0).predicted_cached_tokens > 0


def test_a_turn_waits_for_its_history_and_not_where_it_is_gone() -> None:
    router = Router("east", aggregated("a", "b"))
    engines = {"a": Engine(4), "b": Engine(4)}

    def served(name: int, now_s: float) -> str:
        request = routing(name, turn=2)
        cache_worker = router.place(request, now_s).cache_worker
        turn(router, engines[cache_worker], request, now_s)
        return cache_worker

    for number in range(600):  # each conversation has two turns, then 19 others have theirs
        served(number // 2 % 20, float(number))
    home = served(100, 600.0)
    busy = routing(101, 30_000)
    ticket = router.dispatched(busy, router.place(busy, 600.0, frozenset({"a", "b"} - {home})), 600.0)
    assert router.place(routing(100, turn=2), 600.0).cache_worker == home
    router.failed(ticket, 600.0, ())
    for number in range(80):
        served(number // 2 % 20, 601.0 + number)
    router.dispatched(busy, router.place(busy, 700.0, frozenset({"a", "b"} - {home})), 700.0)
    decision = router.place(routing(100, turn=2), 700.0)
    assert decision.cache_worker != home
    assert decision.predicted_cached_tokens == 0
    assert decision.known_tokens > 0


def test_a_history_that_is_in_use_is_not_gone_however_long_its_turn_lasts() -> None:
    router, engine = Router("east", aggregated("a")), Engine(4)
    for number in range(800):
        turn(router, engine, routing(number // 2 % 20, turn=2), float(number))
    assert router.place(routing(0, turn=2), 800.0).predicted_cached_tokens < 0.2 * TOKENS
    ticket = send(router, routing(0, turn=2), 800.0)
    router.first_token(ticket, 800.0)
    for number in range(400):
        turn(router, engine, routing(1 + number // 2 % 19, turn=2), 801.0 + number)
    assert router.place(routing(0, turn=3), 1300.0).predicted_cached_tokens > 0


def test_a_prompt_displaces_others_when_its_worker_computes_it_and_not_while_it_waits() -> None:
    router = Router("east", aggregated("a"))
    router.observe_loads("a", EngineLoads(max_tokens=3 * TOKENS), 0.0)
    engine = Engine(3)
    for name in (1, 1, 2, 3):
        turn(router, engine, routing(name, turn=2), 0.0)
    at_work, waiting = send(router, routing(3, turn=3), 1.0), send(router, routing(4, turn=2), 1.0)
    assert router.place(routing(1, turn=3), 1.0).predicted_cached_tokens > 0.9 * TOKENS
    router.first_token(at_work, 2.0)
    assert router.place(routing(1, turn=3), 2.0).predicted_cached_tokens == 0
    router.first_token(waiting, 3.0)
    assert router.place(routing(4, turn=3), 3.0).predicted_cached_tokens > 0.9 * TOKENS


def test_a_prefill_worker_evicts_in_the_order_of_prompts_however_long_the_answers_are() -> None:
    """Conversation 1 had its prompt before 2 had, and its answer lasts longer."""
    router = Router("east", PD)
    router.observe_loads("p", EngineLoads(max_tokens=2 * TOKENS), 0.0)
    first = routing(1)
    seen = send(router, first)
    router.settled(seen, first, 0.0, TOKENS, TOKENS, 0)  # the engine reports what it has cached
    again, other = routing(1, turn=2), routing(2)
    long, short = send(router, again), send(router, other)
    for ticket in (long, short):
        router.first_token(ticket, 1.0)
    router.settled(short, other, 2.0, TOKENS, 0, 0)
    router.settled(long, again, 9.0, TOKENS, TOKENS, 0)
    third = routing(3)
    router.settled(send(router, third, 10.0), third, 11.0, TOKENS, 0, 0)
    assert router.place(routing(1, turn=3), 12.0).predicted_cached_tokens == 0
    assert router.place(routing(2, turn=2), 12.0).predicted_cached_tokens > 0.9 * TOKENS


def test_what_an_engine_says_that_it_holds_bounds_what_is_believed_of_it() -> None:
    """Before any history was missed: six of ten thousand tokens each do not fit fifty thousand."""
    router = Router("east", aggregated("a"))
    router.observe_loads("a", EngineLoads(max_tokens=5 * TOKENS), 0.0)
    engine = Engine(5)
    for name in (1, 1, 2, 3, 4, 5, 6):
        turn(router, engine, routing(name, turn=2), 0.0)
    predicted = {name: router.place(routing(name, turn=2), 1.0).predicted_cached_tokens for name in range(1, 7)}
    assert predicted.pop(1) == 0
    assert min(predicted.values()) > 0.9 * TOKENS


def test_a_large_prompt_displaces_as_much_as_it_is_long_and_the_next_one_a_part() -> None:
    occupancy = Occupancy()
    occupancy.reports = True
    occupancy.set_pool(100_000)
    for lineage in range(5):
        occupancy.use(lineage, 20_000)
    assert not occupancy.is_overfull()
    occupancy.use(9, 50_000)
    assert [each[:2] for each in occupancy.evicted()] == [(0, 0), (1, 0), (2, 10_000)]
    assert not occupancy.is_overfull()


def test_a_history_that_was_missed_takes_all_that_is_older_with_it() -> None:
    occupancy = Occupancy()
    occupancy.reports = True
    used = [occupancy.use(lineage, 20).use for lineage in range(5)]
    occupancy.use(2, 20)  # its next turn is under way, and finds nothing
    assert [each[:2] for each in occupancy.missed(2, used[2])] == [(0, 0), (1, 0)]
    since = 2 * 20  # those that were used after it
    assert occupancy.kept_tokens == FIRST * since
    occupancy.found()
    assert occupancy.kept_tokens == FIRST * since * RAISED


def test_what_a_turn_under_way_uses_stays_and_a_prefix_of_many_counts_once() -> None:
    occupancy = Occupancy()
    occupancy.reports = True
    occupancy.set_pool(60_000)
    occupancy.use(1, 30_000).turns += 1
    occupancy.use(2, 30_000)
    occupancy.share(77, 20_000)
    occupancy.share(77, 20_000)
    assert [each[:2] for each in occupancy.evicted()] == [(2, 10_000)]


def test_the_least_recently_used_history_is_forgotten_and_counts_as_cached() -> None:
    occupancy = Occupancy(max_histories=2)
    for lineage in (1, 2, 3):
        occupancy.use(lineage, 10)
    assert [occupancy.last_use(lineage) for lineage in (1, 2, 3)] == [0, 2, 3]


def test_the_lineages_that_lost_their_history_first_are_dropped_first() -> None:
    router = Router("east", aggregated("a"))
    router.observe_loads("a", EngineLoads(max_tokens=TOKENS), 0.0)
    ticket = send(router, routing(0))
    histories, load = Histories(max_entries=2), ticket.cache_worker.load
    load.occupancy.reports = True
    for name in range(1, 6):
        histories.end(name, ticket, TOKENS)
    assert [name for name in range(6) if histories.evicted_from(name)] == [3, 4]


def test_the_answer_that_a_worker_has_generated_counts_as_cached_there() -> None:
    router = Router("east", aggregated("a"))
    first = routing(1)
    router.settled(send(router, first), first, 1.0, TOKENS, 0, 500)
    blocks = [*first.chain.hashes, 1], [*first.chain.ends, first.chain.ends[-1] + 4000]
    decision = router.place(routing(1, turn=2, chain=Chain(*blocks)), 2.0)
    assert decision.predicted_cached_tokens == TOKENS + 500
