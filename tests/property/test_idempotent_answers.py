"""Readers of one answer: each gets every byte once and in order, or is told; nobody waits for one who is slower.

Clients are mocks of a connection with a small buffer, so that every order of writes, pauses and departures is tried.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.search import searched
from tests.subjects.body_memory import plenty
from tests.subjects.small_client import HEAD, SmallClient, uncounted

from warmroute_proxy.core.accounting.idempotency import IdempotencyBounds
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.request.idempotency import IdempotentCalls, SharedExchange

BOUNDS = IdempotencyBounds(answer_bytes=4_000, total_bytes=9_000, keys=50, replay_s=60.0, remember_s=600.0)
OUTLIVE_S = 10.0


class Answers(RuleBasedStateMachine):
    """One call with a key, its turn and all who ask for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.idempotent_calls = IdempotentCalls(BOUNDS, OUTLIVE_S, lambda: self.now, Metrics(), plenty())
        self.turn: SharedExchange | None = None
        self.clients: list[SmallClient] = []  # of the last turn
        self.said = b""
        self.slow = False
        self.abandoned = False
        self.alone_since: float | None = None
        self.ended_s: float | None = None
        self.outgrown = False

    def left(self) -> None:
        self.abandoned = True
        self.turn = None

    def pace(self, slow: bool) -> None:
        assert slow != self.slow
        self.slow = slow

    def present(self) -> list[SmallClient]:
        return [client for client in self.clients if not client.ended]

    @precondition(lambda self: len(self.clients) < 8)
    @rule()
    def ask(self) -> None:
        client = SmallClient()
        call = self.idempotent_calls.join("tenant", "key", client, uncounted)
        if call is not None:
            assert self.turn is None
            self.turn = self.idempotent_calls.share(call, client)
            self.turn.on_gone, self.turn.on_pause = self.left, self.pace
            self.clients, self.said = [], b""
            self.slow = self.abandoned = self.outgrown = False
            self.ended_s = None
        elif client.how == "respond 409":
            assert self.abandoned or self.outgrown or (self.ended_s is not None and self.now >= self.ended_s + 60)
            return
        else:
            assert not self.abandoned
            assert not self.outgrown
        self.clients.append(client)

    @precondition(lambda self: self.turn is not None)
    @rule(size=st.integers(1, 150), often=st.integers(1, 4))
    def say(self, size: int, often: int) -> None:
        assert self.turn is not None
        if not self.turn.started:
            self.turn.start(200, HEAD)
        for _ in range(often):
            data = bytes([65 + len(self.said) % 26]) * size
            self.said += data
            self.turn.write(data)
            self.outgrown |= self.idempotent_calls.calls.recorded_bytes == 0

    @precondition(lambda self: self.turn is not None and self.turn.started)
    @rule(tail=st.sampled_from([b"", b"data: [DONE]"]))
    def finish(self, tail: bytes) -> None:
        assert self.turn is not None
        turn, self.turn = self.turn, None
        self.said += tail
        turn.end(tail)
        self.ended_s = self.now
        self.outgrown |= self.idempotent_calls.calls.recorded_bytes == 0 and bool(self.said)

    @precondition(lambda self: self.turn is not None)
    @rule()
    def break_off(self) -> None:
        assert self.turn is not None
        turn, self.turn = self.turn, None
        present = self.present()
        if turn.started:
            turn.abort(b"error")
            assert all(client.how == "abort" and client.got.endswith(b"error") for client in present)
        else:
            turn.fail()
            assert all(client.how == "respond 500" for client in present)
        assert self.idempotent_calls.calls.recorded_bytes == 0
        self.clients = []

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.clients)).reads()

    @precondition(lambda self: self.present())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.present())).leaves()

    @rule(seconds=st.sampled_from([0.2, 5.0, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.idempotent_calls.sweep()

    @rule()
    def another_body(self) -> None:
        client = SmallClient(b'{"other":1}')
        if self.idempotent_calls.join("tenant", "key", client, uncounted) is None:
            assert client.how == "respond 422"

    @invariant()
    def everybody_has_the_answer_from_its_first_byte(self) -> None:
        for client in self.clients:
            if client.how == "abort":
                assert self.outgrown
                assert b"idempotency_key_spent" in client.got
            elif client.how == "end":
                assert client.got == self.said
            else:
                assert self.said.startswith(client.got)

    @invariant()
    def who_can_take_bytes_has_all_there_are(self) -> None:
        for client in self.present():
            if not client.paused:
                assert client.got == self.said
                assert self.turn is not None

    @invariant()
    def the_turn_waits_only_if_everybody_is_slow(self) -> None:
        if self.turn is not None:
            present = self.present()
            assert self.slow == (bool(present) and all(client.paused for client in present))

    @invariant()
    def a_turn_without_readers_ends_after_its_time(self) -> None:
        if self.turn is None or self.present():
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = self.now
        self.idempotent_calls.sweep()
        if self.alone_since is not None and self.now >= self.alone_since + OUTLIVE_S:
            assert self.turn is None
            assert self.abandoned
        assert self.idempotent_calls.calls.recorded_bytes <= BOUNDS.total_bytes
        assert set(self.idempotent_calls.orphans) <= set(self.idempotent_calls.live.values())
        assert len(self.idempotent_calls.live) == (self.turn is not None)


TestAnswers = Answers.TestCase
TestAnswers.settings = searched(100, stateful_step_count=50)
