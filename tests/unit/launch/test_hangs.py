"""When an engine hangs, on virtual time: lines are those of SGLang 0.5.23, whose labels come in this order."""

from collections.abc import Iterable

from warmroute_backend.launch.hangs import LONGEST_STEP, READ_EVERY_S, Progress, hang, observed
from warmroute_backend.launch.launcher import Limits
from warmroute_backend.launch.states import Backoff

LABELS = 'dp_rank="{rank}",engine_type="unified",model_name="m",pp_rank="0",priority="{priority}",tp_rank="0"'


def shown(running: int, tokens: int, rank: int = 0) -> str:
    """What `/metrics` shows of a rank, with the queue divided by priority as well."""
    labels = LABELS.format(rank=rank, priority="")
    return "\n".join(
        [
            f"sglang:num_running_reqs{{{labels}}} {running}.0",
            f"sglang:num_running_reqs{{{LABELS.format(rank=rank, priority=7)}}} {running}.0",
            f'sglang:realtime_tokens_total{{{labels},mode="prefill_compute"}} {tokens}.0',
            f'sglang:realtime_tokens_total{{{labels},mode="decode"}} 1e+02',
        ]
    )


def after(readings: Iterable[str | None], every_s: float = 10.0) -> Progress:
    progress, now_s = Progress(0.0), 0.0
    for text in readings:
        now_s += every_s
        progress = observed(progress, text, now_s)
    return progress


def test_requests_without_tokens_are_a_hang_once_the_time_is_over() -> None:
    stuck = [shown(3, 500)] * 37
    assert hang(after(stuck[:36]), 360.0) == ""
    assert hang(after(stuck), 360.0) == "hangs: 3 running requests, and no token was computed for 360 s"
    assert hang(after([shown(1, 500)] * 37), 360.0).startswith("hangs: 1 running request, and")


def test_one_token_or_one_moment_without_work_begins_anew() -> None:
    for event in (shown(3, 501), shown(0, 500)):
        assert after([shown(3, 500)] * 36 + [event] + [shown(3, 501)]).still_s == (10.0 if "501" in event else 0.0)


def test_an_idle_engine_never_hangs() -> None:
    assert hang(after([shown(0, 500)] * 1_000), 360.0) == ""


def test_a_rank_that_keeps_its_last_number_is_no_hang_while_another_computes() -> None:
    readings = [shown(1, 500, rank=0) + "\n" + shown(8, 1_000 + number, rank=1) for number in range(100)]
    assert hang(after(readings), 360.0) == ""


def test_a_scheduler_whose_loop_turns_is_no_hang_though_its_requests_are_of_an_old_report() -> None:
    """Decode that waits for the KV of a hung prefill engine shows the requests of its last batch; so does a pause."""
    line = f"sglang:scheduler_process_cpu_seconds_total{{{LABELS.format(rank=0, priority='')}}}"
    turns = [f"{shown(3, 500)}\n{line} {100.0 + number / 8}" for number in range(1_000)]
    assert hang(after(turns), 360.0) == ""
    assert hang(after(turns[:1] * 37), 360.0).startswith("hangs: 3 running requests")


def test_no_answer_is_a_hang_and_an_engine_without_these_metrics_is_not() -> None:
    assert hang(after([shown(0, 5)] + [None] * 36), 360.0) == "hangs: /metrics has not answered for 360 s"
    assert hang(after([None] * 36 + [shown(0, 5)]), 360.0) == ""
    assert hang(after([""] * 1_000), 360.0) == ""
    assert hang(after(['sglang:num_running_reqs{dp_rank="0"} 3.0'] * 1_000), 360.0) == ""


def test_a_launcher_that_was_stopped_itself_has_seen_nothing_meanwhile() -> None:
    progress = observed(after([shown(3, 500)] * 2), None, 10_000.0)
    assert progress.silent_s == LONGEST_STEP * READ_EVERY_S
    assert hang(progress, 360.0) == ""


def test_one_reading_is_no_hang_where_readings_are_frequent_either() -> None:
    limits = Limits(Backoff(), hang_s=2.0)
    progress = observed(after([shown(3, 500)]), None, 10_000.0, limits.read_every_s)
    assert hang(progress, limits.hang_s) == ""
