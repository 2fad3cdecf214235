"""A program's starts on the stage, one after the other, and what came of them."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from .cases import Case
from .lineages import Turn
from .stage import Stage, Start


@dataclass(frozen=True, slots=True)
class Played:
    """`starts`: each with how it ended and the ids of its requests. `turns`: of all of them, in order."""

    name: str
    case: Case
    starts: Sequence[tuple[Start, "subprocess.CompletedProcess[str]", Sequence[str]]]
    turns: Sequence[Turn]

    def turns_of(self, number: int) -> list[Turn]:
        """The turns of one start."""
        rids = set(self.starts[number][2])
        return [turn for turn in self.turns if rids & set(turn.row["rids"])]


def play(stage: Stage, name: str, case: Case) -> Played:
    """Run them all."""
    chats = stage.fleet.taps.chats
    starts = []
    for start in case.starts(stage.project(name)):
        before = set(chats)
        done = stage.start(name, start)
        starts.append((start, done, [rid for rid in chats if rid not in before]))
    rows = stage.rows_of([rid for _, _, rids in starts for rid in rids])
    return Played(name, case, starts, [Turn(row, chats[row["rids"][-1]].body) for row in rows])
