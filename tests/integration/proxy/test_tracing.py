"""Traces: what a collector is sent of a request, what engines and regions are sent, and what happens without one."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.machine import seconds
from tests.subjects.otlp_receiver import OtlpReceiver, Span
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from tests.subjects.small_fleet import two_regions
from tests.subjects.stopped import Several
from warmroute_cli.main import main
from warmroute_proxy.server.tracing import names

from .test_admission import scene

pytestmark = pytest.mark.full

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tracing.md"
CANARY = "canary-6b1f0c7e"


def tracing(url: str, **more: object) -> str:
    keys = {"endpoint": url, "ratio": 1.0, **more}
    return "\n".join(["[tracing]", *[f"{key} = {json.dumps(value)}" for key, value in keys.items()]])


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as started:
        yield started


@pytest.fixture(scope="module")
def pair(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy before a prefill and a decode engine."""
    folder = tmp_path_factory.mktemp("pair")
    limits, second = tracing(receiver.url), "requests_per_minute = 1"
    with (
        Several([EngineProcess(folder, n, role) for n, role in (("p0", "prefill"), ("d0", "decode"))]) as engines,
        ProxyProcess(folder / "p", [each.toml("east") for each in engines], limits=limits, second=second) as proxy,
    ):
        yield proxy


def ask(proxy: ProxyProcess, text: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    with proxy.client() as client:
        return client.post("/v1/chat/completions", json=chat(text, max_tokens=8, **fields), headers=headers)


def span_of(receiver: OtlpReceiver, receipt_id: str) -> Span:
    """The span of a request, once its trace has come."""
    found: list[Span] = until(
        lambda: [each for each in receiver.spans if each.attributes.get("warmroute.receipt.id") == receipt_id],
        "the trace of a request",
    )
    return found[0]


class TestARequest:
    def test_has_one_span_with_its_usage_and_a_child_for_each_step(
        self, pair: ProxyProcess, receiver: OtlpReceiver
    ) -> None:
        headers = {"traceparent": TRACEPARENT, "x-session-id": CANARY}
        ask(pair, CANARY, headers)
        answer = ask(pair, CANARY, headers, stream=True, stream_options={"include_usage": True})
        span = span_of(receiver, answer.headers["x-warmroute-receipt"])
        assert (span.trace, span.parent, span.name, span.kind) == (TRACE, PARENT, "chat kimi-k2.5", 2)
        usage = json.loads(answer.text.split("data: ")[-2])["usage"]
        receipt = usage["warmroute"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert 0 < cached == span.attributes["gen_ai.usage.cache_read.input_tokens"]
        assert span.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] > cached
        assert span.attributes["warmroute.cached_tokens.device"] == cached
        assert span.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
        assert span.attributes["gen_ai.conversation.id"] == receipt["session"]
        assert span.attributes["warmroute.cost_usd"] == usage["cost"]
        assert {
            name.removeprefix("warmroute.loss_tokens."): count
            for name, count in span.attributes.items()
            if name.startswith("warmroute.loss_tokens.")
        } == receipt["loss"]
        assert [child.name for child in receiver.children(span)] == [names.ATTEMPT, names.STORE]
        attempt, store = receiver.children(span)
        assert [child.name for child in receiver.children(attempt)] == [names.PREFILL, names.DECODE]
        prefill, decode = receiver.children(attempt)
        assert prefill.attributes["warmroute.worker"] == "p0"
        assert decode.attributes["warmroute.worker"] == "d0"
        assert span.began_ns <= attempt.began_ns <= prefill.ended_ns <= decode.ended_ns <= store.ended_ns
        assert span.ended_ns == store.ended_ns
        assert span.resource["warmroute.region"] == "east"

    def test_has_names_of_the_table_only_and_nothing_of_a_prompt(
        self, pair: ProxyProcess, receiver: OtlpReceiver
    ) -> None:
        headers = {"x-session-id": CANARY, "x-warmroute-session-name": CANARY, "traceparent": TRACEPARENT}
        answer = ask(pair, CANARY, headers, stream=True, user=CANARY)
        span_of(receiver, answer.headers["x-warmroute-receipt"])
        listed = {*re.findall(r"^\| `([a-z_.]+)`", PAGE.read_text(), re.MULTILINE)}
        prefixes = ("warmroute.loss_tokens.", "warmroute.cached_tokens.")
        for span in receiver.spans:
            assert {name for name in span.attributes if not name.startswith(prefixes)} <= listed
            assert span.name in listed or "gen_ai.operation.name" in span.attributes
        sent = b"".join(receiver.bodies)
        assert CANARY.encode() not in sent
        assert not any(key.encode() in sent for key in pair.keys)

    def test_that_is_refused_has_a_span_that_says_so(self, pair: ProxyProcess, receiver: OtlpReceiver) -> None:
        trace = "a" * 32
        headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
        with pair.client(1) as client:  # that may make one request a minute
            statuses = [
                client.post("/v1/chat/completions", json=chat("limited", max_tokens=8), headers=headers).status_code
                for _ in range(2)
            ]
        assert statuses == [200, 429]

        def refused() -> list[Span]:
            return [each for each in receiver.requests() if each.trace == trace and each.failed]

        (span,) = until(refused, "the trace of a refused request")
        assert span.attributes["http.response.status_code"] == 429
        assert span.attributes["warmroute.outcome"] == "refused"
        assert span.attributes["error.type"] == "rate_limit_exceeded"

    def test_is_in_the_histogram_of_open_metrics(self, pair: ProxyProcess, receiver: OtlpReceiver) -> None:
        trace = "5" * 32
        answer = ask(pair, "exemplar", {"traceparent": f"00-{trace}-{PARENT}-01"}, stream=True)
        span_of(receiver, answer.headers["x-warmroute-receipt"])
        with pair.admin() as admin:
            page = admin.get("/metrics", headers={"accept": OPEN_METRICS})
            plain = admin.get("/metrics")
        assert page.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert page.text.endswith("# EOF\n")
        assert re.search(
            rf'^warmroute_ttft_seconds_bucket{{le="[^"]+"}} \d+ # {{trace_id="{trace}"}} ', page.text, re.MULTILINE
        )
        assert "# TYPE warmroute_turns counter\n" in page.text
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "trace_id" not in plain.text


def test_another_region_continues_the_trace(receiver: OtlpReceiver, tmp_path: Path) -> None:
    with two_regions(tmp_path, limits=tracing(receiver.url)) as (east, _, _):
        for _ in range(2):
            answer = ask(east, "x", {"x-warmroute-home": "west", "x-session-id": "s"})
            assert answer.headers["x-warmroute-home"] == "west"
        receipt_id = answer.headers["x-warmroute-receipt"]

        def both() -> list[Span]:
            found = [s for s in receiver.spans if s.attributes.get("warmroute.receipt.id") == receipt_id]
            return found if len(found) == 2 else []

        spans = {span.resource["warmroute.region"]: span for span in until(both, "the trace of both regions")}
        (forward,) = receiver.children(spans["east"])
        assert (forward.name, forward.attributes["warmroute.region"]) == (names.FORWARD, "west")
        assert spans["west"].parent == forward.id
        assert spans["west"].attributes["warmroute.forwarded_from"] == "east"
        assert spans["east"].attributes["warmroute.outcome"] == "forwarded"


def test_a_client_that_leaves_the_queue_is_not_forwarded(receiver: OtlpReceiver, tmp_path: Path) -> None:
    with scene(tmp_path, limits=tracing(receiver.url)) as it:
        it.send("first")
        it.runs(1)
        second = it.wait("second", headers={"traceparent": TRACEPARENT.replace(TRACE, "7" * 32)})
        second.close()
        (span,) = until(lambda: [s for s in receiver.requests() if s.trace == "7" * 32], "its trace")
        assert span.attributes["warmroute.outcome"] == span.attributes["error.type"] == "client_left"
        assert [(child.name, child.failed) for child in receiver.children(span)] == [(names.QUEUE, True)]


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("s0", _answer) as engine:
        yield engine


SDK = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
import warmroute
collector, base_url, key = sys.argv[1:]
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector + "/v1/traces")))
trace.set_tracer_provider(provider)
client = warmroute.OpenAI(base_url=base_url, api_key=key, telemetry=True)
client.chat.completions.create(model="kimi-k2.5", messages=[{"role": "user", "content": "hello"}], max_tokens=4)
"""


def test_the_sdks_span_is_the_parent_of_the_proxys(pair: ProxyProcess, receiver: OtlpReceiver) -> None:
    command = [sys.executable, "-c", SDK, receiver.url, pair.base_url, pair.keys[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60), check=False)
    assert done.returncode == 0, done.stderr

    def joined() -> list[tuple[Span, Span]]:
        turns = [each for each in receiver.requests() if "warmroute.region" not in each.resource]
        return [(turn, each) for turn in turns for each in receiver.requests() if each.parent == turn.id]

    [(turn, request)] = until(joined, "both spans")
    assert request.trace == turn.trace
    assert request.attributes["warmroute.receipt.id"] == turn.attributes["warmroute.receipt.id"]
    assert (turn.kind, request.kind) == (3, 2)  # client and server


class TestAnEngine:
    """What a scripted one is sent."""

    def test_continues_the_trace_of_a_sampled_request(
        self, scripted: ScriptedEngine, receiver: OtlpReceiver, tmp_path: Path
    ) -> None:
        with ProxyProcess(tmp_path / "p", [scripted.toml()], limits=tracing(receiver.url)) as proxy:
            answer = ask(proxy, "hello", {"traceparent": TRACEPARENT, "tracestate": "a=1"})
            span = span_of(receiver, answer.headers["x-warmroute-receipt"])
            sent = next(head for head in reversed(scripted.heads) if "traceparent" in head)
            (attempt,) = [each for each in receiver.children(span) if each.name == names.ATTEMPT]
            assert sent["traceparent"] == f"00-{TRACE}-{attempt.id}-01"
            assert sent["tracestate"] == "a=1"
            answer = ask(proxy, "hello", {"traceparent": TRACEPARENT.removesuffix("1") + "0"})
            sent = next(head for head in reversed(scripted.heads) if "traceparent" in head)
            assert sent["traceparent"] == TRACEPARENT.removesuffix("1") + "0"  # its client does not want a trace

    def test_is_traced_with_the_headers_that_their_file_has_now(self, scripted: ScriptedEngine, tmp_path: Path) -> None:
        file, draft = tmp_path / "headers", tmp_path / "headers.draft"
        file.write_text("authorization: Bearer first\n")
        with (
            OtlpReceiver() as guarded,
            ProxyProcess(
                tmp_path / "p", [scripted.toml()], extra="watch_config = true",
                limits=tracing(guarded.url, headers_file=str(file)),
            ) as proxy,
        ):  # fmt: skip
            for key in ("first", "second", "second"):

                def sent(key: str = key) -> bool:
                    assert ask(proxy, "hello").status_code == 200
                    return bool(guarded.headers) and guarded.headers[-1]["authorization"] == f"Bearer {key}"

                until(sent, f"a batch with the {key} key")
                draft.write_text("no headers" if key == "second" else "authorization: Bearer second\n")
                draft.replace(file)  # in one step: an empty file has no headers either
            assert {each["authorization"] for each in guarded.headers} == {"Bearer first", "Bearer second"}

    def test_is_served_as_before_where_the_collector_is_away_or_refuses(
        self, scripted: ScriptedEngine, tmp_path: Path
    ) -> None:
        refusing = OtlpReceiver()
        refusing.takes = False
        limits = tracing(refusing.url, timeout_s=0.05, queue_requests=64)
        with ProxyProcess(tmp_path / "p", [scripted.toml()], limits=limits) as proxy:
            assert {ask(proxy, f"{number}").status_code for number in range(5)} == {200}

            until(lambda: 'warmroute_traces_total{outcome="failed"} 5' in proxy.metrics(), "they are counted as failed")
            refusing.stop()
            assert ask(proxy, "away").status_code == 200


def _answer(handler: Handler) -> None:
    handler.reply(200, whole({"prompt_tokens": 700, "completion_tokens": 1, "total_tokens": 701}))


def test_the_spans_of_a_proxy_give_the_ladder_of_its_ledger(
    pair: ProxyProcess, receiver: OtlpReceiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.bodies.clear()
    before = len(receiver.requests())
    for _ in range(3):
        assert ask(pair, "climb the ladder " * 200).status_code == 200
    until(lambda: len(receiver.requests()) >= before + 3, "three spans of requests")
    exports = [ExportTraceServiceRequest.FromString(body) for body in receiver.bodies]
    log = tmp_path / "spans.jsonl"
    log.write_text("\n".join(MessageToJson(export, indent=None) for export in exports))
    assert main(["ladder", str(log), "--price", "0.6:0.1:3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(step["tokens"] is not None for step in found["steps"])
    spans = [span for span in receiver.requests() if span.attributes.get("warmroute.receipt.id")]
    told = [span.attributes["warmroute.receipt.id"] for span in spans][before:]
    until(lambda: set(told) <= {row["id"] for row in pair.rows()}, "the rows of these turns")
    of_ledger = {row["id"]: row for row in pair.rows()}
    assert found["price_nanousd"] == sum(of_ledger[id_]["price_nanousd"] for id_ in told)
    delivered = next(step for step in found["steps"] if step["step"] == "delivered")
    assert delivered["tokens"] == sum(of_ledger[id_]["cached_tokens"] for id_ in told)
