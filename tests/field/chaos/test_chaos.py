"""The short chaos run, and that the long one would see what it looks for."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from .__main__ import figures
from .asks import ask
from .audit import audit
from .client import Answer, Broken, Seen
from .fleet import ROLES
from .run import Findings, Run
from .schedule import schedule


@pytest.mark.timeout(300)
def test_a_thousand_requests_while_everything_breaks(tmp_path: Path) -> None:
    """The same faults each time, so that a change is judged alone; `python -m tests.field.chaos` takes other seeds."""
    seed = 1
    print(f"seed {seed}: python -m tests.field.chaos --requests 1000 --concurrency 100 --seed {seed}")
    found = uvloop.run(Run(seed, 1000, 100, tmp_path, print).go())
    print(figures(found))
    assert audit(found) == []
    assert len(found.seen) >= 1000
    assert sum(map(len, found.open_at_kill)) > 0, "the proxy was killed while it had nothing open"


def test_a_seed_names_a_run() -> None:
    engines = list(ROLES)
    assert schedule(7, 1000, engines) == schedule(7, 1000, engines) != schedule(8, 1000, engines)
    assert ask(7, 3) == ask(7, 3) != ask(8, 3)
    assert {fault.kind for fault in schedule(7, 1000, engines)} == {
        "kill", "stop", "freeze", "break", "drop", "reset", "silence", "refuse", "proxy",
    }  # fmt: skip


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CONTENT = {"choices": [{"delta": {"content": "hi"}, "finish_reason": None}]}
FINISH = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
USAGE: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 1}}
ERROR = {"error": {"message": "the engine broke", "code": "engine_error"}}
ANSWER = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}'
END = b"0\r\n\r\n"


def events(*found: Any) -> bytes:
    """Each event as a chunk."""
    texts = [f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n".encode() for item in found]
    return b"".join(b"%x\r\n%b\r\n" % (len(text), text) for text in texts)


def whole(status: int, body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body) if length is None else length, body)


def judged(raw: bytes) -> str:
    """How an answer of these bytes, and a close after them, is judged: whole, error, or what is wrong with it."""
    answer = Answer("hi")
    try:
        at = raw.index(b"\r\n\r\n") + 4
        answer.take_head(raw[:at])
        answer.take_body(bytearray(raw), at)
    except Broken as error:
        return answer.judge_break(str(error)) or "error"
    problem = answer.judge_end() if answer.ended else answer.judge_break("closed")
    return problem or ("error" if answer.error else "whole")


@pytest.mark.parametrize(
    ("raw", "verdict"),
    [
        (STREAM + events(CONTENT, FINISH, USAGE, "[DONE]") + END, "whole"),
        (STREAM + events(CONTENT, ERROR), "error"),
        (whole(502, json.dumps(ERROR).encode()), "error"),
        (whole(200, ANSWER), "whole"),
        (whole(200, ANSWER.replace(b"hi", b"h")), "another text"),
        (STREAM + events(CONTENT, CONTENT, FINISH, USAGE, "[DONE]") + END, "another text"),
        (STREAM + events(FINISH, USAGE, "[DONE]") + END, "another text"),
        (STREAM + events(CONTENT, CONTENT, ERROR), "not the beginning of the text"),
        (STREAM + events(CONTENT), "closed after"),
        (STREAM + events(CONTENT, FINISH), "closed after"),
        (STREAM + events(CONTENT, FINISH, USAGE, "[DONE]"), "closed after"),
        (STREAM + events(CONTENT) + END, "but no [DONE]"),
        (STREAM + events(CONTENT, "[DONE]") + END, "without finish or usage"),
        (STREAM + events(CONTENT, ERROR) + END, "as if it were whole"),
        (STREAM + events(CONTENT, ERROR, "[DONE]"), "an error event, and [DONE]"),
        (STREAM + events(CONTENT, ERROR, CONTENT), "closed after"),
        (STREAM, "closed after 0 bytes"),
        (whole(200, b'{"choices":', 400), "closed after 11 bytes"),
        (whole(200, b"{}"), "without finish or usage"),
        (whole(502, b"<html>"), "not JSON"),
        (whole(502, b"{}"), "an error without an object"),
    ],
)
def test_what_a_client_takes_for_a_complete_answer(raw: bytes, verdict: str) -> None:
    assert verdict in judged(raw)


_USAGE: dict[str, Any] = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "prompt_tokens_details": {"cached_tokens": 0},
    "cost": 0.00009,
    "warmroute": {
        "v": 1, "id": "wr-1", "session": None, "turn": 1, "region": "east",
        "workers": [{"id": "a0", "dp_rank": 0, "role": "aggregated"}],
        "cached": {"device": 0, "host": 0, "storage": 0}, "predicted_cached": 0, "loss": {"cold": 100},
        "rates_usd_per_mtok": {"input": "0.6", "cached": "0.1", "output": "3"},
        "list_nanousd": 90_000, "price_nanousd": 90_000, "saved_nanousd": 0, "estimated": [],
    },
}  # fmt: skip


def findings() -> Findings:
    """A run of one request in which everything holds."""
    row = {
        "id": "wr-1", "tenant": "first", "outcome": "completed", "status": 200, "rids": '["r1"]',
        "workers": '[{"id":"a0"}]', "prompt_tokens": 100, "cached_tokens": 0, "completion_tokens": 10,
        "usage": json.dumps(_USAGE), "list_nanousd": 90_000, "price_nanousd": 90_000,
    }  # fmt: skip
    total = {name: row[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")}
    total |= {"list_nanousd": 90_000, "price_nanousd": 90_000}
    logged = {"rid": "r1", "prompt_tokens": 100, "completion_tokens": 10, "aborted": False}
    seen = Seen(ask(1, 1), 0, "whole", "", 200, "wr-1", copy.deepcopy(_USAGE), b"")
    found = Findings(1, [seen], [row], {"a0": [logged]}, [set()], {"a0": 0}, 20, 20, [[(0, 1), (1, 1), (2, 1)]])
    found.totals = [total, dict.fromkeys(total, 0)]
    return found


def test_a_run_in_which_everything_holds() -> None:
    assert audit(findings()) == []


def charged_twice(found: Findings) -> None:
    keyed = replace(ask(1, 1), key="k")
    found.seen = [replace(found.seen[0], ask=keyed, receipt=receipt) for receipt in ("wr-1", "wr-2")]
    found.rows.append(dict(found.rows[0], id="wr-2"))


def continued(found: Findings, computed: int) -> None:
    """The rest of an answer had so many tokens, and what was said before as a part of its prompt."""
    usage = found.seen[0].usage
    assert usage is not None
    usage["warmroute"]["continued"] = {"after_tokens": 4, "by": "text"}
    found.rows[0]["usage"] = json.dumps(usage)
    found.served["a0"][0].update(prompt_tokens=104, completion_tokens=computed)


def test_a_request_is_sent_once_more_if_the_engine_closed_its_connection_as_idle() -> None:
    found = findings()
    found.served["a0"].insert(0, dict(found.served["a0"][0], aborted=True))
    assert audit(found) == []


def test_the_sum_of_a_continued_answer_is_what_was_computed() -> None:
    found = findings()
    continued(found, 6)
    assert audit(found) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda f: continued(f, 7), "110 tokens in all, the engine computed 111"),
        (lambda f: continued(f, 5), "110 tokens in all, the engine computed 109"),
        (lambda f: f.rows.clear(), "has no row"),
        (lambda f: f.rows[0].update(outcome="client_left"), "is client_left"),
        (lambda f: f.seen[0].usage.update(completion_tokens=11), "the client saw"),
        (lambda f: f.served["a0"][0].update(completion_tokens=9), "more completion_tokens than the engine"),
        (lambda f: f.served["a0"].clear(), "the engine has no such request"),
        (lambda f: f.served["a0"].append(dict(f.served["a0"][0])), "twice"),
        (lambda f: f.served["a0"].append(dict(f.served["a0"][0], rid="r2")), "which no row has"),
        (lambda f: f.open_at_kill.append({"wr-2"}), "wr-2 was open at a kill and is gone"),
        (lambda f: f.rows[0].update(outcome="interrupted"), "was not open at a kill"),
        (lambda f: f.rows[0].update(outcome="engine_error"), "is charged"),
        (lambda f: f.seen.append(replace(f.seen[0], ask=ask(1, 2))), "the receipt wr-1 went to"),
        (charged_twice, "is charged 2 times"),
        (lambda f: f.still_working.update(a0=1), "still had 1"),
        (lambda f: f.totals[0].update(price_nanousd=1), "/v1/usage of first"),
        (lambda f: setattr(f, "fd_end", 100), "100 descriptors"),
        (lambda f: f.rss[0].append((3, 100_000)), "memory grew"),
        (lambda f: f.complaints.append("an ERROR"), "complains"),
        (lambda f: setattr(f.seen[0], "end", "unfinished"), "request 1"),
    ],
)
def test_what_the_audit_finds(change: Any, problem: str) -> None:
    found = findings()
    change(found)
    assert any(problem in line for line in audit(found)), audit(found)
