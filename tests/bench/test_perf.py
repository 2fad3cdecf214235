"""The measurement itself: figures come out, every answer is counted and checked, and what is missing is said.

Nothing here asserts how fast anything is.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench.__main__ import Run, chosen, machine, report
from bench.bench import Bench, NotReady, Sample
from bench.engines import STREAM_HEAD, Plan
from bench.proxies import ALL, OURS, OURS_PD, ROOT, Fleet, Place, Proxy, Running, Start
from bench.soak import MAX_BYTES_A_REQUEST, SORTS, soak
from bench.workloads import Workload, named
from tests.bench.patient import patient
from tests.machine import seconds

from bench import instructions, peers, table

CONNECTIONS = 3
STREAMS_EACH = 4
CHUNKS = 10
SECONDS = seconds(0.3)
"""Long enough for an answer."""


def small(name: str) -> Workload:
    """A workload of a fraction of a second."""
    workload = named([name])[0]
    if not workload.streams:
        return replace(workload, connections=min(CONNECTIONS, workload.connections), seconds=SECONDS)
    plan = replace(workload.plan, chunks=CHUNKS, interval_ms=min(5.0, workload.plan.interval_ms))
    return replace(workload, connections=CONNECTIONS, streams_each=STREAMS_EACH, plan=plan, ramp_s=0.05)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture(scope="module", params=[OURS, OURS_PD], ids=["aggregated", "pd"])
def running(
    request: pytest.FixtureRequest, bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    started = Running(patient(request.param), bench.fleet, tmp_path_factory.mktemp("perf") / "warmroute", None, None)
    try:
        bench.start(started)
        yield started
    finally:
        started.process.stop()


def test_streams_are_counted_to_the_chunk(bench: Bench, running: Running) -> None:
    for name in () if running.proxy.pd else ("w2", "w2sync", "w2burst", "w4"):
        sample = bench.measure(running, small(name), 0)
        assert (sample.bad, sample.reasons) == (0, {})
        assert sample.answers == sample.upstream_chats == CONNECTIONS * STREAMS_EACH
        assert sample.chunks == sample.answers * CHUNKS
        assert sample.per_s > 0
        assert sample.memory_kb > 1000
        assert bool(sample.delay_ms) == (name != "w2burst")


def test_whole_answers_are_counted_on_both_sides(bench: Bench, running: Running) -> None:
    legs = 2 if running.proxy.pd else 1
    for name in ("w3pd-200k",) if running.proxy.pd else ("w1", "w3-200k"):
        sample = bench.measure(running, small(name), 0)
        assert (sample.bad, sample.reasons) == (0, {})
        assert sample.answers > 0
        assert sample.upstream_chats == legs * sample.answers
        assert sample.took_ms["p99"] >= sample.took_ms["p50"] > 0


def test_processor_time_of_a_proxy_that_works_is_seen(bench: Bench, running: Running) -> None:
    busy = replace(small("w2burst"), streams_each=200)
    sample = bench.measure(running, busy, 0)
    assert sample.figure > 0
    assert 0 < sample.user_share <= 1
    assert sample.busy > 0


@pytest.mark.parametrize("name", ["w2", "w2burst"])
def test_a_stream_that_is_cut_short_is_a_bad_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for engine in bench.fleet.aggregated:
        follow = engine.follow

        def cut(plan: Plan, engine: object = engine, follow: object = follow) -> None:
            follow(plan)  # type: ignore[operator]
            engine.ending = lambda _body_bytes: b"0\r\n\r\n"  # type: ignore[attr-defined]
            engine.burst = STREAM_HEAD  # type: ignore[attr-defined]

        monkeypatch.setattr(engine, "follow", cut)
    sample = bench.direct(small(name), 0)
    assert sample.reasons == {"incomplete": CONNECTIONS * STREAMS_EACH}


def _fails(_place: Place, _fleet: Fleet) -> Start:
    return Start(["sh", "-c", "echo no such luck; exit 3"], {})


def test_a_proxy_that_does_not_start_is_a_line_of_the_report(tmp_path: Path) -> None:
    broken = Proxy("litellm", "", "python", _fails)
    workload = small("w1")
    run = Run(tmp_path, None, {}, {"smg": "is not installed"})
    try:
        run.workload(workload, [patient(OURS), broken], rounds=1)
    finally:
        run.end()
    text = "\n".join(report(run, [workload], machine(), {"warmroute": "1"}))
    assert "- litellm: ended: no such luck" in text
    assert "- smg: is not installed" in text
    row = next(line for line in text.splitlines() if line.startswith("| warmroute |"))
    assert row.endswith("| 0 |")
    assert "Without a proxy: " in text


def test_an_endless_start_ends(bench: Bench, tmp_path: Path) -> None:
    silent = Proxy("silent", "", "python", lambda _place, _fleet: Start(["sleep", "60"], {}))
    running = Running(silent, bench.fleet, tmp_path / "silent", None, None)
    try:
        with pytest.raises(NotReady, match="does not answer: it wrote nothing"):
            bench.start(running, timeout_s=0.0)
    finally:
        running.process.stop()
    assert not running.process.running()


def test_peers_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    use, environments, versions, left_out = chosen("sglang-router,floor", install=False)
    assert [proxy.name for proxy in use] == ["warmroute", "warmroute pd", "floor"]
    assert (environments, set(versions)) == ({}, {"warmroute"})
    assert left_out == {"sglang-router": "is not installed (--install does it)"}
    monkeypatch.setattr("bench.__main__.COMPILED", tmp_path / "nothing")
    assert chosen("compiled", install=False)[3] == {"compiled": "is not built (scripts/compile.py does it)"}
    monkeypatch.setattr("bench.__main__.COMPILED", tmp_path)
    assert [proxy.name for proxy in chosen("compiled", install=False)[0]][2:] == ["warmroute compiled"]
    with pytest.raises(ValueError, match="no peer sglang;"):
        chosen("sglang", install=False)
    assert {proxy.package for proxy in ALL if proxy.package} == set(peers.PINNED)


def _row(name: str, *figures: float, bad: int = 0) -> table.ProcessReport:
    proxy = next(proxy for proxy in ALL if proxy.name == name)
    return table.ProcessReport(
        proxy,
        [
            Sample("w1", name, figure, 0.5, 100.0, 0.5, 0.1, bad, {"status 500": bad} if bad else {}, 9, 0, 9)
            for figure in figures
        ],
    )


def test_ratios_are_of_medians_to_the_cheapest_that_answered_well() -> None:
    rows = [
        _row("warmroute", 60.0, 65.0, 900.0),
        _row("smg round_robin", 10.0, bad=1),
        _row("vllm-router round_robin", 100.0),
        _row("vllm-router cache_aware", 200.0),
        _row("nginx", 20.0),
    ]
    text = "\n".join(table.workload_table(named(["w1"])[0], rows, []))
    assert "- 0.65 x vllm-router round_robin: holds 0.75, not the goal of 0.6" in text
    assert "- 0.33 x vllm-router cache_aware: reaches the goal of 0.5" in text
    assert "1 status 500" in text
    late = table.workload_table(named(["w1"])[0], [_row("warmroute", 90.0), *rows[1:]], [])
    assert "- 0.90 x vllm-router round_robin: **misses 0.75** (goal 0.6)" in late


def test_a_short_soak_sees_all_sorts_of_requests_end_as_they_must(tmp_path: Path) -> None:
    result = soak(tmp_path, minutes=0.07, seed=1)
    assert result.wrong == {}
    assert all(result.begun[sort.name] > 0 for sort in SORTS)
    assert len(result.samples) >= 2
    rate = MAX_BYTES_A_REQUEST + 1
    leak = result.memory._replace(without_steps=rate, median_slope=rate, second_half=rate)
    # So short a run begins and ends with whatever connections are open; its files say nothing.
    steady = result.files._replace(without_steps=0.0)
    grown = replace(result, memory=leak, files=steady, wrong={"stream: incomplete": 3})
    assert [fault.split(" ")[0] for fault in grown.faults] == ["3", "memory"]


@pytest.mark.nightly  # `costs of requests` counts in each full run
@pytest.mark.timeout(300)  # callgrind is slow, and a loaded machine slower
@pytest.mark.parametrize("limits", ["none", "both"])
def test_instructions_are_counted_where_valgrind_is(limits: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    plain = instructions.WORKLOADS["w1"]()
    few = replace(plain, warm=[each[:2] for each in plain.warm[:2]], counted=[each[:2] for each in plain.counted[:2]])
    (found,) = instructions.count(ROOT, [few], limits)
    assert 50_000 < found < 5_000_000


def test_instructions_that_cannot_be_counted_are_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert instructions.main(["--workloads", "w9"]) == 2
    assert "no workload w9; there are w1," in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert instructions.main(["--workloads", "w1"]) == 2
    assert capsys.readouterr().err == "python -m bench instructions: valgrind is not installed\n"
