"""Limits of a tenant hold for each turn of a WebSocket as for a request over HTTP."""

from pathlib import Path
from typing import Any

from tests.subjects.processes import answer, until
from tests.subjects.websockets import LAST, Socket

from .test_admission import scene
from .test_working_set import counted

SECOND = 1  # the tenant with limits


def refused(event: dict[str, Any], words: str, code: str = "rate_limit_exceeded") -> int:
    """The seconds after which a turn beyond a limit may come again."""
    assert (event["type"], event["status"], event["error"]["code"]) == ("error", 429, code), event
    assert words in event["error"]["message"]
    return int(event["headers"]["retry-after"])


def test_each_turn_counts_in_the_requests_of_a_minute_and_so_does_one_that_prepares(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, second="requests_per_minute = 3") as it:
        it.gate.open_for_all()
        with Socket(it.proxy, tenant=SECOND) as socket:
            prepared = socket.answer("a", generate=False)
            first = socket.answer("b", previous_response_id=prepared["id"])
            socket.answer("c", previous_response_id=first["id"])
            for generate in (True, False):
                again = socket.ask("d", generate=generate)
                assert 1 <= refused(again, "3 requests a minute") <= 20
            assert it.metric('warmroute_refused_total{reason="requests_per_minute"}') == 2
            assert answer(it.send("over HTTP", tenant=SECOND))[0] == 429
            assert len(it.engine.bodies) == 2
            with Socket(it.proxy) as other:
                other.answer("a tenant without limits")


def test_a_turn_counts_in_tokens_with_all_that_it_continues(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, second="tokens_per_minute = 5000") as it:
        it.engine.script = counted(it.gate)
        it.gate.open_for_all()
        with Socket(it.proxy, tenant=SECOND) as socket:
            first = socket.answer("a word " * 1_700)
            refused(socket.ask("more", previous_response_id=first["id"]), "5000 tokens a minute")
            socket.answer("a small one")


def test_streams_run_within_the_limit_of_requests_at_once(tmp_path: Path) -> None:
    with scene(tmp_path, running=100, second="requests_at_once = 1") as it, Socket(it.proxy, tenant=SECOND) as socket:
        socket.send("first", stream_id="a")
        it.runs(1)
        socket.send("second", stream_id="b")
        it.waiting(1)
        it.gate.open_for_all()
        ended = [socket.until(*LAST) for _ in range(2)]
        assert [(event["type"], event["stream_id"]) for event in ended] == [
            ("response.completed", name) for name in "ab"
        ]
        assert it.dispatched() == ["first", "second"]


def test_a_budget_that_is_spent_refuses_the_next_turn_of_an_open_connection(tmp_path: Path) -> None:
    budget = '\n[[budget]]\nname = "small"\ntenants = ["second"]\nusd_per_day = "0.001"'
    with scene(tmp_path, running=100, second=budget) as it:
        it.gate.open_for_all()
        with Socket(it.proxy, tenant=SECOND) as socket:
            spent = socket.answer("a")["usage"]["warmroute"]
            until(lambda: it.proxy.row(spent["id"]), "it is charged")
            ended: dict[str, Any] = {}
            for _ in range(10):  # each costs a quarter of the budget
                ended = socket.ask("b")
                if ended["type"] == "error":
                    break
            refused(ended, "the budget small of the day", "insufficient_quota")
            assert it.metric("warmroute_queue_requests") == 0
