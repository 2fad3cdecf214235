"""Which of a tenant's requests is next: fair between programs, by priority, and never starving."""

import pytest

from warmroute_proxy.core.queue.admission import FOR_MEMORY, Queue, Waiter
from warmroute_proxy.core.queue.programs import BACKGROUND, INTERACTIVE, NORMAL, Roots

TIMEOUT_S = 40.0
LINE = ("m", "w0")
TOKENS = 1000


def waiter(name: str, program: int = 0, priority: int = NORMAL, since_s: float = 0.0, tenant: str = "a") -> Waiter[str]:
    found = Waiter(name, tenant, "m", 1, since_s)
    found.program, found.priority = program, priority
    return found


def queue_of(*waiters: Waiter[str], max_requests: int = 100, place: str = "w0") -> Queue[str]:
    queue: Queue[str] = Queue(max_requests, 1_000_000, TIMEOUT_S, 100.0)
    for each in waiters:
        assert queue.join(each, place, 0.0) == []
    return queue


def served(queue: Queue[str], now_s: float = 0.0, most: int = 100) -> list[str]:
    """The order in which all go, each as costly as the others."""
    found: list[str] = []
    for each in queue.fair_order(LINE, now_s):
        queue.served(each, TOKENS)
        found.append(each.item)
        if len(found) == most:
            break
    return found


def test_a_program_of_many_sub_agents_gets_the_share_of_one() -> None:
    many = [waiter(f"many{n}", program=1) for n in range(40)]
    few = [waiter(f"few{n}", program=2 + n, since_s=0.1) for n in range(10)]
    order = served(queue_of(*many, *few))
    assert order[0] == "many0"
    assert sorted(order[1:11]) == sorted(each.item for each in few)


def test_a_program_with_few_requests_keeps_its_share_while_it_comes_back() -> None:
    queue = queue_of(*[waiter(f"many{n}", program=1) for n in range(40)])
    order = []
    for turn in range(5):
        assert queue.join(waiter(f"few{turn}", program=2, since_s=1.0), "w0", 0.0) == []
        order += served(queue, 1.0, 2)
    assert [each[:3] for each in order].count("few") == 5


def test_interactive_requests_go_before_others_of_their_tenant_and_background_ones_behind() -> None:
    queue = queue_of(
        waiter("background", 1, BACKGROUND), waiter("normal", 2), waiter("interactive", 3, INTERACTIVE, 1.0)
    )
    assert served(queue, 1.0) == ["interactive", "normal", "background"]


def test_a_request_of_the_lowest_priority_goes_first_before_its_time_in_the_queue_is_over() -> None:
    background = waiter("background", 1, BACKGROUND)
    queue = queue_of(background)
    for second in range(40):
        now_s = float(second)
        queue.join(waiter(f"interactive{second}", 2, INTERACTIVE, now_s), "w0", 0.0)
        first = served(queue, now_s, 1)[0]
        if first == "background":
            break
    assert first == "background"
    assert now_s <= 3 / 4 * TIMEOUT_S


def test_a_priority_takes_nothing_from_another_tenant() -> None:
    mine = [waiter(f"mine{n}", n, INTERACTIVE) for n in range(4)]
    other = [waiter(f"other{n}", n, BACKGROUND, tenant="b") for n in range(4)]
    order = served(queue_of(*mine, *other))
    assert [each.rstrip("0123") for each in order[:6]].count("other") == 3


def test_those_that_wait_for_memory_take_turns_by_program_too() -> None:
    many = [waiter(f"many{n}", program=1) for n in range(3)]
    few = waiter("few", program=2, since_s=1.0)
    soon = waiter("soon", program=1, priority=INTERACTIVE, since_s=2.0)
    queue = queue_of(*many, few, soon, place=FOR_MEMORY)
    assert [each.item for each in queue.for_memory("m")] == ["soon", "many0", "few", "many1", "many2"]


def test_how_many_go_before_one_counts_programs_and_priorities() -> None:
    queue = queue_of(
        *[waiter(f"many{n}", program=1) for n in range(9)],
        *[waiter(f"interactive{n}", program=1, priority=INTERACTIVE) for n in range(2)],
        *[waiter(f"background{n}", program=3, priority=BACKGROUND) for n in range(5)],
    )
    assert queue.before(waiter("few", program=2, since_s=1.0), "w0", 0.0) == 2 + 1


def test_a_full_queue_makes_room_within_a_tenant() -> None:
    background = waiter("background", 3, BACKGROUND)
    many = [waiter(f"many{n}", program=1) for n in range(4)]
    queue = queue_of(background, *many, max_requests=5)
    assert queue.join(waiter("soon", 4, INTERACTIVE), "w0", 0.0) == [background]
    assert queue.join(waiter("more", program=1), "w0", 0.0) is None
    assert queue.join(waiter("behind", 5, BACKGROUND), "w0", 0.0) is None
    assert queue.join(waiter("few", program=2), "w0", 0.0) == [many[3]]


def test_sub_agents_of_sub_agents_belong_to_the_session_that_began() -> None:
    roots = Roots(max_roots=4)
    roots.started(2, 1, "a")
    roots.started(3, 2, "a")
    roots.started(1, 3, "a")  # a circle: what began stays what it was
    assert [roots.of(session) for session in (1, 2, 3, 9)] == [1, 1, 1, 9]
    for session in range(100, 110):
        roots.started(session, 99, "b")
    assert [roots.of(session) for session in (2, 3)] == [1, 1], "another tenant's sessions push none of these out"
    assert roots.of(109) == 99


@pytest.mark.parametrize("priority", [INTERACTIVE, NORMAL, BACKGROUND])
def test_of_one_program_and_priority_the_one_that_is_due_first_is_next(priority: int) -> None:
    long, short = waiter("long", 1, priority), waiter("short", 1, priority, 0.5)
    queue: Queue[str] = Queue(9, 9, TIMEOUT_S)
    queue.join(long, "w0", 2.0)
    queue.join(short, "w0", 0.1)
    assert served(queue, 0.5) == ["short", "long"]
