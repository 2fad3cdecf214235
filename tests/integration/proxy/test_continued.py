"""Answers whose engine dies are continued by another, where the model has that on; else the client is told."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

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


def script(**step: Any) -> dict[str, Any]:
    return {"metadata": {"script": json.dumps(step)}}


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mortal]:
    with Mortal(tmp_path, request.param, model=ON) as made:
        yield made


TRIO = {"a0": "aggregated", "a1": "aggregated", "a2": "aggregated"}
pairs = pytest.mark.parametrize("fleet", [{**PAIRS, "d2": "decode"}], indirect=True, ids=["pairs"])
trio = pytest.mark.parametrize("fleet", [TRIO], indirect=True, ids=["aggregated"])
both = pytest.mark.parametrize("fleet", [{**PAIRS, "d2": "decode"}, TRIO], indirect=True, ids=["pairs", "aggregated"])


def text_of(stream: Stream) -> str:
    choices = [choice for event in events(stream.text) for choice in event.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


def check_one_answer(stream: Stream) -> dict[str, Any]:
    """It looks like the answer of one engine; its usage is returned."""
    assert stream.completed, stream.text[-300:]
    found = events(stream.text)
    assert len({event["id"] for event in found}) == 1
    choices = [choice for event in found for choice in event["choices"]]
    assert sum("role" in choice["delta"] and choice["delta"]["role"] is not None for choice in choices) == 1
    assert sum(choice["finish_reason"] is not None for choice in choices) == 1
    assert stream.text.count("[DONE]") == 1
    usages = [event["usage"] for event in found if event.get("usage")]
    assert len(usages) == 1
    assert contract_receipt.check(usages[0]) == []
    usage: dict[str, Any] = usages[0]
    return usage


def busy(fleet: Mortal) -> str:
    """An engine that answers, as the proxy sees it."""
    names = [name for name, engine in fleet.engines.items() if engine.role != "prefill" and engine.child.running()]

    def answering() -> str:
        workers = fleet.proxy.workers()
        running, name = max((int(workers[name]["running"]), name) for name in names)
        return name if running else ""

    return str(until(answering, "an engine answers"))


def slowly(fleet: Mortal, end: str) -> None:
    """Have the answer to the prompt with this end come slowly, so that it has not ended when its engine is killed. The
    rest, for which another engine is sent a longer prompt, comes as always.
    """
    for engine in fleet.engines.values():
        if engine.role != "prefill":
            order = {"fault": "drip", "delay_s": 0.3, "containing": end}
            httpx.post(f"{engine.url}/engine/faults", json=order).raise_for_status()


@both
def test_every_stream_of_an_engine_that_dies_goes_on(fleet: Mortal) -> None:
    bodies = [chat(f"stream {n}", **USAGE, **script(output_tokens=300)) for n in range(8)]
    dies = next(engine for engine in fleet.engines.values() if engine.role != "prefill")
    order = {"fault": "drip", "delay_s": 0.3, "count": len(bodies)}  # so that none of its answers has ended by then
    httpx.post(f"{dies.url}/engine/faults", json=order).raise_for_status()
    streams = [Stream(fleet.proxy, body) for body in bodies]
    for stream in streams:
        stream.begun()
    fleet.kill(dies.id)
    usages = [check_one_answer(stream.done()) for stream in streams]
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
        unbroken, usage = check_one_answer(whole.done()), usages[n]
        assert text_of(streams[n]) == text_of(whole)
        assert usage["prompt_tokens"] == unbroken["prompt_tokens"]
        assert usage["completion_tokens"] == unbroken["completion_tokens"]


def told_of_the_failure(fleet: Mortal, stream: Stream) -> dict[str, Any]:
    """An error event, a row that is charged nothing, and nothing left on any engine; the row's usage is returned."""
    assert stream.done().failed_clearly, stream.text[-300:]
    row = next(row for row in fleet.proxy.rows(expected=1) if row["id"] == stream.receipt)
    assert (row["outcome"], row["price_nanousd"]) == ("engine_error", 0)
    usage: dict[str, Any] = json.loads(row["usage"])
    assert contract_receipt.check(usage) == []
    until(fleet.idle, "no engine works any more", 10.0)
    return usage


@pairs
def test_a_tool_call_that_has_begun_is_not_continued(fleet: Mortal) -> None:
    calls = [{"name": "write", "arguments": {"text": "word " * 200}}]
    slowly(fleet, 'call 0"}]')
    stream = Stream(fleet.proxy, chat("call", **USAGE, **script(text="I write.", tool_calls=calls)))
    until(lambda: stream.text.count('"arguments"') > 3, "the call has begun")
    fleet.kill(busy(fleet))
    assert "continued" not in told_of_the_failure(fleet, stream)["warmroute"]


@pairs
def test_a_tool_call_behind_the_break_comes_whole(fleet: Mortal) -> None:
    calls = [{"name": "write", "arguments": {"text": "word " * 10}}]
    body = chat("call", **USAGE, **script(text="I shall write it. " * 30, tool_calls=calls))
    slowly(fleet, 'call 0"}]')
    stream = Stream(fleet.proxy, body)
    until(lambda: stream.text.count('"content"') > 3, "the text has begun")
    fleet.kill(busy(fleet))
    usage = check_one_answer(stream.done())
    assert usage["warmroute"]["continued"]["after_tokens"] > 0
    assert text_of(stream) == "I shall write it. " * 30
    choices = [choice for event in events(stream.text) for choice in event["choices"]]
    parts = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls") or ()]
    assert "".join(part.get("name") or "" for part in parts) == "write"
    assert json.loads("".join(part.get("arguments") or "" for part in parts)) == calls[0]["arguments"]
    assert choices[-1]["finish_reason"] == "tool_calls"


@trio
def test_a_second_death_is_told(fleet: Mortal) -> None:
    for engine in fleet.engines.values():
        httpx.post(f"{engine.url}/engine/faults", json={"fault": "cut", "after_events": 6}).raise_for_status()
    stream = Stream(fleet.proxy, chat("twice", **USAGE, **script(output_tokens=60)))
    usage = told_of_the_failure(fleet, stream)
    assert usage["warmroute"]["continued"] == {"after_tokens": 5, "by": "text"}
    assert usage["completion_tokens"] == 10
    assert text_of(stream)


@trio
def test_a_completion_goes_on_within_its_limit(fleet: Mortal) -> None:
    body = {"model": "kimi-k2.5", "prompt": "Once upon a time " * 40, "max_tokens": 90, "ignore_eos": True, **USAGE}
    slowly(fleet, 'upon a time "')
    stream = Stream(fleet.proxy, body, "/v1/completions")
    until(lambda: stream.text.count('"text"') > 3, "it has begun")
    fleet.kill(busy(fleet))
    assert stream.done().completed
    found = events(stream.text)
    assert len({event["id"] for event in found}) == 1
    assert [choice["finish_reason"] for choice in found[-2]["choices"]] == ["length"]
    usage = found[-1]["usage"]
    assert contract_receipt.check(usage) == []
    assert usage["completion_tokens"] == 90
    assert usage["warmroute"]["continued"]["by"] == "text"
    assert len(text_of(stream)) == 4 * 90


@trio
@pytest.mark.real_deadlines("probing", "deadlines")
def test_an_engine_that_freezes_is_left_long_before_its_time_is_up(fleet: Mortal) -> None:
    """`idle_timeout_s` is 120 s here; the probes know after some seconds."""
    slowly(fleet, 'frozen 0"}]')
    stream = Stream(fleet.proxy, chat("frozen", **USAGE, **script(output_tokens=300)))
    until(lambda: stream.text.count('"content"') > 3, "it has begun")
    frozen = fleet.engines[busy(fleet)]
    with frozen.held():
        usage = check_one_answer(stream.done())
    assert usage["warmroute"]["continued"]["after_tokens"] > 0
    assert usage["warmroute"]["workers"][0]["id"] != frozen.id
    until(fleet.idle, "the frozen one was told to stop", 10.0)


@trio
def test_the_sdk_reads_one_answer_and_counts_it(fleet: Mortal) -> None:
    client = OpenAI(base_url=fleet.proxy.base_url, api_key=fleet.proxy.keys[0], max_retries=0)
    body = chat("sdk", **script(output_tokens=120))
    slowly(fleet, 'sdk 0"}]')
    text = ""
    for number, chunk in enumerate(client.chat.completions.create(**body, stream=True)):
        text += chunk.choices[0].delta.content or ""
        if number == 5:
            fleet.kill(busy(fleet))
    report = client.cache.report()
    assert (report.turns, report.receipts, report.continued, report.violations) == (1, 1, 1, ())
    assert "another engine continued: 1" in str(report)
    whole = client.chat.completions.create(**body)
    assert text == whole.choices[0].message.content
    assert client.cache.report().continued == 1


@trio
def test_a_client_that_leaves_the_rest_ends_it(fleet: Mortal) -> None:
    with fleet.proxy.client() as client:
        body = chat("leave", **USAGE, **script(output_tokens=900))
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            parts = answer.iter_text()
            next(parts)
            first = busy(fleet)
            fleet.kill(first)
            others = [engine for engine in fleet.engines.values() if engine.id != first]
            until(lambda: any(engine.running() for engine in others), "another goes on")
            said = ""
            while said.count("data: ") < 200:  # more than the first engine had time for
                said += next(parts)
    until(fleet.idle, "nothing runs any more", 5.0)
    row = fleet.proxy.rows(expected=1)[0]
    usage = json.loads(row["usage"])
    assert contract_receipt.check(usage) == []
    assert (row["outcome"], len(json.loads(row["rids"]))) == ("client_left", 2)
    assert 0 < usage["warmroute"]["continued"]["after_tokens"] < usage["completion_tokens"]
    assert row["price_nanousd"] == usage["warmroute"]["price_nanousd"] > 0


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


def dies(handler: Handler) -> None:
    handler.stream(ROLE, delta("It was "), delta("the best"), end=False)


def is_retracted(handler: Handler) -> None:
    """SGLang's decode ends a running request with a 503 when it is out of KV memory."""
    error = {"error": {"object": "error", "message": "out of KV", "code": 503}}
    handler.stream(ROLE, delta("It was "), delta("the best"), error, "[DONE]")


def goes_on(handler: Handler) -> None:
    usage = {"prompt_tokens": 702, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}}
    end = {"id": "y", "object": "chat.completion.chunk", "choices": [], "usage": usage}
    handler.stream(*({**part, "id": "y"} for part in (ROLE, delta(" of times"), delta(finish="stop"))), end, "[DONE]")


def refuses(handler: Handler) -> None:
    error = {"object": "error", "message": "This model's maximum context length is 8 tokens", "code": 400}
    handler.reply(400, json.dumps(error).encode())


def thinks(handler: Handler) -> None:
    thought = delta()
    thought["choices"][0]["delta"] = {"reasoning_content": "Was it?"}
    handler.stream(ROLE, thought, delta("It was"), end=True)


def calls(handler: Handler) -> None:
    call = delta()
    call["choices"][0]["delta"] = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}
    handler.stream(ROLE, call, delta(finish="tool_calls"), "[DONE]")


@pytest.mark.parametrize("begins", [dies, is_retracted])
def test_the_other_engine_is_sent_the_same_request_with_the_beginning_of_its_answer(
    tmp_path: Path, begins: Script
) -> None:
    with scripted(tmp_path, begins, goes_on) as (engines, proxy):
        stream = Stream(proxy, chat("best", **USAGE, max_tokens=50, temperature=0.5)).done()
        usage = check_one_answer(stream)
        assert text_of(stream) == "It was the best of times"
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (700, 3)
        second, first = sorted((engine.sent() for engine in engines), key=lambda sent: int(sent["max_tokens"]))
        if begins is is_retracted:
            assert all(worker["failures_in_a_row"] == 0 for worker in proxy.workers().values())
    said = {"role": "assistant", "content": "It was the best"}
    assert second["messages"] == [*first["messages"], said]
    assert (second["continue_final_message"], second["max_tokens"], first["max_tokens"]) == (True, 48, 50)
    assert second["rid"] != first["rid"]
    ours = {"messages", "continue_final_message", "max_tokens", "rid", "session_id"}
    assert {k: v for k, v in second.items() if k not in ours} == {k: v for k, v in first.items() if k not in ours}


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
        found = [choice["delta"].get("content") for event in events(first.text) for choice in event["choices"]]
        assert "".join(filter(None, found)) == "It was the best of times"
        assert sum(len(engine.bodies) for engine in engines) == 2
        row = rows_of(proxy, first.receipt)[0]
        assert (row["outcome"], len(json.loads(row["rids"]))) == ("completed", 2)


@pytest.mark.parametrize("rest", [refuses, thinks, calls])
def test_what_is_no_rest_ends_with_an_error_of_the_engine(tmp_path: Path, rest: Script) -> None:
    with scripted(tmp_path, dies, rest) as (engines, proxy):
        stream = Stream(proxy, chat("best", **USAGE)).done()
        assert stream.failed_clearly
        assert events(stream.text)[-1]["error"]["code"] == "engine_error"
        assert text_of(stream) == "It was the best"
        assert "tool_calls" not in stream.text
        assert "reasoning_content" not in stream.text
        row = proxy.rows(expected=1)[0]
        assert (row["outcome"], row["price_nanousd"], len(json.loads(row["rids"]))) == ("engine_error", 0, 2)
        assert contract_receipt.check(json.loads(row["usage"])) == []
        until(lambda: sum(len(engine.aborted) for engine in engines) == 2, "both were told to stop")


def test_a_turn_of_another_region_goes_on_in_its_home(tmp_path: Path) -> None:
    with scripted(tmp_path, dies, goes_on) as (engines, home), ScriptedEngine("w0", refuses) as away:
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
