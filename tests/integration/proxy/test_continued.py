"""Answers whose engine dies are continued by another, where the model has that on; else the client is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warmroute.contract import receipt as contract_receipt

from .harness import chat, events, until
from .test_faults import PAIRS, Fleet, Stream

ON = "continue_broken = true"
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def script(**step: Any) -> dict[str, Any]:
    return {"metadata": {"script": json.dumps(step)}}


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, request.param, model=ON, limits="idle_timeout_s = 1")
    try:
        made.proxy.start()
        yield made
    finally:
        made.stop()


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


def busy(fleet: Fleet) -> str:
    """An engine that generates."""
    names = [name for name, engine in fleet.engines.items() if engine.role != "prefill" and engine.child.running()]
    found: str = until(lambda: max((fleet.engines[name].running(), name) for name in names)[1], "an engine works")
    return found


@both
def test_every_stream_of_an_engine_that_dies_goes_on(fleet: Fleet) -> None:
    bodies = [chat(f"stream {n}", **USAGE, **script(output_tokens=150)) for n in range(8)]
    streams = [Stream(fleet.proxy, body) for body in bodies]
    for stream in streams:
        assert stream.first.wait(20)
    fleet.kill(busy(fleet))
    for stream in streams:
        stream.join(30)
    usages = [check_one_answer(stream) for stream in streams]
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
        whole.join(30)
        unbroken, usage = check_one_answer(whole), usages[n]
        assert text_of(streams[n]) == text_of(whole)
        assert usage["prompt_tokens"] == unbroken["prompt_tokens"]
        assert usage["completion_tokens"] == unbroken["completion_tokens"]
