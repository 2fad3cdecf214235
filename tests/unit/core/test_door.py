"""Who begins a session while KV memory is short: none while a running one waits, but of a tenant within its share."""

import random

import msgspec
from tests.property.test_memory_wait import POOL, Front, turn_of

from warmroute_proxy.core.placement.waits import KNOWN_S, Waits
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.admission import FOR_MEMORY, Queue, Waiter
from warmroute_proxy.core.queue.door import MAX_SHUT, SMALL_WAIT_S, Announcing, Door

WAIT_S = 60.0


def made_queue() -> Queue[int]:
    return Queue(1000, 1 << 30, 30.0, WAIT_S)


def made_waiter(number: int, since_s: float, *, begins: bool, tenant: str = "t") -> Waiter[int]:
    waiter = Waiter(number, tenant, "m", 1, since_s, begins=begins)
    waiter.need_tokens = 10_000 * (1 + number % 5)
    return waiter


def door_of(front: Front) -> Door[RoutingRequest]:
    return Door(front.router, front.queue, "m", front.now)


def full(front: Front, tenant: str = "t") -> None:
    """Two sessions that leave no room, in use at both workers."""
    for session in (101, 102):
        assert front.arrive(turn_of(session, 90), tenant) is None


def test_those_that_begin_a_session_have_an_order_of_their_own() -> None:
    queue = made_queue()
    new = [made_waiter(number, 0.0, begins=True, tenant=f"t{number % 2}") for number in range(4)]
    old = [made_waiter(number, 50.0, begins=False, tenant=f"t{number % 3}") for number in range(4)]
    for each in (*new, *old):
        queue.join(each, FOR_MEMORY, 0.0)
    assert set(queue.for_memory("m")) == set(old)
    assert set(queue.for_memory("m", begins=True)) == set(new)


def test_what_waits_is_counted_whatever_joins_leaves_moves_and_is_served() -> None:
    queue, draw, waiting = made_queue(), random.Random(1), list[Waiter[int]]()
    for step in range(5_000):
        what = draw.random()
        if what < 0.4 or not waiting:
            waiter = made_waiter(step, float(step), begins=draw.random() < 0.5, tenant=f"t{draw.randrange(3)}")
            pushed = queue.join(waiter, draw.choice((FOR_MEMORY, "w1", "w2")), 1.0)
            if pushed is not None:
                waiting = [each for each in (*waiting, waiter) if each not in pushed]
        elif what < 0.5:
            queue.need(draw.choice(waiting), draw.randrange(50_000))
        elif what < 0.65:
            queue.leave(waiting.pop(draw.randrange(len(waiting))))
        elif what < 0.8:
            queue.served(waiting.pop(draw.randrange(len(waiting))), 1000)
        else:
            queue.move(draw.choice(waiting), draw.choice((FOR_MEMORY, "w1", "w2")), 1.0, float(step))
        line = [each for each in waiting if each.worker_id == FOR_MEMORY]
        assert queue.running("m") == sum(not each.begins for each in line)
        assert queue.tenants_for_memory("m") == {each.tenant for each in line}
        for tenant in ("t0", "t1", "t2"):
            own = [each for each in line if each.tenant == tenant]
            assert queue.running("m", tenant) == sum(not each.begins for each in own)
            assert queue.needed("m", tenant) == sum(each.need_tokens for each in own)


def test_a_new_session_waits_while_a_running_one_does_and_goes_after_it() -> None:
    front = Front()
    full(front)
    running = front.arrive(turn_of(1, 30, number=2))
    new = front.arrive(turn_of(2, 10))
    assert running is not None
    assert new is not None
    assert (running.begins, new.begins) == (False, True)
    front.now += 10.0
    front.router.observe_session(front.running[0][0].lineage, 3, front.now)  # over: what it holds is free at its end
    front.end()
    assert front.sent[-2:] == [(1, front.sent[-2][1]), (2, front.sent[-1][1])], "the running session is first"


def test_a_new_session_is_not_overdue_while_the_door_is_shut_and_is_once_it_is_open() -> None:
    front = Front()
    full(front)
    new = front.arrive(turn_of(2, 30))
    assert new is not None
    front.now += WAIT_S - 20.0
    running = front.arrive(turn_of(1, 30, number=2))
    assert running is not None
    front.now += 30.0
    front.round()
    assert new in front.queue
    assert running in front.queue
    assert front.queue.expired(front.now - 71.0) == []
    front.now += 40.0
    front.round()
    front.round()
    assert running not in front.queue, "the bound of a running session holds"
    assert new not in front.queue, "the door is open, and it has waited for longer than the bound"


def test_without_a_running_session_that_waits_the_bound_is_kept() -> None:
    front = Front()
    full(front)
    new = front.arrive(turn_of(2, 30))
    assert new is not None
    front.now += WAIT_S
    front.round()
    assert new not in front.queue


def test_who_waits_for_memory_expires_although_nobody_looks_for_a_place() -> None:
    """As where no worker can be used."""
    queue = made_queue()
    new, old = made_waiter(1, 100.0, begins=True), made_waiter(2, 100.0, begins=False)
    for each in (new, old):
        queue.join(each, FOR_MEMORY, 0.0)
    assert queue.expired(100.0 + WAIT_S) == []
    assert set(queue.expired(100.0 + WAIT_S + 1)) == {new, old}


def test_sessions_that_never_end_do_not_keep_the_door_shut_for_ever() -> None:
    front = Front()
    full(front)
    new = front.arrive(turn_of(2, 30))
    assert new is not None
    for number in range(100):
        front.arrive(turn_of(50 + number, 30, number=2))
        front.now += 20.0
        front.round()
        if new not in front.queue:
            break
        while len(front.running) > 2:
            front.end(2)
    assert new not in front.queue
    assert MAX_SHUT * WAIT_S <= front.now - new.since_s <= (MAX_SHUT + 1) * WAIT_S


def test_sub_agents_and_invented_histories_do_not_begin_a_session() -> None:
    front = Front()
    begins, of = front.router.waits_at_door, msgspec.structs.replace
    for served in (of(turn_of(1, 30), session=77), of(turn_of(5, 2), session=78)):
        front.go(served, front.router.place(served, front.now))
    assert not begins(of(turn_of(2, 30), session=77)), "a sub-agent with its session's key"
    assert not begins(of(turn_of(3, 30), session=79, parent=77)), "one that names its parent"
    assert not begins(turn_of(4, 30, number=2)), "a history that this proxy does not know"
    assert begins(of(turn_of(6, 30), session=78)), "only a title of it was served"
    assert begins(turn_of(7, 30))
    front.end()
    assert not begins(of(turn_of(2, 30), session=77))


def test_a_tenant_within_its_share_begins_sessions_although_another_one_floods() -> None:
    front = Front()
    full(front, "flood")
    assert front.arrive(turn_of(1, 80, number=2), "flood") is not None
    small, large = front.arrive(turn_of(2, 20), "small"), front.arrive(turn_of(3, 20), "flood")
    assert small is not None
    assert large is not None
    front.now += 1.0
    assert not door_of(front).is_shut(small)
    assert door_of(front).is_shut(large)
    assert not door_of(front).is_overdue(small)
    front.now += SMALL_WAIT_S
    front.round()
    assert small not in front.queue, "it waits for 15 s, whatever it evicts"
    assert large in front.queue


def test_a_tenant_is_judged_by_all_that_it_waits_for() -> None:
    front = Front()
    full(front, "flood")
    assert front.arrive(turn_of(1, 80, number=2), "flood") is not None
    each_tokens = int(0.95 * 2 * POOL / 2 / 3)
    waiters = [front.arrive(turn_of(10 + n, each_tokens // 1000), "small") for n in range(5)]
    assert all(waiter is not None and door_of(front).is_shut(waiter) for waiter in waiters)


def test_what_waits_at_another_process_shuts_the_door_here_until_that_process_is_gone() -> None:
    front = Front()
    front.router.waits_elsewhere.observe(1, Waits("m", "t", 2, 50_000), front.now)
    waiter = front.arrive(turn_of(1, 30))
    assert waiter is not None, "there is room, but a running session waits elsewhere"
    front.router.waits_elsewhere.observe(1, Waits("m", "t", 0, 0), front.now)
    front.round()
    assert waiter not in front.queue
    front.router.waits_elsewhere.observe(1, Waits("m", "t", 1, 50_000), front.now)
    waiter = front.arrive(turn_of(2, 30))
    assert waiter is not None
    front.router.waits_elsewhere.forget(1)
    front.round()
    assert waiter not in front.queue


def test_the_door_can_be_left_out() -> None:
    front = Front()
    front.queue.new_sessions_wait = False
    full(front)
    assert front.arrive(turn_of(1, 30, number=2)) is not None
    new = front.arrive(turn_of(2, 10))
    assert new is not None
    assert not new.begins


def test_what_another_process_does_not_say_again_is_forgotten() -> None:
    front = Front()
    elsewhere, told = front.router.waits_elsewhere, Announcing(front.router, front.queue)
    elsewhere.observe(1, Waits("m", "t", 1, 50_000), front.now)
    told.sweep(front.now + KNOWN_S)
    assert elsewhere.running("m") == elsewhere.running("m", "t") == 1
    told.sweep(front.now + KNOWN_S + 0.25)
    assert elsewhere.running("m") == elsewhere.running("m", "t") == elsewhere.needed("m", "t") == 0
    assert elsewhere.tenants("m") == set()
