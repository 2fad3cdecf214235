"""Which requests are sampled, the spans of each life of a request, and a queue that is full."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.subjects.otlp_receiver import OtlpReceiver
from tests.subjects.processes import until

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.config import TracingConfig
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.secrets import SecretError, load_headers
from warmroute_proxy.server.control.exposition import wants_open_metrics
from warmroute_proxy.server.request.states import RequestEvent as On
from warmroute_proxy.server.tracing.context import Context, Sampler, read_context, written
from warmroute_proxy.server.tracing.finished import Finished
from warmroute_proxy.server.tracing.timeline import Timeline
from warmroute_proxy.server.tracing.tracing import Tracing

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class TestAContext:
    def test_is_read_and_written(self) -> None:
        context = read_context(GOOD)
        assert context is not None
        assert context.sampled
        assert written(context.trace_id, context.span_id) == GOOD

    @pytest.mark.parametrize(
        "value",
        [
            "", "00", GOOD.upper(), GOOD + "0", GOOD + "-more", "ff" + GOOD[2:],
            GOOD.replace("00f067aa0ba902b7", "0" * 16),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), GOOD + "\n",
        ],
    )  # fmt: skip
    def test_that_is_not_well_formed_is_none(self, value: str) -> None:
        assert read_context(value) is None

    def test_of_a_later_version_may_have_more(self) -> None:
        assert read_context("01" + GOOD[2:] + "-more") == read_context(GOOD)


KEY = b"of the fleet"


def sampler(ratio: float, seed: int = 1, *, follow: bool = False, key: bytes = KEY) -> Sampler:
    return Sampler(ratio, follow_clients=follow, random_bits=random.Random(seed).getrandbits, key=key)


class TestSampling:
    def test_takes_about_its_share_of_requests_without_a_context(self) -> None:
        some = sampler(0.25)
        taken = sum(some.new_trace() is not None for _ in range(4000))
        assert 900 < taken < 1100

    @pytest.mark.parametrize(("ratio", "taken"), [(0.0, 0), (1.0, 50)])
    def test_takes_none_or_all(self, ratio: float, taken: int) -> None:
        every = sampler(ratio)
        assert sum(every.new_trace() is not None for _ in range(50)) == taken

    def test_of_two_proxies_takes_the_same_traces(self) -> None:
        ids = [random.Random(seed).getrandbits(128) for seed in range(500)]
        proxies = sampler(0.3, 0), sampler(0.3, 1)
        one, other = [[proxy.takes(Context(i, 1, True)) for i in ids] for proxy in proxies]
        assert one == other
        assert 0 < sum(one) < len(ids)

    def test_is_not_for_a_client_to_choose_by_its_trace_ids(self) -> None:
        ids = [7 << 64 | low for low in range(2000)]  # all of them were below any ratio
        fleets = [sampler(0.1, key=key) for key in (b"a", b"b")]
        one, other = [{i for i in ids if fleet.takes(Context(i, 1, True))} for fleet in fleets]
        assert 120 < len(one) < 280
        assert len(one & other) < 60

    @pytest.mark.parametrize("follow", [True, False])
    def test_never_takes_what_its_client_does_not_want(self, follow: bool) -> None:
        assert not sampler(1.0, follow=follow).takes(Context(1, 1, False))

    def test_follows_clients_only_where_it_is_said(self) -> None:
        for follow in (True, False):
            assert sampler(0.0, follow=follow).takes(Context(1, 1, True)) is follow

    def test_of_a_home_takes_each_trace_that_the_first_proxy_has_begun(self) -> None:
        first, home = sampler(0.1, 0), sampler(0.1, 1)
        begun = [trace for trace in (first.new_trace() for _ in range(500)) if trace is not None]
        assert begun
        assert all(home.takes(Context(trace, 1, True)) for trace in begun)


def decision(kind: Any = "local") -> Decision:
    worker = Worker("w0", "w0", 0, "aggregated")
    made: Any = type("Made", (), {"kind": kind, "region": "west", "worker": worker, "decode": None, "prefill": None})
    found: Decision = made
    return found


def spans(*events: On) -> list[tuple[str, float, float, str]]:
    """Name, begin, end and failure of the spans; the events come at seconds 1, 2, ..."""
    timeline = Timeline(iter(range(1, 100)).__next__)
    forwards = On.FORWARD in events
    for at, event in enumerate(events, start=1):
        one = decision("forward") if forwards and On.HOME_FAILED not in events[: at - 1] else decision()
        timeline.step(event, float(at), one)
    return [(each.name, each.began_s, each.ended_s, each.failed_by) for each in timeline.children]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([On.QUEUE, On.ADMIT, On.DISPATCH, On.PREFILL, On.CONTENT, On.SETTLE, On.ROW_WRITTEN],
         [("queue", 1.0, 2.0, ""), ("attempt", 3.0, 6.0, ""), ("prefill", 3.0, 4.0, ""), ("decode", 4.0, 6.0, ""),
          ("store", 6.0, 7.0, "")]),
        ([On.DISPATCH, On.FAIL, On.DISPATCH, On.SETTLE, On.ROW_WRITTEN],
         [("attempt", 1.0, 2.0, "fail"), ("attempt", 3.0, 4.0, ""), ("store", 4.0, 5.0, "")]),
        ([On.DISPATCH, On.CONTENT, On.CLIENT_LEFT, On.SETTLE, On.ROW_WRITTEN],
         [("attempt", 1.0, 4.0, ""), ("prefill", 1.0, 2.0, ""), ("decode", 2.0, 4.0, ""), ("store", 4.0, 5.0, "")]),
        ([On.DISPATCH, On.SETTLE, On.CLIENT_LEFT, On.ROW_WRITTEN],
         [("attempt", 1.0, 2.0, ""), ("store", 2.0, 4.0, "")]),
        ([On.QUEUE, On.CLIENT_LEFT], [("queue", 1.0, 2.0, "client_left")]),
        ([On.FORWARD, On.HOME_FAILED, On.DISPATCH, On.SETTLE, On.ROW_WRITTEN],
         [("forward", 1.0, 2.0, "home_failed"), ("attempt", 3.0, 4.0, ""), ("store", 4.0, 5.0, "")]),
        ([On.DISPATCH, On.CRASH], [("attempt", 1.0, 2.0, "crash")]),
    ],
    ids=["it waited", "a retry", "its client leaves", "it leaves while the row is written", "it leaves the queue",
         "its home fails", "a crash"],
)  # fmt: skip
def test_a_turn_has_a_span_for_each_step(events: list[On], expected: list[tuple[str, float, float, str]]) -> None:
    assert spans(*events) == expected


FINISHED = Finished(1, 2, 0, 1.0, 2.0, 0.0, "r", None, "m", "/v1/completions", False, 1, "refused", 429, "x", None, [])


class Stuck:
    """A collector that never answers until it is released."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.exported = 0

    def export(self, spans: list[Any]) -> str:
        self.began.set()
        self.go_on.wait()
        self.exported += len(spans)
        return ""

    def close(self) -> None:
        self.go_on.set()


def test_what_does_not_fit_into_the_queue_is_dropped_and_counted_and_nothing_waits() -> None:
    stuck, metrics = Stuck(), Metrics()
    tracing = Tracing(TracingConfig("http://x", queue_requests=64), "east", KEY, metrics, lambda: 1.0, lambda _: stuck)
    tracing.ended(FINISHED)
    assert stuck.began.wait(30)
    for _ in range(70):
        tracing.ended(FINISHED)
    assert metrics.value(declared.TRACES_TOTAL, (("outcome", "dropped"),)) == 6
    stuck.go_on.set()
    tracing.close()
    assert stuck.exported == 65
    assert metrics.value(declared.TRACES_TOTAL, (("outcome", "exported"),)) == 65


class Raising(Stuck):
    """An exporter that raises at its first batch."""

    def export(self, spans: list[Any]) -> str:
        if not self.began.is_set():
            self.began.set()
            raise ConnectionError
        self.exported += len(spans)
        return ""


def test_an_exporter_that_raises_and_a_request_without_spans_cost_only_their_traces() -> None:
    raising, metrics = Raising(), Metrics()
    tracing = Tracing(TracingConfig("http://x"), "east", KEY, metrics, lambda: 1.0, lambda _: raising)
    tracing.ended(FINISHED)
    assert raising.began.wait(30)
    odd: Any = object()
    for finished in (FINISHED, odd, FINISHED):
        tracing.ended(finished)
    tracing.close()
    counted = {each: metrics.value(declared.TRACES_TOTAL, (("outcome", each),)) for each in ("exported", "failed")}
    assert (raising.exported, counted) == (2, {"exported": 2, "failed": 2})


def test_the_answer_of_a_collector_that_refuses_traces_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with OtlpReceiver() as refusing:
        refusing.takes, refusing.refusal = False, 401
        tracing = Tracing(TracingConfig(refusing.url), "east", KEY, Metrics(), lambda: 1.0)
        tracing.ended(FINISHED)
        until(lambda: "the collector does not take traces: Failed to export" in caplog.text, "a line of the log")
        tracing.close()
    assert "code: 401, reason: Unauthorized" in caplog.text


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", True),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=odd", False),
    ],
)
def test_open_metrics_is_given_where_it_is_preferred(accept: str, wanted: bool) -> None:
    assert wants_open_metrics(accept) is wanted


def test_headers_for_the_collector_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\n\nX-Tenant: 7\n")
    assert load_headers(file) == {"authorization": "Bearer a:b", "x-tenant": "7"}
    assert load_headers(None) == {}


@pytest.mark.parametrize("text", ["", "s3cret", "two words: s3cret", ": s3cret", "caf\u00e9: s3cret"])
def test_a_file_without_headers_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "headers"
    file.write_text(text)
    with pytest.raises(SecretError, match="holds no headers") as refused:
        load_headers(file)
    assert "s3cret" not in str(refused.value)
