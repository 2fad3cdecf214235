"""More sessions than a fleet has KV for, under real concurrency: what a replay says of it comes true."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.machine import seconds
from tests.subjects.ports import free_ports
from warmroute_cli.main import main
from warmroute_cli.state import make
from warmroute_lab.demo.tight import ClientTurn, Load, TightFleet, figures, pauses_of, play
from warmroute_lab.replay.setup import WITH_QUEUE, WITH_WORKING_SET, Setup, run
from warmroute_lab.replay.trace import Request, Trace

LOAD = Load(sessions=30, turns=8, first_tokens=12_000, more_tokens=1_000, kv_tokens=130_000, speed=1.0)
PAGE = 64
pytestmark = [pytest.mark.full, pytest.mark.timeout(seconds(600))]


def trace_of(load: Load, turns: list[ClientTurn]) -> Trace:
    """The same sessions for a replay, with the prompts as the engines have counted them."""
    requests: list[Request] = []
    for session in range(load.sessions):
        start_s, *pauses_s = pauses_of(load, session)
        before: int | None = None
        sent_tokens = 0
        for at, turn in enumerate(each for each in turns if each.session == session):
            full, rest = divmod(turn.prompt_tokens, PAGE)
            blocks = [(session << 20) + number for number in range(full)]
            tail = (session << 20) + (1 << 19) + at if rest else None
            at_s = start_s if before is None else pauses_s[at - 1]
            number = len(requests)
            requests.append(
                Request(
                    number, at_s, before, session, at + 1, turn.prompt_tokens, load.output_tokens,
                    [*blocks, *([tail] if tail else [])], tail, sent_tokens,
                )
            )  # fmt: skip
            before, sent_tokens = number, turn.prompt_tokens
    return Trace("tight", PAGE, requests, load.sessions, named_sessions=True)


def test_two_proxies_answer_every_turn_and_the_replay_of_their_sessions_is_printed(tmp_path: Path) -> None:
    """How near the live hit ratio comes depends on the machine, so it is printed (`-s`)."""
    make(tmp_path / "state")
    with TightFleet(tmp_path / "state", tmp_path / "run", LOAD, 120.0, free_ports(2)) as fleet:
        turns = asyncio.run(play(fleet.urls, fleet.api_key, LOAD))
    live = figures(turns, LOAD.speed)
    setup = Setup(prefills=LOAD.engines, kv_tokens=LOAD.kv_tokens, routers=2, share_lag_s=0.01)
    with_it, without = (run(trace_of(LOAD, turns), setup, policy).hit for policy in (WITH_WORKING_SET, WITH_QUEUE))
    figure = f"live {live.hit:.3f}, replay {with_it:.3f}, without admission {without:.3f}"
    print(figure)
    assert len(turns) == LOAD.sessions * LOAD.turns
    assert with_it > without + 0.2, figure


def test_the_demo_prints_both_rows_in_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its status is 1 where admission saved nothing, as on a machine that is busy with other work."""
    status = main(["demo", "--tight", "--state-dir", str(tmp_path / "state"), "--json", str(tmp_path / "figures")])
    assert status in {0, 1}
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    found = json.loads((tmp_path / "figures").read_text())
    assert all(0 <= found[name]["hit"] <= 1 and found[name]["computed_tokens"] > 0 for name in ("with", "without"))
