"""Answers whose engine dies are continued by another, where the model has that on; else the client is told."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apis.played import Answered, Said, Scene, streamed
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat, events, until
from tests.subjects.scripted import ROLE, Handler, Script, ScriptedEngine, delta
from tests.subjects.stopped import Several
from warmroute import OpenAI
from warmroute.contract import receipt as contract_receipt

from .test_faults import PAIRS, Mortal, Stream
from .test_idempotency import Asker, rows_of

pytestmark = pytest.mark.full

ON = "continue_broken = true"
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


OF_300_TOKENS: dict[str, Any] = {"metadata": {"script": '{"output_tokens": 300}'}}
TRIO = {"a0": "aggregated", "a1": "aggregated", "a2": "aggregated"}


@pytest.fixture(params=[{**PAIRS, "d2": "decode"}, TRIO], ids=["pairs", "aggregated"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mortal]:
    with Mortal(tmp_path, request.param, model=ON) as made:
        yield made


def text_of(text: str) -> str:
    choices = [choice for event in events(text) for choice in event.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


def whole_text(stream: Stream) -> str:
    assert stream.done().completed, stream.text[-300:]
    return stream.text


def check_one_answer(text: str) -> dict[str, Any]:
    """It looks like the answer of one engine; its usage is returned."""
    assert text.endswith("data: [DONE]\n\n"), text[-300:]
    found = events(text)
    assert len({event["id"] for event in found}) == 1
    choices = [choice for event in found for choice in event["choices"]]
    assert sum("role" in choice["delta"] and choice["delta"]["role"] is not None for choice in choices) == 1
    assert sum(choice["finish_reason"] is not None for choice in choices) == 1
    assert text.count("[DONE]") == 1
    usages = [event["usage"] for event in found if event.get("usage")]
    assert len(usages) == 1
    assert contract_receipt.check(usages[0]) == []
    usage: dict[str, Any] = usages[0]
    return usage


def test_every_stream_of_an_engine_that_dies_goes_on(fleet: Mortal) -> None:
    bodies = [chat(f"stream {n}", **USAGE, **OF_300_TOKENS) for n in range(8)]
    dies = next(engine for engine in fleet.engines.values() if engine.role != "prefill")
    order = {"fault": "drip", "delay_s": 0.3, "count": len(bodies)}  # so that none of its answers has ended by then
    httpx.post(f"{dies.url}/engine/faults", json=order).raise_for_status()
    streams = [Stream(fleet.proxy, body) for body in bodies]
    for stream in streams:
        stream.begun()
    fleet.kill(dies.id)
    usages = [check_one_answer(whole_text(stream)) for stream in streams]
    continued = [n for n, usage in enumerate(usages) if "continued" in usage["warmroute"]]
    assert continued
    wholes = {n: Stream(fleet.proxy, bodies[n]) for n in continued}
    rows = {row["id"]: row for row in fleet.proxy.rows(expected=8)}
    for n, stream in enumerate(streams):
        row, usage = rows[stream.receipt], usages[n]
        assert (row["outcome"], json.loads(row["usage"])) == ("completed", usage)
        assert len(json.loads(row["rids"])) == 1 + (n in continued)
        assert row["price_nanousd"] == usage["warmroute"]["price_nanousd"] > 0
    for n, whole in wholes.items():
        unbroken, usage = check_one_answer(whole_text(whole)), usages[n]
        assert text_of(streams[n].text) == text_of(whole.text)
        assert usage["prompt_tokens"] == unbroken["prompt_tokens"]
        assert usage["completion_tokens"] == unbroken["completion_tokens"]


@pytest.mark.parametrize("fleet", [TRIO], indirect=True, ids=["aggregated"])
@pytest.mark.real_deadlines("probing", "deadlines")
def test_an_engine_that_freezes_is_left_long_before_its_time_is_up(fleet: Mortal) -> None:
    """`idle_timeout_s` is 120 s here; the probes know after some seconds."""
    order = {"fault": "drip", "delay_s": 0.3, "containing": 'frozen 0"}]'}  # the rest is asked for with a longer prompt
    for engine in fleet.engines.values():
        httpx.post(f"{engine.url}/engine/faults", json=order).raise_for_status()
    stream = Stream(fleet.proxy, chat("frozen", **USAGE, **OF_300_TOKENS))
    until(lambda: stream.text.count('"content"') > 3, "it has begun")
    frozen = next(engine for engine in fleet.engines.values() if engine.running())
    with frozen.held():
        usage = check_one_answer(whole_text(stream))
    assert usage["warmroute"]["continued"]["after_tokens"] > 0
    assert usage["warmroute"]["workers"][0]["id"] != frozen.id
    until(fleet.idle, "the frozen one was told to stop", 10.0)


@contextlib.contextmanager
def scripted(folder: Path, *steps: Script) -> Iterator[tuple[list[ScriptedEngine], ProxyProcess]]:
    """Two engines that take the steps in turn, whichever is asked, and a proxy in front of them."""
    left = list(steps)

    def step(handler: Handler) -> None:
        left.pop(0)(handler)

    with (
        Several([ScriptedEngine(name, step) for name in ("s0", "s1")]) as engines,
        ProxyProcess(folder / "p", [engine.toml() for engine in engines], model=ON) as made,
    ):
        yield engines, made


DIES = (ROLE, delta("It was "), delta("the best"))


def dies(handler: Handler) -> None:
    handler.stream(*DIES, end=False)


def called(arguments: str, **more: Any) -> dict[str, Any]:
    """A chunk with a piece of a tool call."""
    call = delta()
    call["choices"][0]["delta"] = {"tool_calls": [{"index": 0, **more, "function": {"arguments": arguments}}]}
    return call


def rest(*behind: Any, finish: str = "stop") -> list[Any]:
    usage = {"prompt_tokens": 702, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}}
    end = {"object": "chat.completion.chunk", "choices": [], "usage": usage}
    parts = (ROLE, delta(" of times"), *behind, delta(finish=finish), end)
    return [*({**part, "id": "y"} for part in parts), "[DONE]"]


def goes_on(handler: Handler) -> None:
    handler.stream(*rest())


def played(folder: Path, *says: Said, path: str = "/v1/chat/completions", **fields: Any) -> tuple[Scene, Answered]:
    """A turn whose engine says the first, and another engine the next."""
    scene = Scene(folder / "p", list(says), kind="sglang", extra=ON)
    return scene, scene.play(path, json.dumps({**chat("best"), **USAGE, **fields}).encode())


OUT_OF_KV = {"error": {"object": "error", "message": "out of KV", "code": 503}}
"""SGLang's decode ends a running request with it when it is out of KV memory."""


@pytest.mark.parametrize("begins", [streamed(*DIES, cut=True), streamed(*DIES, OUT_OF_KV, "[DONE]")])
def test_the_other_engine_is_sent_the_same_request_with_the_beginning_of_its_answer(
    tmp_path: Path, begins: Said
) -> None:
    scene, answer = played(tmp_path, begins, streamed(*rest()), max_tokens=50, temperature=0.5)
    text = answer.body.decode()
    usage = check_one_answer(text)
    assert text_of(text) == "It was the best of times"
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (700, 3)
    if not begins.cut:
        assert scene.router is not None
        assert all(each["failures_in_a_row"] == 0 for each in scene.router.snapshot(0.0)["workers"].values())
    first, second = (sent for _, sent in answer.sent)
    said = {"role": "assistant", "content": "It was the best"}
    assert second["messages"] == [*first["messages"], said]
    assert (second["continue_final_message"], second["max_tokens"], first["max_tokens"]) == (True, 48, 50)
    assert second["rid"] != first["rid"]
    ours = {"messages", "continue_final_message", "max_tokens", "rid", "session_id"}
    assert {k: v for k, v in second.items() if k not in ours} == {k: v for k, v in first.items() if k not in ours}


THOUGHT = {**delta(), "choices": [{"index": 0, "delta": {"reasoning_content": "Was it?"}, "finish_reason": None}]}
TOO_LONG = b'{"object":"error","message":"This model\'s maximum context length is 8 tokens","code":400}'


@pytest.mark.parametrize(
    "rest",
    [
        Said(TOO_LONG, 400),
        streamed(ROLE, THOUGHT, delta("It was")),
        streamed(ROLE, called("", id="c"), delta(finish="tool_calls"), "[DONE]"),
        streamed(*DIES, cut=True),
        None,
    ],
    ids=["too long", "a thought", "a call", "dies too", "within a call"],
)
def test_what_has_no_rest_ends_with_an_error_of_the_engine(tmp_path: Path, rest: Said | None) -> None:
    within_a_call = streamed(ROLE, delta("It was the best"), called('{"a":', id="c"), cut=True)
    scene, answer = played(tmp_path, *((streamed(*DIES, cut=True), rest) if rest else (within_a_call, within_a_call)))
    text, asked = answer.body.decode(), 2 if rest else 1
    assert events(text)[-1]["error"]["code"] == "engine_error"
    assert "[DONE]" not in text
    assert not answer.whole
    assert text_of(text) == "It was the best" * (2 if rest and rest.cut else 1)
    assert ("tool_calls" in text) == (rest is None)
    assert "reasoning_content" not in text
    row = answer.row
    assert row is not None
    assert (row["outcome"], row["price_nanousd"], len(json.loads(row["rids"]))) == ("engine_error", 0, asked)
    usage = json.loads(row["usage"])
    assert contract_receipt.check(usage) == []
    assert ("continued" in usage["warmroute"]) == (asked == 2)
    assert len(scene.aborted) == asked


def test_a_tool_call_behind_the_break_comes_whole(tmp_path: Path) -> None:
    with_a_call = streamed(*rest(called('{"a":', id="c"), called("1}"), finish="tool_calls"))
    text = played(tmp_path, streamed(*DIES, cut=True), with_a_call)[1].body.decode()
    check_one_answer(text)
    assert text_of(text) == "It was the best of times"
    choices = [choice for event in events(text) for choice in event["choices"]]
    pieces = [call["function"]["arguments"] for each in choices for call in each["delta"].get("tool_calls", ())]
    assert ("".join(pieces), choices[-1]["finish_reason"]) == ('{"a":1}', "tool_calls")


def test_a_completion_goes_on_within_its_limit(tmp_path: Path) -> None:
    def said(text: str, finish: str | None = None) -> dict[str, Any]:
        return {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}

    usage = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 88}}
    begins, ends = (said("a "), said("time")), (said("."), said("", "length"), usage, "[DONE]")
    asked: dict[str, Any] = {"path": "/v1/completions", "prompt": "Once upon ", "max_tokens": 90}
    _, answer = played(tmp_path, streamed(*begins, cut=True), streamed(*ends), **asked)
    assert [(sent["prompt"], sent["max_tokens"]) for _, sent in answer.sent] == [
        ("Once upon ", 90),
        ("Once upon a time", 88),
    ]
    text = answer.body.decode()
    assert text_of(text) == "a time."
    found = events(text)
    assert len({event["id"] for event in found}) == 1
    assert [choice["finish_reason"] for choice in found[-2]["choices"]] == ["length"]
    assert contract_receipt.check(found[-1]["usage"]) == []
    assert found[-1]["usage"]["completion_tokens"] == 90


def test_all_who_sent_the_key_read_one_answer_whoever_gave_it(tmp_path: Path) -> None:
    """One reads from its beginning, one leaves in its midst, one joins while the other engine is asked, one is late."""
    dead, asked, may_answer = threading.Event(), threading.Event(), threading.Event()

    def dies_when_told(handler: Handler) -> None:
        dies(handler)
        dead.wait(seconds(30))

    def waits(handler: Handler) -> None:
        asked.set()
        may_answer.wait(seconds(30))
        goes_on(handler)

    with scripted(tmp_path, dies_when_told, waits) as (engines, proxy):
        body = chat("best", **USAGE)
        try:
            first = Asker(proxy, "continued", body).begun()
            Asker(proxy, "continued", body).begun().leave()
            dead.set()
            assert asked.wait(seconds(20))
            joins = Asker(proxy, "continued", body).begun()
            may_answer.set()
            readers = [first.done(), joins.done(), Asker(proxy, "continued", body).done()]
        finally:
            dead.set()
            may_answer.set()
        assert all(reader.completed for reader in readers)
        assert len({reader.text for reader in readers}) == 1
        assert text_of(first.text) == "It was the best of times"
        assert sum(len(engine.bodies) for engine in engines) == 2
        row = rows_of(proxy, first.receipt)[0]
        assert (row["outcome"], len(json.loads(row["rids"]))) == ("completed", 2)


def test_the_sdk_reads_one_answer_and_counts_it(tmp_path: Path) -> None:
    with (
        scripted(tmp_path, dies, goes_on) as (_, proxy),
        OpenAI(base_url=proxy.base_url, api_key=proxy.keys[0], max_retries=0) as client,
    ):
        chunks = client.chat.completions.create(**chat("best"), stream=True)
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        report = client.cache.report()
    assert text == "It was the best of times"
    assert (report.turns, report.receipts, report.continued, report.violations) == (1, 1, 1, ())
    assert "another engine continued: 1" in str(report)


def test_a_client_that_leaves_the_rest_ends_it(tmp_path: Path) -> None:
    left = threading.Event()

    def stays(handler: Handler) -> None:
        handler.stream(ROLE, *[delta(" and on")] * 3, end=False)
        left.wait(seconds(30))
        data = b'data: {"choices":[],"usage":{"prompt_tokens":702,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
        handler.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))

    with scripted(tmp_path, dies, stays) as (engines, proxy):
        stream = Stream(proxy, chat("best", **USAGE))
        until(lambda: " and on" in stream.text, "another goes on")
        stream.leave()
        until(lambda: sum(len(engine.aborted) for engine in engines) == 2, "both were told to stop")
        left.set()
        row = proxy.rows(expected=1)[0]
    usage = json.loads(row["usage"])
    assert contract_receipt.check(usage) == []
    assert (row["outcome"], len(json.loads(row["rids"]))) == ("client_left", 2)
    assert 0 < usage["warmroute"]["continued"]["after_tokens"] < usage["completion_tokens"]
    assert row["price_nanousd"] == usage["warmroute"]["price_nanousd"] > 0


def test_a_turn_of_another_region_goes_on_in_its_home(tmp_path: Path) -> None:
    with scripted(tmp_path, dies, goes_on) as (engines, home), ScriptedEngine("w0", dies) as away:
        table = away.toml().replace('"east"', '"west"')
        of_west: Any = {"region": "west", "keys": home.keys, "peer": ("east", home.url)}
        with ProxyProcess(tmp_path / "p", [table], **of_west) as west, west.sees("east").client() as client:
            headers = {"x-session-affinity": "roams", "x-warmroute-home": "east"}
            answer = client.post("/v1/chat/completions", json=chat("best", **USAGE), headers=headers)
    assert (answer.status_code, len(away.bodies), [len(engine.bodies) for engine in engines]) == (200, 0, [1, 1])
    assert answer.text.endswith("data: [DONE]\n\n")
    usage = events(answer.text)[-1]["usage"]
    assert contract_receipt.check(usage) == []
    assert (usage["warmroute"]["region"], usage["warmroute"]["continued"]["after_tokens"]) == ("east", 2)
