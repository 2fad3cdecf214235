"""Readers of one answer, step by step: who sets the pace, who stays, when the turn is given up."""

from tests.subjects.body_memory import plenty
from tests.subjects.small_client import FULL_BYTES, HEAD, SmallClient, uncounted

from warmroute_proxy.core.accounting.idempotency import IdempotencyBounds
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.request.idempotency import IdempotentCalls, SharedExchange, bounds_of

OUTLIVE_S = 10.0
PART = b"x" * FULL_BYTES


class Scene:
    """One call with a key, of which `first` is the first reader."""

    def __init__(self, answer_bytes: int = 100_000, *, may_keep: bool = True) -> None:
        self.now = 0.0
        self.may_keep = may_keep
        bounds = IdempotencyBounds(answer_bytes, 100_000, 10, 60.0, 600.0)
        self.idempotent_calls = IdempotentCalls(bounds, OUTLIVE_S, lambda: self.now, Metrics(), plenty())
        self.slow: list[bool] = []
        self.gone = 0
        self.first = SmallClient()
        self.turn = self.begin(self.first)

    def begin(self, client: SmallClient) -> SharedExchange:
        call = self.idempotent_calls.join("tenant", "key", client, uncounted)
        assert call is not None
        turn = self.idempotent_calls.share(call, client, may_keep=self.may_keep)
        turn.on_gone, turn.on_pause = self._left, self.slow.append
        turn.start(200, HEAD)
        return turn

    def _left(self) -> None:
        self.gone += 1

    def join(self) -> SmallClient:
        client = SmallClient()
        assert self.idempotent_calls.join("tenant", "key", client, uncounted) is None
        return client

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.idempotent_calls.sweep()


def test_the_config_bounds_answers_and_their_time() -> None:
    bounds = bounds_of(Limits(keyed_answer_bytes=1, keyed_total_bytes=2, keyed_replay_s=3.0))
    assert (bounds.answer_bytes, bounds.total_bytes, bounds.replay_s) == (1, 2, 3.0)


def test_one_who_joins_in_time_saves_the_turn_and_the_time_begins_anew() -> None:
    scene = Scene()
    scene.first.leaves()
    scene.wait(OUTLIVE_S - 1)
    second = scene.join()
    scene.wait(OUTLIVE_S)
    assert scene.gone == 0
    second.leaves()
    scene.wait(OUTLIVE_S - 1)
    assert scene.gone == 0
    scene.wait(1.0)
    assert scene.gone == 1
    late = scene.join()
    assert late.how == "respond 409"


def test_an_answer_that_outgrows_its_bound_stays_with_the_reader_that_is_furthest() -> None:
    scene = Scene(answer_bytes=1_000)
    second = scene.join()
    said = b""
    for number in range(12):
        scene.turn.write(PART + b"%02d" % number)
        said += PART + b"%02d" % number
        second.reads()
    assert scene.first.how == "abort"
    assert b"idempotency_key_spent" in scene.first.got
    assert second.got == said
    late = scene.join()
    assert late.how == "respond 409"
    scene.turn.end(b"end")
    assert (second.how, second.got) == ("end", said + b"end")


def test_who_stays_with_an_outgrown_answer_and_leaves_ends_it_at_once() -> None:
    scene = Scene(answer_bytes=1_000)
    for _ in range(12):
        scene.turn.write(PART)
        scene.first.reads()
    assert scene.gone == 0
    scene.first.leaves()
    assert scene.gone == 1


def test_an_outgrown_answer_that_nobody_reads_ends() -> None:
    scene = Scene(answer_bytes=1_000)
    scene.first.leaves()
    for _ in range(12):
        scene.turn.write(PART)
    scene.wait(0.25)
    assert scene.gone == 1


def test_a_drain_gives_up_what_has_no_reader_and_waits_for_nobody_later() -> None:
    scene = Scene()
    scene.first.leaves()
    scene.idempotent_calls.shut_down()
    assert scene.gone == 1
    other = Scene()
    other.idempotent_calls.shut_down()
    other.turn.write(PART)
    assert other.gone == 0
    other.first.leaves()
    assert other.gone == 1


def test_a_whole_answer_of_another_status_is_not_kept() -> None:
    idempotent_calls = Scene().idempotent_calls
    client = SmallClient()
    call = idempotent_calls.join("other", "key", client, uncounted)
    assert call is not None
    idempotent_calls.share(call, client).respond(503, [], b"later")
    assert client.how == "respond 503"
    assert idempotent_calls.join("other", "key", SmallClient(), uncounted) is not None


def test_what_still_waited_in_the_queue_when_it_was_given_up_is_forgotten() -> None:
    class Waiting:
        id = "wr-1"
        waiter = object()

    scene = Scene()
    scene.turn.served = Waiting()
    scene.first.leaves()
    scene.wait(OUTLIVE_S)
    assert scene.gone == 1
    assert scene.idempotent_calls.join("tenant", "key", SmallClient(), uncounted) is not None


def test_an_answer_that_may_not_be_kept_is_gone_once_its_readers_have_it() -> None:
    """It may be joined while it is under way. Afterwards its key is known, so that nothing is charged twice."""
    scene = Scene(may_keep=False)
    second = scene.join()
    scene.turn.write(PART + b"!")
    scene.turn.end(b"end")
    assert scene.idempotent_calls.calls.recorded_bytes > 0, "both read on"
    for client in (scene.first, second):
        client.reads()
        assert (client.how, client.got) == ("end", PART + b"!" + b"end")
    assert scene.idempotent_calls.calls.recorded_bytes == 0
    assert scene.join().how == "respond 409"
    scene.wait(600.0)
    call = scene.idempotent_calls.join("tenant", "key", client := SmallClient(), uncounted)
    assert call is not None
    scene.idempotent_calls.share(call, client, may_keep=False).respond(200, [], b"whole")
    assert client.how == "respond 200"
    assert scene.idempotent_calls.calls.recorded_bytes == 0
    assert scene.join().how == "respond 409"
