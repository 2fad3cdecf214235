"""A program's starts on the stage, one after the other, and what came of them.

A program that cannot run on this machine is named with the reason, and its recording is played instead.
"""

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tests.machine import seconds

from warmroute_cli.run.programs import PROGRAMS
from warmroute_lab.demo.drive import Target, drive
from warmroute_lab.recordings import load_recordings

from .cases import Case
from .lineages import Turn
from .stage import Stage, Start

HELP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Played:
    """`starts`: each with how it ended and the ids of its requests. `turns`: of all of them, in order.

    `replayed`: why the recording was played instead of the program. `sockets`: how many WebSockets it opened.
    `names`: of headers, members and items in what it sent.
    """

    name: str
    case: Case
    starts: Sequence[tuple[Start, "subprocess.CompletedProcess[str]", Sequence[str]]]
    turns: Sequence[Turn]
    replayed: str = ""
    sockets: int = 0
    names: Sequence[str] = ()

    def turns_of(self, number: int) -> list[Turn]:
        """The turns of one start."""
        rids = set(self.starts[number][2])
        return [turn for turn in self.turns if rids & set(turn.row["rids"])]


def play(stage: Stage, name: str, case: Case) -> Played:
    """Run all starts, or the recording where the program cannot run; nothing, where there is none."""
    chats = stage.fleet.taps.chats
    starts = []
    sockets = stage.opened_sockets()
    stage.fleet.shapes.take()
    for start in case.starts(stage.project(name)):
        before = set(chats)
        done = stage.start(name, start)
        rids = [rid for rid in chats if rid not in before]
        if done.returncode and not rids and (reason := cannot_run(stage, name)):
            return replay(stage, name, case, reason) if case.recording else Played(name, case, (), (), reason)
        starts.append((start, done, rids))
    turns = _turns(stage, [rid for _, _, rids in starts for rid in rids])
    return Played(name, case, starts, turns, sockets=stage.opened_sockets() - sockets, names=stage.fleet.shapes.take())


def cannot_run(stage: Stage, name: str) -> str:
    """Why a program does not run on this machine; empty where it does."""
    elsewhere = {**stage.environment(name), "HOME": str(stage.folder)}  # without our settings it writes there
    try:
        done = subprocess.run(
            [PROGRAMS[name].command, "--help"], env=elsewhere, cwd=stage.project(name),
            capture_output=True, text=True, timeout=seconds(HELP_TIMEOUT_S), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{PROGRAMS[name].command} --help: {error}"
    last_line = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return f"{PROGRAMS[name].command} --help ends with {done.returncode}: {last_line}" if done.returncode else ""


def replay(stage: Stage, name: str, case: Case, reason: str) -> Played:
    """Play what the program sent when it was recorded."""
    chats = stage.fleet.taps.chats
    before = set(chats)
    regions = {region: proxy.base_url for region, proxy in stage.fleet.proxies.items()}
    target = Target(regions, stage.fleet.api_key, seed=1, think_s=0.0)
    asyncio.run(drive(load_recordings([case.recording]), target, 1, lambda _: None))
    return Played(name, case, (), _turns(stage, [rid for rid in chats if rid not in before]), reason)


def _turns(stage: Stage, rids: Sequence[str]) -> list[Turn]:
    return [Turn(row, stage.fleet.taps.chats[row["rids"][-1]].body) for row in stage.rows_of(rids)]
