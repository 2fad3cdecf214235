"""`warmroute conform` against servers that repeat its key, answer what nobody expects, drip, cut streams, or spend."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pytest
from tests.subjects.http_server import QuietServer

from warmroute.contract.money import Rates
from warmroute_cli.main import main
from warmroute_lab.conform.checks import checks_of, cost_of
from warmroute_lab.conform.conform import APIS
from warmroute_lab.conform.shapes import Asked, shape_of
from warmroute_lab.conform.trial import TrialOptions
from warmroute_lab.conform.wire import LEFT, MAX_ANSWER_BYTES, Endpoint

pytestmark = pytest.mark.full

Capture = pytest.CaptureFixture[str]
KEY = "wr-secret/with-hyphens-0123456789"
USAGE = {
    "prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101, "prompt_tokens_details": {"cached_tokens": 90}
}  # fmt: skip
DEEP = b"[" * 100_000


class Answering(BaseHTTPRequestHandler):
    """Answers each request by `answer`, which writes to it."""

    protocol_version = "HTTP/1.1"
    models: Any = ({"data": [{"id": "m"}]},)
    answer: ClassVar[Callable[["Answering", dict[str, Any]], None]]

    def do_GET(self) -> None:
        if self.path.startswith("/v1/models"):
            self.say(json.dumps(self.models[0]).encode())
        else:
            self.close_connection = True  # A receipt: no answer at all.

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def say(self, body: bytes, status: int = 200, kind: str = "application/json", **heads: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in heads.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def chat(self, usage: Any = USAGE, **more: Any) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        self.say(json.dumps({"id": "1", "model": "m", "choices": [choice], "usage": usage} | more).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[QuietServer] = []

    def serving(answer: Callable[[Any, dict[str, Any]], None], models: Any = None) -> str:
        given = {"answer": answer} | ({} if models is None else {"models": (models,)})
        server = QuietServer(("127.0.0.1", 0), type("Given", (Answering,), given))
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serving
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY)
    return file


def conform(capture: Capture, *words: object) -> tuple[int, dict[str, dict[str, Any]], str]:
    """The exit status, the cells, and all that was printed."""
    code = main(["conform", *map(str, words), "--json"])
    out, err = capture.readouterr()
    (api,) = json.loads(out)["apis"].values() if out else [{"cells": []}]
    return code, {cell["check"]: cell for cell in api["cells"]}, out + err


def test_gemini_omits_a_count_of_0(serve: Serve, key: Path, tmp_path: Path, capsys: Capture) -> None:
    """The server finds only whole prompts of the same key again, and answers an Idempotency-Key once."""
    other, seen = tmp_path / "other", set[tuple[str, str]]()
    other.write_text("another")

    def gemini(to: Answering, body: dict[str, Any]) -> None:
        sent = to.headers["x-goog-api-key"], json.dumps(body)
        cached = {"cachedContentTokenCount": 95} if sent in seen else {}
        seen.add(sent)
        answer = {"responseId": to.headers["idempotency-key"], "usageMetadata": {"promptTokenCount": 100, **cached}}
        if "stream" in to.path:
            to.say(b"data: " + json.dumps(answer).encode() + b"\n\n", kind="text/event-stream")
        else:
            to.say(json.dumps(answer).encode())

    words = ("--api", "gemini", "--key-file", key, "--other-key-file", other)
    _, cells, _ = conform(capsys, serve(gemini), *words)
    checked = ("sticks by x-session-affinity", "isolation of two keys", "retry")
    assert [cells[check]["state"] for check in checked] == ["fail", "pass", "pass"]
    assert "same answer" in cells["retry"]["finding"]


ECHOES: dict[str, Callable[[Answering], None]] = {
    "usage": lambda to: to.chat({**USAGE, "total_tokens": 0, "by": [KEY], KEY: 1}),
    "end of an error": lambda to: to.say(b"x" * 390 + KEY.encode() + b"y" * 900, 401),
    "end of what is read of an error": lambda to: to.say((KEY.encode() * 40)[: 400 + len(KEY) + 7] + b"y" * 900, 401),
    "end of a stream's error": lambda to: to.say(
        b"data: " + json.dumps({"error": "x" * 385 + KEY}).encode() + b"\n\n", kind="text/event-stream"
    ),
    "escaped": lambda to: to.say(b'{"error": "' + KEY.replace("/", "\\/").encode() + b'"}', 401),
    "a header": lambda to: to.say(b"{}", 401, server=KEY),
}


@pytest.mark.parametrize("where", ECHOES)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_no_part_of_a_key_is_printed(
    where: str, words: list[str], serve: Serve, key: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    url = serve(lambda to, _: ECHOES[where](to))
    assert main(["conform", url, "--turns", "1", "--key-file", str(key), *words]) == 1
    out, err = capsys.readouterr()
    assert KEY[:9] not in (out + err).replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_model_with_the_name_of_the_key_is_not_printed(
    words: list[str], serve: Serve, key: Path, capsys: Capture
) -> None:
    url = serve(lambda to, _: to.chat({}), {"data": [{"id": KEY}]})
    assert main(["conform", url, "--turns", "1", "--key-file", str(key), *words]) == 1
    out, err = capsys.readouterr()
    assert KEY not in out + err
    assert "$KEY" in out


def test_what_a_server_says_does_not_reach_the_terminal_as_control(serve: Serve, capsys: Capture) -> None:
    url = serve(lambda to, _: to.say(b"\x1b[2Jgone\nprices match  pass", 500))
    assert main(["conform", url, "--turns", "1"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[2Jgone" in out


ODD: dict[str, Callable[[Answering, dict[str, Any]], None]] = {
    "deep, whole": lambda to, _: to.say(DEEP),
    "deep, streamed": lambda to, _: to.say(b"data: " + DEEP + b"\n\n", kind="text/event-stream"),
    "deep usage": lambda to, _: to.say(b'{"usage": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}"),
    "a huge count": lambda to, _: to.chat({**USAGE, "prompt_tokens": 10**400}),
    "a huge cost": lambda to, _: to.chat({**USAGE, "cost": 10**400}),
    "no receipt where one is named": lambda to, body: (
        to.say(
            b'data: {"choices": [{"delta": {}}]}\n\n', kind="text/event-stream", x_warmroute_receipt="wr 1"
        )
        if body.get("stream")
        else to.chat()
    ),
    "a receipt that is none": lambda to, _: to.chat({**USAGE, "warmroute": {"v": [], "cached": 3, "loss": "x"}}),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_each_check_has_a_cell_whatever_is_answered(what: str, words: list[str], serve: Serve, capsys: Capture) -> None:
    given = ["conform", serve(ODD[what]), "--turns", "1", "--price", "0.6:0.1:3", *words]
    assert main(given) in {0, 1}
    out = capsys.readouterr().out
    names = [check.name for check in checks_of("openai", TrialOptions(turns=1))]
    if words:
        assert [cell["check"] for cell in json.loads(out)["apis"]["openai"]["cells"]] == names
    else:
        assert all(name in out for name in names)


def test_a_check_that_breaks_off_is_one_cell(serve: Serve, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("warmroute_lab.conform.codex.tools", broken)
    code, cells, _ = conform(capsys, serve(lambda to, _: to.chat()), "--turns", "1")
    assert code == 1
    assert cells["keeps tools"]["finding"] == "the check broke off: OverflowError: too large"
    assert cells["prices match"]["state"] == "not tried"


def sent(url: str, api: str = "openai", *, stream: bool = True, cancel: bool = False, timeout_s: float = 60.0) -> Any:
    return Endpoint(url, ("", ""), timeout_s).send(api, shape_of(api, "m", Asked("s", ["q"], stream)), cancel=cancel)


@pytest.mark.parametrize("part", ["head", "whole", "stream"])
def test_an_answer_that_drips_ends_at_the_time_that_was_given(part: str, serve: Serve) -> None:
    ended = Event()

    def drips(to: Answering, _: dict[str, Any]) -> None:
        to.close_connection = True
        kind = "text/event-stream" if part == "stream" else "application/json"
        head = b"HTTP/1.1 200 OK\r\n" + (b"" if part == "head" else f"content-type: {kind}\r\n\r\n".encode())
        to.wfile.write(head)
        while not ended.wait(0.05):
            try:
                to.wfile.write(b"x: y\r\n" if part == "head" else b": x\n")
            except OSError:
                ended.set()

    found = sent(serve(drips), timeout_s=0.5)
    assert not found.ok
    assert "no whole answer within 0.5 s" in found.error + found.broken
    assert ended.wait(10)  # The connection was closed, or this server would drip for ever.


FIRST: dict[str, dict[str, Any]] = {
    "openai": {"choices": [{"delta": {"content": "x"}, "finish_reason": None}]},
    "anthropic": {"type": "content_block_start"},
    "gemini": {"candidates": [{"content": {}}]},
    "responses": {"type": "response.output_item.added"},
}
LAST: dict[str, dict[str, Any]] = {
    "openai": {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    "anthropic": {"type": "message_stop"},
    "gemini": {"candidates": [{"finishReason": "STOP"}]},
    "responses": {"type": "response.completed"},
}


@pytest.mark.parametrize("api", APIS)
def test_a_stream_without_a_sign_of_its_end_is_cut(api: str, serve: Serve) -> None:
    def stream(*events: dict[str, Any]) -> str:
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        return serve(lambda to, _: to.say(body, kind="text/event-stream"))

    assert sent(stream(FIRST[api], LAST[api]), api).ok
    assert "nothing in it says that it ends" in sent(stream(FIRST[api]), api).broken
    assert sent(stream(FIRST[api], LAST[api]), api, cancel=True).broken == LEFT


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_an_answer_that_does_not_end_is_broken(kind: str, serve: Serve) -> None:
    line = b"data: " + json.dumps(LAST["openai"]).encode() + b"\n\n"
    body = line * (MAX_ANSWER_BYTES // len(line) + 2)
    found = sent(serve(lambda to, _: to.say(body, kind=kind)))
    assert "has more than 4,194,304 bytes" in found.broken


def test_cancel_is_not_tried_without_a_receipt(serve: Serve, capsys: Capture) -> None:
    def streams(to: Answering, body: dict[str, Any]) -> None:
        if body.get("stream"):
            event = {**LAST["openai"], "usage": USAGE}
            to.say(b"data: " + json.dumps(event).encode() + b"\n\n", kind="text/event-stream")
        else:
            to.chat()

    _, cells, _ = conform(capsys, serve(streams), "--turns", "1")
    assert cells["cancel"]["state"] == "not tried"
    assert "without a receipt" in cells["cancel"]["finding"]


def test_cancel_fails_where_a_stream_was_asked_for_and_none_came(serve: Serve, capsys: Capture) -> None:
    _, cells, _ = conform(capsys, serve(lambda to, _: to.chat()), "--turns", "1")
    assert cells["cancel"]["state"] == "fail"
    assert "no stream that could be left" in cells["cancel"]["finding"]


@pytest.mark.parametrize("count", ["prompt_tokens", "completion_tokens"])
def test_nothing_more_is_sent_once_more_is_reported_than_was_announced(
    count: str, serve: Serve, capsys: Capture
) -> None:
    asked = []

    def spends(to: Answering, body: dict[str, Any]) -> None:
        asked.append(body)
        to.chat({**USAGE, count: 200_000})

    options = TrialOptions(turns=1)
    cost = cost_of("openai", checks_of("openai", options), options)
    code, cells, _ = conform(capsys, serve(spends), "--turns", "1")
    most = cost.prompt_tokens if count == "prompt_tokens" else cost.completion_tokens
    assert len(asked) == most // 200_000 + 1
    assert code == 0
    assert "were announced" in cells["keeps tools"]["finding"]
    assert len(cells) == len(checks_of("openai", options))


@pytest.mark.parametrize("api", APIS)
def test_what_is_announced_holds_at_a_token_a_byte(api: str) -> None:
    options = TrialOptions(turns=9)
    cost = cost_of(api, checks_of(api, options), options)
    questions = [f"Question {at}: what is next?" for at in range(10)]
    asked = Asked("x" * (options.prompt_bytes + 8), questions, tools=True, with_call=True)
    text = json.dumps(shape_of(api, "m", asked).body)
    assert cost.prompt_tokens // cost.requests >= len(text) - len(questions) * 40


def test_writes_to_anthropics_cache_are_in_the_price() -> None:
    rates, options = Rates(1_000_000, 100_000, 0), TrialOptions()
    cost = cost_of("anthropic", checks_of("anthropic", options), options)
    assert cost.nanousd(rates) == cost.prompt_tokens * 1_250


@pytest.mark.parametrize("words", [[], ["--model", "m"]])
def test_no_answer_is_exit_2_with_and_without_a_model(words: list[str], capsys: Capture) -> None:
    assert main(["conform", "http://127.0.0.1:9", *words]) == 2
    assert "Connection refused" in capsys.readouterr().err


def test_checks_that_were_left_out_are_not_tried(serve: Serve, capsys: Capture) -> None:
    code, cells, _ = conform(capsys, serve(lambda to, _: to.say(b"no", 401)), "--turns", "1")
    states = [cell["state"] for cell in cells.values()]
    assert code == 1
    assert states == ["fail"] + ["not tried"] * (len(checks_of("openai", TrialOptions(turns=1))) - 1)


def test_two_equal_keys_are_refused(key: Path, capsys: Capture) -> None:
    assert main(["conform", "http://127.0.0.1:9", "--key-file", str(key), "--other-key-file", str(key)]) == 2
    assert "the same key" in capsys.readouterr().err


def test_each_red_cell_has_the_request_that_shows_it(serve: Serve, key: Path, tmp_path: Path, capsys: Capture) -> None:
    """Of a server with one cache for all, which never streams, forgets tools, has wrong totals and repeats keys."""
    seen: set[str] = set()

    def wrong(to: Answering, body: dict[str, Any]) -> None:
        if "logprobs" in body:
            said = {"error": {"message": f"no logprobs for {to.headers['authorization']}"}}
            to.say(json.dumps(said).encode(), 400)
            return
        prompt = sum(len(str(message["content"])) // 4 for message in body["messages"][:2])
        system = body["messages"][0]["content"]
        cached = {"cached_tokens": prompt if system in seen or "n" in body else 0}
        seen.add(system)
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt}
        to.chat({**usage, "prompt_tokens_details": cached}, choices=[choice] * body.get("n", 1))

    other = tmp_path / "other"
    other.write_text("wr-another-key-0123456789")
    code, cells, printed = conform(capsys, serve(wrong), "--key-file", key, "--other-key-file", other)
    red = {check: cell for check, cell in cells.items() if cell["state"] == "fail"}
    assert code == 1
    assert set(red) == {
        "isolation of two keys", "keeps tools", "keeps tool calls", "keeps the answer's limit", "counts add up",
        "n > 1", "cancel",
    }  # fmt: skip
    for cell in red.values():
        assert cell["shown_by"]
        assert cell["shown_by"][0]["request"]["body"]["model"] == "m"
        assert cell["shown_by"][0]["usage"]
    assert red["isolation of two keys"]["shown_by"][1]["key"] == "second"
    assert not any(secret in printed for secret in (KEY, other.read_text()))
