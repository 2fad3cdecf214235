"""Which idle connection makes way: one of the tenant with the most, whatever has happened since the look."""

from tests.subjects.body_memory import plenty

from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.http.open_connections import BUSY, LOOK_AGAIN_S, OpenConnections

from .test_arrival import Endpoint

MOST = 24


class Held:
    """A connection that is open until it makes way."""

    def __init__(self, owner: str, idle_since_s: float) -> None:
        self.owner, self.idle_since_s, self.deadline_s = owner, idle_since_s, BUSY
        self.is_open = True

    def make_way(self) -> None:
        self.is_open = False

    close_when_idle = abort = on_deadline = make_way


class Port:
    """A full listener: one connection of Alice, idle for the longest time, and the others of Bob."""

    def __init__(self, of_bob: list[float]) -> None:
        self.now_s = 1_000.0
        self.shared = OpenConnections(Endpoint(), Limits(connections=MOST), lambda: self.now_s, plenty())
        self.alice, self.bobs = Held("alice", 1.0), [Held("bob", since_s) for since_s in of_bob]
        for each in (self.alice, *self.bobs):
            self.come(each)

    def come(self, connection: Held) -> None:
        assert self.shared.admit(connection)
        self.shared.known(connection)


def test_connections_that_were_used_since_the_look_go_all_the_same() -> None:
    port = Port([10.0 + number for number in range(MOST - 1)])
    port.come(Held("bob", 50.0))  # the look
    for each in port.bobs:
        each.idle_since_s += 500.0
    for number in range(MOST - 4):
        port.come(Held("bob", 600.0 + number))
    assert port.alice.is_open


def test_the_only_one_of_a_tenant_stays_if_others_are_idle_by_now() -> None:
    port = Port([0.5, *[BUSY] * (MOST - 2)])
    port.come(Held("bob", 50.0))  # the look: it finds Alice's and one of Bob's, and the older one goes
    assert port.alice.is_open
    for each in port.bobs:
        each.idle_since_s = 900.0
    port.now_s += LOOK_AGAIN_S
    port.come(Held("bob", 901.0))
    assert port.alice.is_open
