"""Spans of turns: their attributes, by the names that are pinned, and nothing without being asked."""

import subprocess
import sys
from contextlib import nullcontext

import pytest

import warmroute
from warmroute import _observer as _telemetry
from warmroute._books import Books
from warmroute._guard import Guard
from warmroute._observer import attributes_of
from warmroute._turns import Turn


def settled_turn() -> Turn:
    books = Books(Guard())
    found: list[Turn] = []
    books._on_end = found.append
    for day in ("2026-11-20", "2026-11-21"):
        turn = Turn(session="s", streamed=False, model="kimi-k2.5", lineage="s")
        messages = [{"role": "system", "content": f"canary {day}"}, {"role": "user", "content": "hello"}]
        with pytest.warns(warmroute.PrefixWarning) if found else nullcontext():
            books.check(turn, {"model": "kimi-k2.5", "messages": messages})
        books.answered(turn, None, None)
        cached = {"prompt_tokens_details": {"cached_tokens": 4}}
        books.settle(turn, {"prompt_tokens": 10, "completion_tokens": 2, **cached})
        books.ended(turn)
    return found[-1]


def test_a_turn_has_the_attributes_of_the_conventions_and_ours() -> None:
    found = attributes_of(settled_turn())
    cost = (6 * 0.6 + 4 * 0.1 + 2 * 3) / 1e6
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "kimi-k2.5",
        "gen_ai.conversation.id": "s",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 2,
        "warmroute.cost_usd": pytest.approx(cost),
        "warmroute.saved_usd": pytest.approx(4 * 0.5 / 1e6),
        "warmroute.guard.cause": "date",
        "warmroute.guard.where": "messages[0] (system)",
        "warmroute.guard.tokens_lost": found["warmroute.guard.tokens_lost"],
    }
    assert "canary" not in str(found)


EXPORTED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
SPAN = """
from warmroute._observer import Telemetry
from warmroute._turns import Turn
turn = Turn(session="s", streamed=False, model="m")
telemetry = Telemetry()
telemetry.begun(turn)
for _ in range(2):
    telemetry.ended(turn)
[span] = exporter.get_finished_spans()
print(span.name, span.kind.name, span.start_time == turn.begun_ns, dict(span.attributes))
"""


def test_a_span_goes_to_the_programs_provider() -> None:
    done = subprocess.run([sys.executable, "-c", EXPORTED + SPAN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("chat m CLIENT True {'gen_ai.operation.name': 'chat'")


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ImportError, match="pip install 'warmroute"):
        _telemetry.Telemetry()


CALLS = """
import json
import httpx
import warmroute
usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
          "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]}
sent = []
def reply(request):
    sent.append(request.headers.get("traceparent"))
    if b'"stream":true' in request.content:
        events = b"data: " + json.dumps({**answer, "usage": None, "choices": []}).encode() + b"\\n\\n"
        return httpx.Response(200, content=events, headers={"content-type": "text/event-stream"})
    return httpx.Response(200 if len(sent) == 1 else 400, json=answer if len(sent) == 1 else {"error": {}})
http = httpx.Client(transport=httpx.MockTransport(reply))
client = warmroute.OpenAI(api_key="k", base_url="http://proxy/v1", telemetry=True, http_client=http)
for _ in range(2):
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    except Exception as error:
        print(type(error).__name__)
messages = [{"role": "user", "content": "hi"}]
for read in (next, list):
    with client.chat.completions.create(model="m", messages=messages, stream=True) as stream:
        read(stream)
for span, header in zip(exporter.get_finished_spans(), sent, strict=True):
    context = span.get_span_context()
    print(header.startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-0"), span.status.status_code.name)
"""


def test_the_proxy_is_sent_the_context_of_the_span_and_a_failed_call_has_one_too() -> None:
    done = subprocess.run([sys.executable, "-c", EXPORTED + CALLS], capture_output=True, text=True, check=False)
    lines = ["BadRequestError", "True UNSET", "True ERROR", "True UNSET", "True UNSET"]
    assert done.stdout.splitlines() == lines, done.stderr


ELSEWHERE = """
others = [client.with_options(default_headers={"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}),
          warmroute.OpenAI(api_key="k", base_url="http://other/v1", backend="openai", telemetry=True, http_client=http)]
exporter.clear()
for other in others:
    try:
        other.chat.completions.create(model="m", messages=messages)
    except Exception:
        print(*(span.status.status_code.name for span in exporter.get_finished_spans()))
"""


def test_a_failed_call_has_a_span_with_any_server_and_any_traceparent() -> None:
    program = EXPORTED + CALLS + ELSEWHERE
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-2:] == ["ERROR", "ERROR ERROR"], done.stderr


ENDINGS = """
import gc
def reply(request):
    if b'"stream":true' not in request.content:
        return httpx.Response(200, **whole)
    choices = [{"index": 0, "delta": {"content": "hi"}}]
    chunk = {**answer, "object": "chat.completion.chunk", "choices": choices, "usage": None}
    events = [b"data: " + json.dumps(chunk).encode() + b"\\n\\n"] * 3
    return httpx.Response(200, content=iter([*events, b"data: [DONE]\\n\\n"]),
                          headers={"content-type": "text/event-stream"})
http = httpx.Client(transport=httpx.MockTransport(reply))
client = warmroute.OpenAI(api_key="k", base_url="http://proxy/v1", telemetry=True, http_client=http, max_retries=0)
chat, given = client.chat.completions, {"model": "m", "messages": messages}
def reads(made, read):
    with made as found:
        read(found)
JSON, HTML = {"json": answer}, {"html": "<html>"}
BROKEN = {"text": "{", "headers": {"content-type": "application/json"}}
endings = [
    ("raw", JSON, lambda: chat.with_raw_response.create(**given)),
    ("raw, read", JSON, lambda: reads(chat.with_streaming_response.create(**given), lambda found: found.read())),
    ("lines", JSON, lambda: reads(chat.with_streaming_response.create(**given, stream=True),
                                  lambda found: list(found.iter_lines()))),
    ("left at once", JSON, lambda: reads(chat.stream(**given), id)),
    ("left", JSON, lambda: reads(chat.stream(**given), next)),
    ("dropped", JSON, lambda: chat.create(**given, stream=True)),
    ("response", JSON, lambda: client.post("/chat/completions", body=given, cast_to=httpx.Response)),
    ("text", JSON, lambda: client.post("/chat/completions", body=given, cast_to=str)),
    ("html", HTML, lambda: chat.create(**given)),
    ("broken", BROKEN, lambda: chat.create(**given)),
]
for name, whole, call in endings:
    exporter.clear()
    try:
        call()
    except ValueError:
        pass
    gc.collect()
    [span] = exporter.get_finished_spans() or [None]
    if span is None or (name in ("raw", "raw, read", "response", "text")) != (
            span.attributes.get("gen_ai.usage.input_tokens") == 5):
        print("wrong:", name, span and dict(span.attributes))
"""


def test_a_turn_has_a_span_whatever_becomes_of_its_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXPORTED + CALLS + ENDINGS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "wrong" not in done.stdout
