"""Fleets of workers that differ, from a file, and what placement learns of them."""

from pathlib import Path

import pytest

from warmroute.files.given import UnreadableFile
from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.setup import Setup, WorkerKind, read_fleet, run
from warmroute_lab.replay.trace import TraceError

TEXT = """
[[worker]]
count = 3

[[worker]]
speed = 0.5
kv_tokens = 250_000
max_running = 16
"""


def fleet(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_each_worker_is(tmp_path: Path) -> None:
    kinds = read_fleet(fleet(tmp_path, TEXT))
    assert kinds == (WorkerKind(3), WorkerKind(3), WorkerKind(3), WorkerKind(1, 0.5, 250_000, 16))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[worker]]\nspeed = 0", "worker 1: speed is a number from 0.01"),
        ("[[worker]]\n[[worker]]\ncount = 0", "worker 2: count is a number from 1"),
        ("[[worker]]\nkv_tokens = -1", "kv_tokens is a number from 1"),
        ("[[worker]]\nsped = 1.0", "unknown field `sped`"),
        ("worker = []", "1 to 1024 workers, not 0"),
        ("[[worker", "Expected"),
        ("[[worker]]\ncount = 1000\n[[worker]]\ncount = 25", "not 1025"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises((TraceError, UnreadableFile), match=r".*".join(says.split("`"))):
        read_fleet(fleet(tmp_path, text))


def test_slow_and_small_workers_get_less_of_the_work(tmp_path: Path) -> None:
    trace = agents_trace(Agents(sessions=60, starts_within_s=300.0, limit_tokens=60_000), "agents")
    setup = Setup(4, kv_tokens=1_000_000, kinds=read_fleet(fleet(tmp_path, TEXT)))
    result = run(trace, setup, "warmroute")
    alike = run(trace, Setup(4, kv_tokens=1_000_000), "warmroute")
    loads = [sum(tokens) for tokens in zip(*result.load_tokens, strict=True)]
    assert loads[3] < 0.8 * sum(loads[:3]) / 3
    assert result.hit > alike.hit - 0.03
