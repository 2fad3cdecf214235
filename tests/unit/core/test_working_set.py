"""The books of the working set: what peer processes know of them, and what a restart and a move leave."""

from functools import partial
from typing import Any

import msgspec
import pytest

from warmroute_proxy.core.cache.return_times import OVER, PERSON, TOOLS
from warmroute_proxy.core.load.engine_loads import EngineLoads
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router, Ticket
from warmroute_proxy.core.placement.working_set import FITS, FREE, LACKS, MAX_HOMES, MAX_OF_SESSION
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.peer_events import Event
from warmroute_proxy.core.replicas.replica import Replica

POOL = 100_000
IDS = ("a", "b")


def turn_of(session: int, thousands: int) -> RoutingRequest:
    """A turn of a session, by 4 bytes a token."""
    chain = Chain([session * 1000 + n for n in range(thousands)], [4000 * (n + 1) for n in range(thousands)])
    return RoutingRequest("m", session, session, False, None, chain, 0, 1, 300, None, None, True)


def report(router: Router, **more: Any) -> None:
    for id_ in IDS:
        router.observe_loads(id_, EngineLoads(max_running=100, max_tokens=POOL, **more), 0.0)


@pytest.fixture
def router() -> Router:
    router = Router("east", [Worker(id_, id_, 0, "aggregated") for id_ in IDS])
    report(router)
    return router


def send(router: Router, routing: RoutingRequest, to: str, now_s: float = 0.0) -> Ticket:
    decision = router.place(routing, now_s, frozenset(IDS) - {to})
    return router.dispatched(routing, decision, now_s)


def end(router: Router, ticket: Ticket, routing: RoutingRequest, now_s: float) -> None:
    router.first_token(ticket, now_s)
    router.settled(ticket, routing, now_s, routing.chain.total_bytes // 4, 0, 100)


def processes() -> tuple[Router, Replica]:
    """The router of one process of a proxy, and another process that is told of all that it does."""
    workers = [Worker(id_, id_, 0, "aggregated") for id_ in IDS]
    other = Replica("east", workers, send=lambda *_: None)
    router = Replica("east", workers, send=lambda event, now_s: other.apply(0, event, now_s)).router
    for each in (router, other.router):
        report(each)
    return router, other


def memory_at(router: Router, routing: RoutingRequest, to: str, now_s: float = 0.0) -> int:
    return router.working_set.memory_for(routing, router.place(routing, now_s, frozenset(IDS) - {to}), now_s)


def test_a_worker_is_full_while_turns_run_and_sessions_are_likely_to_return(router: Router) -> None:
    first, second, third = turn_of(1, 60), turn_of(2, 30), turn_of(3, 60)
    assert memory_at(router, first, "a") == FITS
    ticket = send(router, first, "a")
    running = send(router, second, "a")
    assert memory_at(router, third, "a") == LACKS
    assert memory_at(router, third, "b") == FITS
    end(router, ticket, first, 5.0)
    assert memory_at(router, third, "a", 6.0) == LACKS  # it may come back within seconds
    assert memory_at(router, turn_of(1, 61), "a", 6.0) == FREE
    assert memory_at(router, third, "a", 600.0) == FITS
    end(router, running, second, 600.0)


def test_a_small_turn_is_free_whatever_is_there(router: Router) -> None:
    send(router, turn_of(1, 95), "a")
    assert memory_at(router, turn_of(2, 5), "a") == FREE


def test_a_session_that_moves_leaves_its_old_worker(router: Router) -> None:
    routing = turn_of(1, 60)
    end(router, send(router, routing, "a"), routing, 1.0)
    assert router.working_set.resident_at(1, 60_000) == "a"
    ticket = send(router, turn_of(1, 61), "b", 2.0)
    assert router.working_set.resident_at(1, 60_000) == "b"
    assert router.working_set.as_dict(2.0)["a"]["resident"] == 0
    router.failed(ticket, 3.0, ())
    assert router.working_set.as_dict(3.0)["b"]["resident"] == 0  # its prompt was never computed


def test_a_worker_that_restarts_has_empty_books(router: Router) -> None:
    routing = turn_of(1, 60)
    ticket = send(router, routing, "a")
    router.worker_restarted("a")
    report(router)
    assert router.working_set.as_dict(1.0)["a"]["tokens"] == 0
    router.failed(ticket, 1.0, ["a"])
    router.remove_worker("a")
    assert set(router.working_set.as_dict(2.0)) == {"b"}
    assert router.working_set.resident_at(1, 60_000) == ""


def test_workers_with_a_second_tier_take_any_turn() -> None:
    router = Router("east", [Worker(id_, id_, 0, "aggregated", host_cache=True) for id_ in IDS])
    report(router)
    send(router, turn_of(1, 95), "a")
    assert memory_at(router, turn_of(2, 60), "a") == FREE


def test_processes_of_one_proxy_share_the_books() -> None:
    router, other = processes()
    first, second = turn_of(1, 60), turn_of(2, 30)
    tickets = [send(router, first, "a"), send(router, second, "a")]
    assert memory_at(other.router, turn_of(3, 60), "a") == LACKS
    end(router, tickets[0], first, 1.0)
    assert other.router.working_set.as_dict(2.0) == router.working_set.as_dict(2.0)
    router.failed(tickets[1], 3.0, ())
    assert other.router.working_set.as_dict(3.0) == router.working_set.as_dict(3.0)
    other.forget(0, 4.0)
    assert other.router.working_set.as_dict(4.0)["a"]["in_use"] == 0


def test_one_conversation_of_a_session_is_over_for_all_processes() -> None:
    router, other = processes()
    first, second = (msgspec.structs.replace(turn_of(number, 20), session=99) for number in (1, 2))
    for routing in (first, second):
        end(router, send(router, routing, "a"), routing, 1.0)
    before = router.working_set.as_dict(2.0)["a"]["protected_tokens"]
    router.observe_session(first.lineage, OVER, 2.0)
    for each in (router, other.router):
        assert each.working_set.as_dict(2.0)["a"]["protected_tokens"] == before // 2
    router.observe_session(12345, OVER, 2.0)  # no session, no conversation
    router.observe_session(99, OVER, 2.0)
    assert other.router.working_set.as_dict(2.0)["a"]["protected_tokens"] == 0


def test_a_turn_of_an_open_conversation_is_counted_whichever_process_sends_it() -> None:
    router, other = processes()
    turn = turn_of(1, 20)
    for each in (router, other.router):
        each.working_set.turns_of_open[turn.lineage] = 0
    for to in IDS:
        end(router, send(router, turn, to), turn, 1.0)
        send(router, turn_of(2, 20), to)
    assert [each.working_set.turns_of_open for each in (router, other.router)] == [{turn.lineage: 2}] * 2


def test_a_session_that_is_over_protects_nothing_and_each_kind_of_end_has_its_window(router: Router) -> None:
    first, second, over = turn_of(1, 20), turn_of(2, 20), turn_of(3, 20)
    for routing, kind in ((first, TOOLS), (second, PERSON), (over, OVER)):
        ticket = send(router, routing, "a")
        router.working_set.expect(ticket, kind)
        end(router, ticket, routing, 1.0)
    send(router, turn_of(4, 10), "a", 1.0)
    books = router.fleet.workers["a"].load.residents
    books.windows_s = [30.0, 60.0, 5.0]
    assert router.working_set.as_dict(2.0)["a"]["protected_tokens"] == 50_200
    books.windows_s = [30.0, 60.0, 5.0]
    assert books.protected(20.0) == 30_100
    assert books.tokens_of(3) == 20_100  # it is there, and the first that may be evicted


def of_session(session: int, lineage: int, thousands: int = 10, *, derived: bool = False) -> RoutingRequest:
    """A turn of one of a session's conversations."""
    return msgspec.structs.replace(turn_of(lineage, thousands), session=session, derived=derived)


def serve(router: Router, routing: RoutingRequest, now_s: float = 1.0, kind: int = TOOLS) -> None:
    ticket = send(router, routing, "a")
    router.working_set.expect(ticket, kind)
    end(router, ticket, routing, now_s)


def protected(router: Router, now_s: float = 2.0) -> int:
    return int(router.working_set.as_dict(now_s)["a"]["protected_tokens"])


def test_the_end_of_a_session_gives_all_its_memory_free_and_nothing_of_another_one(router: Router) -> None:
    for lineage in (11, 12):
        serve(router, of_session(1, lineage))
    serve(router, of_session(2, 21))
    assert protected(router) == 30_300
    router.observe_session(1, OVER, 2.0)
    assert protected(router) == 10_100
    assert router.working_set.held_by(11) == 10_100  # it is there, and the first that may be evicted
    router.observe_session(3, OVER, 2.0)
    router.observe_session(2, TOOLS, 2.0)
    router.observe_session(2, 77, 2.0)
    assert protected(router) == 10_100
    serve(router, of_session(1, 11), 3.0)  # its client was wrong: it goes on
    assert protected(router, 3.0) == 20_200


def test_a_session_that_ends_while_its_turn_runs_is_over_whatever_the_answer_says(router: Router) -> None:
    routing = of_session(1, 11)
    ticket = send(router, routing, "a")
    router.observe_session(1, OVER, 0.5)
    assert protected(router, 0.6) > 0  # in use
    router.working_set.expect(ticket, TOOLS)
    end(router, ticket, routing, 1.0)
    assert protected(router) == 0


def test_a_session_that_waits_for_a_person_has_a_persons_window(router: Router) -> None:
    serve(router, of_session(1, 11), kind=TOOLS)
    books = router.fleet.workers["a"].load.residents
    router.working_set.refresh(1.0)
    books.windows_s = [5.0, 5.0, 60.0]
    router.observe_session(1, PERSON, 2.0)
    assert books.protected(50.0) == 10_100
    assert books.protected(63.0) == 0
    router.observe_session(1, PERSON, 64.0)
    assert books.protected(64.0) == 0  # what may be evicted is not protected again


def test_a_session_whose_key_was_derived_has_no_name_by_which_it_could_be_ended(router: Router) -> None:
    serve(router, of_session(1, 11, derived=True))
    router.observe_session(1, OVER, 2.0)
    assert protected(router) == 10_100


def test_the_conversations_of_sessions_are_bounded(router: Router) -> None:
    books = router.working_set
    for lineage in range(MAX_OF_SESSION + 5):
        books.belongs(lineage, 1, "")
    for session in range(2, MAX_HOMES + 5):
        books.belongs(session, session, "")
    assert len(books._sessions) == MAX_HOMES
    books.belongs(7, MAX_HOMES + 4, "")
    assert max(map(len, books._sessions.values())) <= MAX_OF_SESSION


def test_each_process_hears_of_the_end_of_a_session_whichever_has_served_it() -> None:
    workers = [Worker(id_, id_, 0, "aggregated") for id_ in IDS]
    replicas: list[Replica] = []

    def tell(event: Event, now_s: float, sender: int) -> None:
        replicas[1 - sender].apply(sender, event, now_s)

    replicas += [Replica("east", workers, send=partial(tell, sender=number)) for number in (0, 1)]
    routers = [replica.router for replica in replicas]
    for each in routers:
        report(each)
    serve(routers[0], of_session(1, 11))
    serve(routers[1], of_session(1, 12))
    assert [protected(each) for each in routers] == [20_200, 20_200]
    routers[1].observe_session(1, OVER, 2.0)
    assert [protected(each) for each in routers] == [0, 0]
