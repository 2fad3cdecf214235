"""Goals of some rows, which come from earlier figures of the simulator, and whether single runs reach them."""

from typing import Final, NamedTuple

from bench.placement.figures import Figures, baselines, find
from bench.placement.parts import PARTS, PRODUCTION


class Goal(NamedTuple):
    """One figure of a goal, and whether single runs reach it."""

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


def goals(figures: Figures) -> list[Goal]:
    """Return the goals, figure by figure."""
    titles = {part.name: part.title for part in PARTS}
    found = []
    for part, load, hit, quantity, seconds in _GOALS:
        ours = find(figures, part, PRODUCTION, load)
        time_s = ours[f"ttft_{quantity}_s"]
        digits = 2 if seconds < 100 else 0
        shown = f"<= {seconds:.{digits}f} s", f"{time_s:.{digits}f} s"
        found += [
            Goal(titles[part], load, "hit", f">= {hit:.3f}", f"{ours['hit']:.4f}", ours["hit"] >= hit),
            Goal(titles[part], load, f"TTFT {quantity}", *shown, round(time_s, digits) <= seconds),
        ]
    return found + _claude_code(figures)


def _claude_code(figures: Figures) -> list[Goal]:
    part = "claude-code"
    title = next(each.title for each in PARTS if each.name == part)
    bound = figures["bounds"][part]
    ours = find(figures, part, PRODUCTION, 1)
    least = min(baselines(figures, part, 1), key=lambda row: row["ttft_p99_s"])
    share = ours["hit"] / bound
    goal = f"< {least['ttft_p99_s']:.2f} s ({least['policy']})"
    return [
        Goal(title, 1, "hit", f">= {_OF_BOUND} of {bound:.4f}", f"{share:.4f} of {bound:.4f}", share >= _OF_BOUND),
        Goal(title, 1, "TTFT p99", goal, f"{ours['ttft_p99_s']:.2f} s", ours["ttft_p99_s"] < least["ttft_p99_s"]),
    ]
