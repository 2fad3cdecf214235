"""The bounds of what a client remembers, and the sums that survive them."""

import dataclasses
import json
import pickle
from typing import Any

import httpx
import pytest

from warmroute import _books, _outgoing
from warmroute._books import Books
from warmroute._guard import Guard
from warmroute._turns import Turn
from warmroute._watch import AnswerBytes, Watch
from warmroute.guard.memory import Memory, Remembered


def answered(books: Books, session: str, *, receipt: str | None = None) -> Turn:
    turn = Turn(session=session, streamed=False)
    books.answered(turn, None, receipt)
    return turn


def test_totals_keep_what_forgotten_sessions_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_books, "MAX_SESSIONS", 2)
    books = Books(Guard())
    for key in ("a", "b", "c"):
        books.settle(answered(books, key), {"prompt_tokens": 10, "completion_tokens": 1})
    report = books.report()
    assert list(report.by_session) == ["b", "c"]
    assert (report.turns, report.prompt_tokens) == (3, 30)


def test_pending_receipts_and_faults_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_books, "MAX_PENDING", 2)
    books = Books(Guard())
    for number in range(3):
        answered(books, "s", receipt=f"wr-{number}")
    assert books.pending() == ["wr-1", "wr-2"]
    for number in range(150):
        turn = answered(books, "s", receipt=f"wr-x{number}")
        books.settle(turn, {"prompt_tokens": 1, "warmroute": {"id": turn.receipt_id}})
    report = books.report()
    assert len(report.violations) == 100
    assert report.violations_found == 150
    assert report.violations[-1].startswith("wr-x149: the receipt is malformed")


def test_a_report_can_be_pickled_and_written_as_json() -> None:
    books = Books(Guard())
    receipt = {"id": "wr-1", "loss": {"cold": 7}}
    books.settle(answered(books, "s"), {"prompt_tokens": 10, "warmroute": receipt})
    report = books.report()
    assert pickle.loads(pickle.dumps(report)) == report
    written = json.loads(json.dumps(dataclasses.asdict(report)))
    assert (written["prompt_tokens"], written["by_session"]["s"]["losses"]) == (10, {"cold": 7})


def test_a_stream_that_ends_while_the_tables_are_in_use_is_settled_afterwards() -> None:
    """As when garbage collection ends a stream that was left, in a thread that begins another call."""
    ended: list[Turn] = []
    books = Books(Guard(), ended.append)
    turn = answered(books, "s")
    with books:
        books.ended(turn, {"prompt_tokens": 10})
    assert (books.report().prompt_tokens, ended) == (10, [turn])


def test_an_error_of_telemetry_reaches_no_call() -> None:
    def fails(_turn: Turn) -> None:
        raise ConnectionError

    books = Books(Guard(), fails)
    turn = answered(books, "s")
    with books:
        books.ended(turn)
    assert books.report().internal_errors == 1


def test_an_answer_that_nests_deeply_is_not_read() -> None:
    books = Books(Guard())
    answer = AnswerBytes(Watch(books, answered(books, "s")), {"content-type": "application/json"})
    answer.feed(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b',"usage":{"prompt_tokens":1}}')
    answer.end()
    assert books.report().prompt_tokens == 0


def test_a_stream_that_is_closed_early_has_the_counts_that_have_come() -> None:
    """The library then parses an earlier event than the last one whose bytes have come."""
    books = Books(Guard())
    watch = Watch(books, Turn(session="s", streamed=True))
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=httpx.ByteStream(b""))
    watch.attach(response)
    counts = [{"input_tokens": 9, "output_tokens": tokens} for tokens in (1, 500)]
    answer = watch._answer
    assert answer is not None
    answer.feed(b"".join(b"data: " + json.dumps({"usage": each}).encode() + b"\n\n" for each in counts))
    watch.parsed({"usage": counts[0]})
    answer.end()
    assert books.report().completion_tokens == 500


def test_long_faults_are_cut() -> None:
    books = Books(Guard())
    books.settle(answered(books, "s"), {"warmroute": {"id": "x" * 10_000}})
    assert len(books.report().violations[0]) == 300


def test_a_turn_is_settled_once() -> None:
    books = Books(Guard())
    turn = answered(books, "s")
    for _ in range(2):
        books.settle(turn, {"prompt_tokens": 10})
    assert books.report().prompt_tokens == 10


def test_a_fetched_receipt_that_is_not_pending_adds_nothing() -> None:
    books = Books(Guard())
    books.settle_fetched("wr-1", {"prompt_tokens": 10})
    assert books.report().prompt_tokens == 0


@pytest.mark.parametrize("usage", [{"prompt_tokens": True}, {"prompt_tokens": "9"}, {"prompt_tokens": -1}, {}])
def test_what_is_no_count_is_not_added(usage: dict[str, Any]) -> None:
    books = Books(Guard())
    books.settle(answered(books, "s"), usage)
    assert books.report().prompt_tokens == 0


def test_more_cached_than_prompt_tokens_never_give_a_ratio_over_one() -> None:
    books = Books(Guard())
    usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 90}}
    books.settle(answered(books, "s"), usage)
    assert books.report().hit_ratio == 1.0


def test_the_hit_ratio_is_that_of_turns_that_say_what_was_cached() -> None:
    books = Books(Guard())
    books.settle(answered(books, "s"), {"prompt_tokens": 90})
    books.settle(answered(books, "s"), {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 5}})
    report = books.report()
    assert (report.prompt_tokens, report.cached_tokens, report.hit_ratio) == (100, 5, 0.5)


def test_a_receipt_that_no_check_foresaw_is_a_violation_and_no_error_of_ours() -> None:
    books = Books(Guard())
    usage = {"prompt_tokens": float("inf"), "warmroute": {"id": "wr-1", "v": 1, "cached": {}, "loss": {}}}
    books.settle(answered(books, "s"), usage)
    assert books.report().violations_found == 1
    assert books.report().internal_errors == 0


def test_servers_are_forgotten_least_recently_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_outgoing, "MAX_SERVERS", 2)
    servers = _outgoing.Servers()
    one, two, three = (_outgoing.Server("http://server/v1", name, _outgoing.USAGE_FIELD) for name in "abc")
    servers.learn(one, takes=True)
    servers.learn(two, takes=False)
    assert servers.takes(one) is True
    servers.learn(three, takes=True)
    assert [servers.takes(server) for server in (one, two, three)] == [True, None, True]


@pytest.mark.parametrize("mode", ["off", "warn"])
def test_prompts_without_a_session_are_bounded_in_every_mode(mode: str) -> None:
    books = Books(Guard(mode))
    books.guard.memory = memory = Memory(max_text_bytes=20_000)
    kept: list[Remembered] = []
    for number in range(5):
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"{number} " * 5_000}]
        for body in ({"model": "m", "messages": messages}, {"model": "m", "messages": [*messages, *messages]}):
            turn = Turn(session=None, streamed=False)
            conversation = books.conversation(turn, body)
            assert conversation is not None
            turn.session = turn.lineage = conversation.key
            books.check(turn, body)
        kept.append(memory.session(turn.lineage))
    assert [[prompt.has_text for prompt in each.prompts] for each in kept] == [[False]] * 4 + [[True]]
