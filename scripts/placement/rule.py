"""What must hold on every row, and the goals of some.

The rule: the hit ratio is at least the best baseline's less 0.005, and the p90 of TTFT at most 1.05 times the best p90
among the baselines whose hit ratio is within 0.02 of the best. (A policy that ignores caches may have a short tail at
low load: it is no yardstick. One that herds has a high hit ratio and a long tail: it is none either.)
"""

from typing import Final, NamedTuple

from scripts.placement.figures import Figures, Row, baselines, find
from scripts.placement.parts import PARTS, PRODUCTION

HIT_SLACK: Final = 0.005
NEAR: Final = 0.02
P90_FACTOR: Final = 1.05


class Verdict(NamedTuple):
    """The rule on one row. `yardstick` is the baseline with the shortest tail among those near the best hit ratio."""

    part: str
    title: str
    speed_up: float
    ours: Row
    best: Row
    yardstick: Row
    ahead: list[str]
    """Baselines that are at least as good in both columns."""

    @property
    def hit_holds(self) -> bool:
        return bool(self.ours["hit"] >= self.best["hit"] - HIT_SLACK)

    @property
    def p90_limit_s(self) -> float:
        return float(self.yardstick["ttft_p90_s"] * P90_FACTOR)

    @property
    def p90_holds(self) -> bool:
        return bool(self.ours["ttft_p90_s"] <= self.p90_limit_s)


class Cell(NamedTuple):
    """One figure of a goal, and whether it is reached."""

    part: str
    title: str
    speed_up: float
    what: str
    goal: str
    figure: str
    reached: bool


_GOALS: Final = (
    ("conversation-8", 1, 0.360, "p90", 1.08),
    ("conversation-8", 2, 0.356, "p90", 1.15),
    ("conversation-8", 4, 0.350, "p90", 1.55),
    ("conversation-4", 4, 0.360, "mean", 235.0),
    ("synthetic-8", 1, 0.650, "p90", 1.04),
    ("synthetic-8", 4, 0.643, "p90", 2.6),
)
_OF_BOUND: Final = 0.99


def verdicts(figures: Figures) -> list[Verdict]:
    """The rule on every row that was played."""
    found = []
    for part in PARTS:
        if not part.ruled or part.name not in figures["rows"]:
            continue
        for load in part.loads:
            others = baselines(figures, part.name, load)
            best = max(others, key=lambda row: row["hit"])
            near = [row for row in others if row["hit"] >= best["hit"] - NEAR]
            yardstick = min(near, key=lambda row: row["ttft_p90_s"])
            ours = find(figures, part.name, PRODUCTION, load)
            ahead = [
                row["policy"] for row in others if row["hit"] >= ours["hit"] and row["ttft_p90_s"] <= ours["ttft_p90_s"]
            ]
            found.append(Verdict(part.name, part.title, load, ours, best, yardstick, ahead))
    return found


def cells(figures: Figures) -> list[Cell]:
    """The goals, figure by figure."""
    titles = {part.name: part.title for part in PARTS}
    found = []
    for part, load, hit, quantity, seconds in _GOALS:
        if part not in figures["rows"]:
            continue
        ours = find(figures, part, PRODUCTION, load)
        time_s = ours[f"ttft_{quantity}_s"]
        digits = 2 if seconds < 100 else 0
        found += [
            Cell(part, titles[part], load, "hit", f">= {hit:.3f}", f"{ours['hit']:.4f}", ours["hit"] >= hit),
            Cell(
                part, titles[part], load, f"TTFT {quantity}", f"<= {seconds:.{digits}f} s", f"{time_s:.{digits}f} s",
                round(time_s, digits) <= seconds,
            ),
        ]  # fmt: skip
    return found + (_claude_code(figures) if "claude-code" in figures["rows"] else [])


def reaching(figures: Figures) -> dict[str, list[str]]:
    """Baselines that reach a goal's row in both columns, by row."""
    found = {}
    for part, load, hit, quantity, seconds in _GOALS:
        if part in figures["rows"]:
            found[f"{part} {load}x"] = [
                row["policy"]
                for row in baselines(figures, part, load)
                if row["hit"] >= hit and row[f"ttft_{quantity}_s"] <= seconds
            ]
    return found


def _claude_code(figures: Figures) -> list[Cell]:
    part, title = "claude-code", "Claude Code sessions, N=16"
    bound = figures["bounds"][part]
    ours = find(figures, part, PRODUCTION, 1)
    least = min(baselines(figures, part, 1), key=lambda row: row["ttft_p99_s"])
    share = ours["hit"] / bound
    return [
        Cell(part, title, 1, "hit", f">= {_OF_BOUND} of {bound:.4f}", f"{share:.4f} of it", share >= _OF_BOUND),
        Cell(
            part, title, 1, "TTFT p99", f"< {least['ttft_p99_s']:.2f} s ({least['policy']})",
            f"{ours['ttft_p99_s']:.2f} s", ours["ttft_p99_s"] < least["ttft_p99_s"],
        ),
    ]  # fmt: skip
