"""Turns of agents through a real Envoy: picked where their prompt is cached, answered, accounted for."""

from tests.subjects.gateway import Envoy, Picker
from tests.subjects.processes import EngineProcess, chat, events


def test_a_turn_is_answered_with_a_receipt_and_has_a_row(
    envoy: Envoy, picker: Picker, engines: list[EngineProcess]
) -> None:
    with envoy.client(picker.keys[0]) as client:
        answer = client.post("/v1/chat/completions", json=chat("a", max_tokens=8))
    assert answer.status_code == 200, answer.text
    receipt = answer.json()["usage"]["warmroute"]
    assert answer.headers["x-warmroute-receipt"] == receipt["id"]
    row = picker.row(receipt["id"])
    assert row["outcome"] == "completed"
    assert sum(len(engine.log()["finished"]) for engine in engines) == 1


def test_a_stream_has_its_usage_chunk_with_the_receipt(envoy: Envoy, picker: Picker) -> None:
    body = chat("b", max_tokens=8, stream=True, stream_options={"include_usage": True})
    with envoy.client(picker.keys[0]) as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        text = "".join(answer.iter_text())
    assert answer.status_code == 200, text
    assert text.endswith("data: [DONE]\n\n")
    receipt = events(text)[-1]["usage"]["warmroute"]
    assert answer.headers["x-warmroute-receipt"] == receipt["id"]
    assert picker.row(receipt["id"])["completion_tokens"] == 8
