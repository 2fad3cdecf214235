"""Turns of the ladder added up, in all or by a key such as the model.

Limits: `MAX_GROUPS` groups are kept; turns of further keys are added to `REST`.
"""

from collections.abc import Mapping
from typing import Any, Final

from warmroute.contract.money import usd
from warmroute_proxy.ladder.remedies import wins
from warmroute_proxy.ladder.steps import MEANINGS, PROMPT, STEPS
from warmroute_proxy.ladder.turn import LadderTurn

MAX_GROUPS: Final = 100_000
REST: Final = "(all others)"


class LadderSums:
    """What some turns add up to."""

    __slots__ = ("known", "list_nanousd", "lost", "price_nanousd", "prompt_tokens", "turns", "whole_nanousd")

    def __init__(self) -> None:
        self.turns = 0
        self.prompt_tokens = 0
        self.list_nanousd = 0
        self.price_nanousd = 0
        self.whole_nanousd = 0
        """The price if all prompt tokens were cached."""
        self.lost: dict[tuple[str, str], tuple[int, int]] = {}
        """Step and cause -> tokens and nanodollars."""
        self.known = frozenset(STEPS)

    def add(self, turn: LadderTurn) -> None:
        """Add a turn."""
        self.turns += turn.counts
        self.prompt_tokens += turn.prompt_tokens
        self.list_nanousd += turn.list_nanousd
        self.price_nanousd += turn.price_nanousd
        self.whole_nanousd += turn.price_nanousd - sum(cost.nanousd for cost in turn.costs)
        self.known &= turn.known
        for step, cause, tokens, nanousd in turn.costs:
            before_tokens, before_nanousd = self.lost.get((step, cause), (0, 0))
            self.lost[step, cause] = before_tokens + tokens, before_nanousd + nanousd

    def levels(self) -> dict[str, tuple[int, int]]:
        """Step -> cached tokens and price in nanodollars, from the prompt down."""
        tokens, nanousd = self.prompt_tokens, self.whole_nanousd
        found = {PROMPT: (tokens, nanousd)}
        for step in STEPS:
            for (at, _), (lost_tokens, lost_nanousd) in self.lost.items():
                if at == step:
                    tokens, nanousd = tokens - lost_tokens, nanousd + lost_nanousd
            found[step] = tokens, nanousd
        return found

    def causes(self, step: str) -> dict[str, tuple[int, int]]:
        """Cause -> tokens and nanodollars lost on the way to a step, the dearest first."""
        found = {cause: lost for (at, cause), lost in self.lost.items() if at == step and lost != (0, 0)}
        return dict(sorted(found.items(), key=lambda each: (-each[1][1], -each[1][0], each[0])))

    def by_cause(self) -> dict[str, tuple[int, int]]:
        """Cause -> tokens and nanodollars, of all steps. A prediction that was wrong counts once."""
        found: dict[str, tuple[int, int]] = {}
        for (_, cause), (tokens, nanousd) in self.lost.items():
            if tokens <= 0 and cause in {"overpredicted", "underpredicted"}:
                continue
            before = found.get(cause, (0, 0))
            found[cause] = before[0] + tokens, before[1] + nanousd
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON. Steps that the source does not know have null tokens."""
        levels, steps = self.levels(), []
        before = levels[PROMPT]
        for step in (PROMPT, *STEPS):
            tokens, nanousd = levels[step]
            known = step == PROMPT or step in self.known
            row: dict[str, Any] = {"step": step, "tokens": tokens if known else None}
            row |= {"price_nanousd": nanousd if known else None}
            if step != PROMPT:
                row |= {"lost_tokens": before[0] - tokens, "lost_nanousd": nanousd - before[1]}
                row["causes"] = [
                    {"cause": cause, "tokens": lost[0], "nanousd": lost[1], "meaning": MEANINGS[cause]}
                    for cause, lost in self.causes(step).items()
                ]
            steps.append(row)
            before = levels[step]
        won = [
            {"remedy": win.remedy.name, "tokens": win.tokens, "nanousd": win.nanousd, "how": win.remedy.how}
            for win in wins(self.by_cause())
        ]
        return {
            "turns": self.turns,
            "prompt_tokens": self.prompt_tokens,
            "is_billed": "billed" in self.known,
            "list_nanousd": self.list_nanousd,
            "price_nanousd": self.price_nanousd,
            "price_usd": usd(self.price_nanousd),
            "steps": steps,
            "would_win_back": won,
        }


class Ladder:
    """The sums of all turns, and of each group."""

    def __init__(self, by: str | None = None) -> None:
        """`by`: the key that turns are grouped by; None: not at all."""
        self.by = by
        self.all = LadderSums()
        self.groups: dict[str, LadderSums] = {}

    def add(self, turn: LadderTurn) -> None:
        """Add a turn."""
        self.all.add(turn)
        if self.by is None:
            return
        key = turn.keys.get(self.by, "")
        if key not in self.groups and len(self.groups) >= MAX_GROUPS:
            key = REST
        self.groups.setdefault(key, LadderSums()).add(turn)

    def dearest(self) -> list[tuple[str, LadderSums]]:
        """The groups, the dearest first."""
        return sorted(self.groups.items(), key=lambda each: (-each[1].price_nanousd, -each[1].prompt_tokens, each[0]))

    def as_dict(self, source: Mapping[str, Any], most: int) -> dict[str, Any]:
        """Plain values for JSON, with the dearest `most` groups. `source`: what the turns were read from."""
        found: dict[str, Any] = {"v": 1, "source": dict(source), "by": self.by, **self.all.as_dict()}
        groups = self.dearest()
        found["groups"] = [{"key": key, **sums.as_dict()} for key, sums in groups[:most]]
        found["groups_left_out"] = max(0, len(groups) - most)
        return found
