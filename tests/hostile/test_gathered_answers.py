"""What a translator keeps of a stream for its last events has a bound: beyond it, the answer is cut off and is free."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.subjects.processes import ProxyProcess, chat
from tests.subjects.scripted import Handler, ScriptedEngine

MIB = 2**20
LIMITS = f"body_memory_bytes = {4 * MIB}\nbody_bytes = {MIB}\nresponse_bytes = {MIB}\nkept_prompt_bytes = 0"
PIECE = "x" * 10_000
STREAMED_BYTES = 6 * MIB
ASKED = {
    "responses": ("/v1/responses", {"model": "kimi-k2.5", "stream": True, "input": "a"}),
    "messages": ("/v1/messages", {**chat("a", stream=True), "max_tokens": 9}),
    "gemini": (
        "/v1beta/models/kimi-k2.5:streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": "a"}]}]}
    ),
}  # fmt: skip


def endless(handler: Handler) -> None:
    """A call of a tool whose arguments are longer than a client may make the proxy keep."""
    begun = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a":"'}}
    calls = [begun, *[{"index": 0, "function": {"arguments": PIECE}}] * (STREAMED_BYTES // len(PIECE))]
    handler.stream(
        *[{"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]} for call in calls],
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        "[DONE]",
    )


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with (
        ScriptedEngine("e0", endless) as engine,
        ProxyProcess(tmp_path / "p", [engine.toml()], limits=LIMITS) as started,
    ):
        yield started


@pytest.mark.parametrize("api", ASKED)
def test_an_answer_that_finds_no_memory_is_cut_off(proxy: ProxyProcess, api: str) -> None:
    path, body = ASKED[api]
    with proxy.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200
    assert "use all memory for your bodies" in answer.text[-1000:]
    assert len(answer.content) < STREAMED_BYTES
    row = proxy.rows(expected=1)[0]
    assert (row["outcome"], row["price_nanousd"]) == ("cut_off", 0)
    metrics = proxy.metrics()
    assert 'warmroute_refused_total{reason="body_memory"} 1' in metrics
    assert "\nwarmroute_body_memory_bytes 0\n" in metrics
    assert proxy.workers()["e0"]["failures_in_a_row"] == 0
